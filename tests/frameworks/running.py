"""Programs as their users run them: on Gloo or on shoal, to their end, with every process that they start."""

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python"))
import suite  # noqa: E402

PROGRAMS = HERE / "programs"
SHARED_MEMORY = pathlib.Path("/dev/shm")
# The line that rank 0 says once in a job whose groups are shoal's.
LINE = "shoal: this job's gloo groups are shoal's (SHOAL_AS=gloo)"
# How a program gets its backend: "gloo" is what the programs ask for.
FOR = {"gloo": {}, "shoal": {"SHOAL_AS": "gloo"}, "shoal by name": {"TEST_BACKEND": "shoal"}}
# The beginning of the line that a rank tells when it is about to fail.
FAILING = 'TOLD {"what": "failing"'
# The backstop of a run; never reached when all is well.
LIMIT_S = int(os.environ.get("FRAMEWORKS_LIMIT_S", "600"))

_numbers = itertools.count()


def remove_buffers():
    """Remove the buffers that DeepSpeed's ranks leave in shared memory, 66 MiB each, where nobody has them mapped."""
    buffers = list(SHARED_MEMORY.glob("deepspeed_allreduce_buffer_*"))
    mapped = set()
    for maps in pathlib.Path("/proc").glob("[0-9]*/maps") if buffers else ():
        try:
            mapped.update(line.split()[-1] for line in maps.read_bytes().splitlines() if b"deepspeed" in line)
        except OSError:
            continue  # it has ended meanwhile, or is another user's
    for path in buffers:
        if os.fsencode(path) not in mapped:
            with contextlib.suppress(OSError):
                path.unlink()


@dataclasses.dataclass
class Finished:
    codes: list  # of the launchers
    text: str
    left: list  # names of processes that were still there in the end
    late: bool  # ended by the limit
    seconds: float
    ending_s: float | None  # from the failure, or the interrupt, to the end

    @property
    def told(self):
        """The lines that the ranks have told, sorted by what they are about and by rank."""
        said = [json.loads(line) for line in re.findall(r'TOLD (\{".*\})', self.text)]
        return sorted(said, key=lambda one: (one["what"], one["rank"]))

    def of(self, what):
        return [one for one in self.told if one["what"] == what]

    def end(self, count=6000):
        """How it has ended, for a test that fails."""
        late = f", ended by the limit of {LIMIT_S} s" if self.late else ""
        return f"status {self.codes}{late}, left {self.left}\n{self.text[-count:]}"


class Running:
    """One or more commands that make one job together. on: one of frameworks_case.WAYS. each: what is added to the
    environment of each command. path: a folder with the entry points of the package. copied: a folder of which the
    commands find a copy where they run."""

    def __init__(self, commands, on, path, each=None, copied=None, **more):
        self.mark = f"{os.getpid()}.{next(_numbers)}"
        self.folder = tempfile.TemporaryDirectory(prefix="shoal-frameworks-")
        self.began = time.monotonic()
        self.failed_at = None
        self.text = ""
        environment = self._environment(on, path, more)
        if copied:
            shutil.copytree(copied, f"{self.folder.name}/{copied.name}")
        self.output, write = os.pipe()
        self.processes = [
            subprocess.Popen(
                [str(word) for word in command],
                env={**environment, **(each[number] if each else {})},
                stdin=subprocess.DEVNULL,
                stdout=write,
                stderr=write,
                cwd=self.folder.name,
                start_new_session=True,
            )
            for number, command in enumerate(commands)
        ]
        os.close(write)

    def _environment(self, on, path, more):
        own = suite.environment(
            PYTHONPATH=f"{path}:{suite.TREE / 'worker' / 'python'}:{PROGRAMS}",
            PATH=f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
            HOME=self.folder.name,
            TMPDIR=self.folder.name,
            CUDA_VISIBLE_DEVICES="",
            TEST_RUN=self.mark,
            TEST_FOLDER=f"{self.folder.name}/state",
            **{name: "1" for name in ("USE_LIBUV", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")},
            **more,
        )
        os.mkdir(own["TEST_FOLDER"])
        return {**own, **FOR[on]}

    def _left_s(self):
        return max(0, self.began + LIMIT_S - time.monotonic())

    def read_until(self, count, what):
        """Until so many ranks have told something. False: the output has ended, or the limit was reached."""
        wanted = f'TOLD {{"what": "{what}"'
        while self.text.count(wanted) < count:
            if not self._read():
                return False
        return True

    def _read(self):
        if not select.select([self.output], [], [], self._left_s())[0]:
            return False
        part = os.read(self.output, 1 << 16)
        self.text += part.decode(errors="replace")
        if self.failed_at is None and FAILING in self.text:
            self.failed_at = time.monotonic()
        return bool(part)

    def interrupt(self):
        """Interrupt like Ctrl-C in a terminal, which all processes get that the launcher has not put elsewhere."""
        self.failed_at = time.monotonic()
        for process in self.processes:
            os.killpg(process.pid, signal.SIGINT)

    def wait(self):
        while self._read():
            pass
        late = self._left_s() == 0
        left = [name for pid, name in self._marked() if not self._wait_for(pid)]
        self.end()
        codes = [process.wait() for process in self.processes]
        now = time.monotonic()
        ending_s = None if self.failed_at is None else now - self.failed_at
        return Finished(codes, self.text, left, late, now - self.began, ending_s)

    def _marked(self):
        """(number, name) of the processes of this run, the launchers too."""
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
                if f"TEST_RUN={self.mark}\0".encode() in environment:
                    yield int(pid), pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
            except OSError:
                continue  # it has ended meanwhile

    def _wait_for(self, pid):
        """Whether it ends within the limit."""
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            return True
        try:
            return bool(select.select([descriptor], [], [], self._left_s())[0])
        finally:
            os.close(descriptor)

    def end(self):
        """Whatever is still there of this run."""
        for pid, _ in self._marked():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def close(self):
        self.end()
        for process in self.processes:
            process.wait()
        remove_buffers()
        os.close(self.output)
        self.folder.cleanup()
