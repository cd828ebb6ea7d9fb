"""A fork server: a process that has loaded torch, and forks a rank each time that it is asked to, so that a rank need
not load torch for a second and more.

    fork_server.py SOCKET [MODULE...]   loads the modules, then serves on the descriptor SOCKET until it is closed

A rank goes on as an interpreter that has just begun: with its own environment, arguments, folder, streams and signals,
with the names of its script alone in __main__, and with the end of an interpreter: an exception on stderr, the exit
status, what atexit has to do, the teardown of the modules. What torch reads from the environment as it is loaded is the
server's. The parent of a rank is the server, which passes its status on.
"""

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import sys

STREAMS = 3


def serve(requests):
    """Serve until the other end is closed; return in each rank, with its command."""
    running = {}  # by its pidfd: process id, the socket for the status
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor != requests.fileno():
                poll.unregister(descriptor)
                os.close(descriptor)
                pid, its = running.pop(descriptor)
                end(pid, its)
                continue
            request, descriptors, _, _ = socket.recv_fds(requests, 1 << 20, STREAMS + 1)
            if not request:
                return kill(running)
            pid = os.fork()
            if pid == 0:
                for _, its in running.values():
                    its.detach()
                command, environment, folder = json.loads(request)
                begin(environment, folder, descriptors)
                return command
            its = socket.socket(fileno=descriptors.pop())
            for stream in descriptors:
                os.close(stream)
            descriptor = os.pidfd_open(pid)
            running[descriptor] = pid, its
            poll.register(descriptor, select.POLLIN)
            tell(its, pid)


def tell(its, number):
    """Say a number. Nobody may be there who wants to know."""
    with contextlib.suppress(ConnectionError):
        its.send(str(number).encode())


def end(pid, its):
    """Pass the status on. Until then the process id is nobody else's."""
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with its:
        tell(its, ended.si_status << 8 if ended.si_code == os.CLD_EXITED else ended.si_status)
    os.waitpid(pid, 0)


def kill(running):
    for pid, its in running.values():
        os.kill(pid, signal.SIGKILL)
        end(pid, its)


def begin(environment, folder, descriptors):
    """Do in a rank what exec and the beginning of an interpreter do."""
    for number in range(STREAMS):
        os.dup2(descriptors[number], number)
    os.closerange(STREAMS, max(map(int, os.listdir("/proc/self/fd"))) + 1)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # All forks would draw the same numbers.
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


def main(number, *modules):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a rank gets it, and whoever has started it ends this
    for module in modules:
        importlib.import_module(module)
    if len(os.listdir("/proc/self/task")) > 1:
        sys.exit(f"no fork server: {' '.join(modules)} started threads, which a fork has not")
    requests = socket.socket(fileno=number)
    requests.send(b"ready")
    command = serve(requests)
    if not command:
        return
    requests.detach()
    sys.argv = command[1:]
    script = sys.argv[0]
    sys.path[0] = os.path.dirname(script)
    with open(script, "rb") as file:
        code = compile(file.read(), script, "exec")
    own = vars(sys.modules["__main__"])
    kept = {name: own[name] for name in ("__name__", "__doc__", "__package__", "__spec__", "__builtins__")}
    own.clear()
    own.update(kept, __doc__=None, __file__=script)
    exec(code, own)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
