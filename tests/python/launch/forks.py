"""Asking a fork server (fork_server.py) for ranks, which are then as processes of subprocess."""

import json
import os
import pathlib
import select
import socket
import subprocess
import sys

SERVER = pathlib.Path(__file__).resolve().parent / "fork_server.py"


class Server:
    """A fork server, seen from whoever wants ranks. All of them have its modules."""

    def __init__(self, modules, environment):
        self.environment = environment
        self.requests, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, SERVER, str(its.fileno()), *modules]
        self.process = subprocess.Popen(
            command, env=environment, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        its.close()
        self.is_ready = bool(self.requests.recv(64))  # else it has said why not, and ended

    def start(self, command, environment, folder, streams):
        """Fork; returns the process id, and a socket on which the status comes as os.waitpid() has it."""
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            request = json.dumps([command, environment, folder]).encode()
            socket.send_fds(self.requests, [request], [*streams, its.fileno()])
        return self.receive(ours), ours

    def receive(self, answers):
        said = answers.recv(64)
        if not said:
            raise RuntimeError(f"the fork server has ended, with {self.process.wait()}")
        return int(said)

    def close(self):
        """Ranks that still run are killed."""
        self.requests.close()
        self.process.wait()


class Fork(subprocess.Popen):
    """A process as subprocess.Popen([sys.executable, script, ...]) makes it, forked by a server."""

    def __init__(self, server, command, **how):
        self._server = server
        super().__init__(command, **how)

    def _execute_child(self, command, *how):
        folder, environment, (stdin, _, _, stdout, _, stderr) = how[4], how[5], how[9:15]
        given = [own if own >= 0 else number for number, own in enumerate((stdin, stdout, stderr))]
        self.pid, self._status = self._server.start(command, environment, folder or os.getcwd(), given)
        self._child_created = True
        self._close_pipe_fds(*how[9:15])

    def _try_wait(self, flags):
        if flags & os.WNOHANG and not select.select([self._status], [], [], 0)[0]:
            return 0, 0
        with self._status:
            return self.pid, self._server.receive(self._status)

    def _internal_poll(self, *_, **__):
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)
        return self.returncode
