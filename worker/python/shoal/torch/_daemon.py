"""The daemon that the first rank of a node starts for the job, when none is configured: `shoalrun --serve`
makes its folder, starts it, and removes the folder when it has ended.

Its sockets listen before it runs, so that ports are known and nobody waits for it. It ends when the last rank of the
node has closed the pipe that all of them hold, however they end.
"""

import contextlib
import os
import pathlib
import select
import shutil
import subprocess
import time

from shoal import errors, library
from shoal.torch import _hosts

OOM_SCORE = 500
# shoalrun says a line of at most so many bytes, within so many seconds.
LINE_BYTES_MOST = 8192
LINE_S = 120


def find_program():
    """shoalrun beside the library (../bin), or in PATH."""
    beside = pathlib.Path(library.load().path).resolve().parent.parent / "bin" / "shoalrun"
    if os.access(beside, os.X_OK):
        return str(beside)
    found = shutil.which("shoalrun")
    if not found:
        raise errors.DisconnectedError(
            f"no daemon is configured (SHOAL_SOCKET) and there is no shoalrun to start one: neither {beside} nor in PATH"
        )
    return found


def be_taken_before_it():
    """Let the kernel take this rank before the daemon. When memory runs out the kernel takes the process that has most
    of it mapped: the daemon, which has the memory of all ranks. A rank therefore counts as larger than it is, as
    shoalrun has it."""
    path = pathlib.Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError, ValueError):
        if int(path.read_text()) < OOM_SCORE:
            path.write_text(str(OOM_SCORE))


class EmbeddedDaemon:
    """A private folder with sockets that listen, then the daemon in it. nodes: the names of all; node: the number of
    this one; others: addresses of other nodes."""

    def __init__(self, nodes, node, others=()):
        host = "127.0.0.1" if len(nodes) == 1 else _hosts.own_address(others)
        self._nodes = nodes
        self._program = find_program()
        self._server = subprocess.Popen(
            [self._program, "--serve", host, "--nodes", str(len(nodes)), "--node-rank", str(node)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self._server.wait()  # it has left a process behind, which is not this one's child
        self._alive = None
        try:
            self.address = [host, self._hear_port()]
            self.folder = pathlib.Path(self._hear())
            self.socket_path = str(self.folder / f"node{node}.sock")
            self.alive_path = str(self.folder / "alive")
            self._alive = os.open(self.alive_path, os.O_WRONLY | os.O_CLOEXEC)
        except BaseException:
            self.discard()
            raise

    def _hear(self):
        """Return the next line that shoalrun says."""
        line, descriptor = b"", self._server.stdout.fileno()
        poll, end = select.poll(), time.monotonic() + LINE_S
        poll.register(descriptor, select.POLLIN)
        while not line.endswith(b"\n") and len(line) < LINE_BYTES_MOST:
            if not poll.poll(max(0, 1000 * (end - time.monotonic()))):
                raise errors.TimeoutError(f"cannot start a daemon: {self._program} has said nothing for {LINE_S} s")
            byte = os.read(descriptor, 1)
            if not byte:
                status = self._server.returncode
                raise errors.DisconnectedError(
                    f"cannot start a daemon: {self._program} --serve has ended, with exit status {status}"
                )
            line += byte
        text = line.decode(errors="replace").rstrip("\n")
        if text.startswith("error "):
            _, code, why = text.split(" ", 2)
            raise errors.make_error(int(code), f"cannot start a daemon: {why}")
        return text

    def _hear_port(self):
        text = self._hear()
        if not text.isdecimal() or len(text) > len("65535"):
            raise errors.ProtocolError(
                f"cannot start a daemon: {self._program} --serve says {text[:80]!r} and no port; is it of this version?"
            )
        return int(text)

    def start(self, roster):
        """roster: {"addresses": [[host, port] of each node], "secret": text}."""
        places = zip(self._nodes, roster["addresses"])
        lines = [roster["secret"], *(f"{host} {port} {name}" for name, (host, port) in places)]
        with contextlib.suppress(BrokenPipeError):  # then it has said why
            self._server.stdin.write("".join(f"{line}\n" for line in lines).encode())
        self._hear()

    def discard(self):
        """It is not started."""
        self.settled()

    def settled(self):
        """The ranks hold the daemon now, or nobody does."""
        for stream in (self._server.stdin, self._server.stdout):
            with contextlib.suppress(OSError):
                stream.close()
        if self._alive is not None:
            os.close(self._alive)
            self._alive = None
