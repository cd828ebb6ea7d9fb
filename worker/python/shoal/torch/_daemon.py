"""The daemon that the first rank of a node starts for the job, when none is configured.

Its sockets listen before it runs, so that ports are known and nobody waits for it. It ends when
the last rank of the node has closed the pipe that all of them hold, however they end; the shell
that it runs under then removes its folder.
"""

import contextlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile

from shoal import errors, library
from shoal.torch import _hosts

LOG_TAIL_BYTES = 2000
OOM_SCORE = 500
# Not waited for by this process, which may end first; out of reach of its terminal's signals, and
# with nothing of its output, whose reader may wait for the end.
_SHELL = """
trap '' INT TERM HUP QUIT
("$@" >"$SHOAL_FOLDER/shoald.log" 2>&1; rm -rf -- "$SHOAL_FOLDER") </dev/null >/dev/null 2>&1 &
"""


def find_program():
    """shoald beside the library (../bin), or in PATH."""
    beside = pathlib.Path(library.load().path).resolve().parent.parent / "bin" / "shoald"
    if os.access(beside, os.X_OK):
        return str(beside)
    found = shutil.which("shoald")
    if not found:
        raise errors.DisconnectedError(
            "no daemon is configured (SHOAL_SOCKET) and there is no shoald to start: neither"
            f" {beside} nor in PATH"
        )
    return found


def be_taken_before_it():
    """When memory runs out the kernel takes who has most of it mapped. Of a node's processes that is the
    daemon, which has the memory of all ranks, so a rank counts as larger than it is. As shoalrun has it."""
    path = pathlib.Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError, ValueError):
        if int(path.read_text()) < OOM_SCORE:
            path.write_text(str(OOM_SCORE))


class EmbeddedDaemon:
    """A private folder with sockets that listen, then the daemon in it."""

    def __init__(self, nodes, node, others=()):
        self.program = find_program()
        self.nodes, self.node = nodes, node
        # Not TMPDIR, whose path may be too long for a socket's name.
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="shoal-torch-", dir="/tmp"))
        self.socket_path = str(self.folder / "shoald.sock")
        self.alive_path = str(self.folder / "alive")
        self._descriptors = []
        try:
            self._listen("127.0.0.1" if nodes == 1 else _hosts.own_address(others))
        except BaseException:
            self.discard()
            raise

    def _listen(self, host):
        self.tcp = _hosts.listen(host)
        self._descriptors.append(self.tcp)
        self.address = list(self.tcp.getsockname()[:2])
        self.unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._descriptors.append(self.unix)
        self.unix.bind(self.socket_path)
        os.chmod(self.socket_path, 0o600)
        self.unix.listen(socket.SOMAXCONN)
        os.mkfifo(self.alive_path, 0o600)
        # Both ends are open from now on: the daemon sees no end before a rank has come.
        self.alive = open(os.open(self.alive_path, os.O_RDWR | os.O_CLOEXEC), "rb", buffering=0)
        self._descriptors.append(self.alive)

    def start(self, roster):
        """roster: {"addresses": [[host, port] of each node], "secret": text}."""
        path = self.folder / "shoald.json"
        path.write_text(json.dumps(self._configuration(roster), indent=2))
        read_end = os.open(self.alive_path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        kept = [self.tcp.fileno(), self.unix.fileno(), read_end]
        command = [self.program, "--config", str(path)]
        for option, descriptor in zip(("--listen-fd", "--socket-fd", "--exit-with-parent-fd"), kept):
            command += [option, str(descriptor)]
        environment = dict(os.environ, SHOAL_FOLDER=str(self.folder))
        # Debian's libfabric loads a library that takes over signals unless it is told not to; the
        # daemon gives them back to their default, and here they are ignored.
        environment.setdefault("IPATH_NO_BACKTRACE", "1")
        environment.setdefault("HFI_NO_BACKTRACE", "1")
        try:
            subprocess.run(
                ["/bin/sh", "-c", _SHELL, "shoald", *command],
                pass_fds=kept,
                env=environment,
                start_new_session=True,
                check=True,
            )
        finally:
            os.close(read_end)
            # The daemon alone may hold them: once it is gone, connecting must fail.
            self.tcp.close()
            self.unix.close()

    def _configuration(self, roster):
        servers = [
            {"name": f"node{node}", "address": _hosts.with_port(host, port)}
            for node, (host, port) in enumerate(roster["addresses"])
        ]
        host, port = self.address
        configuration = {
            "node": f"node{self.node}",
            "servers": servers,
            "socket": {"path": self.socket_path, "mode": "0600"},
            "listen": {"address": host, "port": port},
            # Larger than what workers ask for by themselves, and touched only where used.
            "limits": {"arena_bytes": 1 << 40},
        }
        # What the workers may pin, whose daemon this is, is theirs to say.
        if os.environ.get("SHOAL_PINNED_BYTES", "").isdigit():
            pinned = max(1 << 20, int(os.environ["SHOAL_PINNED_BYTES"]))
            configuration["limits"]["pinned_bytes"] = pinned
        if self.nodes > 1:
            secret = self.folder / "secret"
            secret.touch(mode=0o600)
            secret.write_text(roster["secret"])
            configuration["secret_file"] = str(secret)
        return configuration

    def discard(self):
        """It is not started."""
        self.settled()
        shutil.rmtree(self.folder, ignore_errors=True)

    def settled(self):
        """The ranks hold the daemon now, or nobody does."""
        while self._descriptors:
            self._descriptors.pop().close()

    def log_tail(self):
        try:
            text = (self.folder / "shoald.log").read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
        except OSError:
            return ""
        return f"; the end of the daemon's log:\n{text}" if text.strip() else ""
