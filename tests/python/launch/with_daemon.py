"""with_daemon.py SHOALD JOBS RANKS SCRIPT: a daemon with nothing but defaults, then so many jobs, one after
another, of so many ranks. Fails when one of them does, or the daemon has ended before."""

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import tempfile


@contextlib.contextmanager
def readiness(folder, daemons=1):
    """Gives a NOTIFY_SOCKET for daemons that are started in it, and ends when they have said there that they
    are ready."""
    path = str(folder / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notices:
        notices.bind(path)
        notices.settimeout(60)
        yield path
        for _ in range(daemons):
            while b"READY=1" not in notices.recv(4096):
                pass


def start_daemon(program, folder):
    """Start a daemon like the service manager, and return when it has said that it is ready."""
    with readiness(folder) as path, open(folder / "log", "w") as log:
        environment = dict(os.environ, NOTIFY_SOCKET=path)
        return subprocess.Popen([program], env=environment, stdout=log, stderr=log)


def main(program, jobs, size, script):
    with tempfile.TemporaryDirectory(prefix="shoal-daemon-") as folder:
        daemon = start_daemon(program, pathlib.Path(folder))
        codes = []
        for job in range(jobs):
            shared = dict(WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(29500 + job))
            ranks = [
                subprocess.Popen(
                    [sys.executable, script],
                    env=dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), **shared),
                )
                for rank in range(size)
            ]
            codes += [rank.wait() for rank in ranks]
        ended = daemon.poll()
        daemon.terminate()
        codes += [daemon.wait()]
        if ended is not None or any(codes):
            print(f"exit codes {codes}\n{(pathlib.Path(folder) / 'log').read_text()}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
