"""Ranks on this node as Open MPI's mpirun starts them on SageMaker: its variables and no others.

    mpirun.py RANKS COMMAND...

The first that fails ends the others, as orte_abort_on_non_zero_status does; its status is this one's.
"""

import os
import signal
import socket
import subprocess
import sys

# The ranks end before whoever waits for this program gives up (suite.py): it would end this alone.
LIMIT_S = 270


def free_port():
    """Return a port that is free. Another process may get it meanwhile, which is rare."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(command, size):
    """Processes in one group of their own."""
    common = {
        "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(size),
        "SMDATAPARALLEL_SERVER_ADDR": "127.0.0.1",
        "SMDATAPARALLEL_SERVER_PORT": str(free_port()),
    }
    return [
        subprocess.Popen(
            command,
            env={
                **os.environ,
                **common,
                "OMPI_COMM_WORLD_RANK": str(rank),
                "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
            },
        )
        for rank in range(size)
    ]


def wait(processes):
    """Until all have ended, or one has failed: the others are killed then. Returns its status, 0
    when all is well."""
    running = {process.pid: process for process in processes}
    failed = 0
    try:
        while running:
            pid, status = os.waitpid(-1, 0)
            if pid not in running:
                continue
            running.pop(pid).returncode = code = os.waitstatus_to_exitcode(status)
            if code and not failed:
                failed = code if code > 0 else 128 - code
                for other in running.values():
                    os.kill(other.pid, signal.SIGKILL)
    finally:
        for other in running.values():
            os.kill(other.pid, signal.SIGKILL)
    return failed


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.default_int_handler)
    signal.alarm(LIMIT_S)
    sys.exit(wait(start(sys.argv[2:], int(sys.argv[1]))))
