"""Measure stunnel on a link, both ways at once: bench_stream between tunnels' ends of its own.

    scripts/cluster.sh run -- python3 tls_stream.py BENCH_STREAM MEBIBYTES

A rank of two, in a namespace each. Data from the other rank arrives at one stunnel of this one and goes on to
bench_stream; data that bench_stream sends goes through a second one to the other's first. TLS 1.3 with a key that both
know, and AES-128-GCM: with such a key stunnel cannot have the 256 bits that daemons use, which cost more. Prints what
bench_stream prints.
"""
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time

FAR, NEAR = 7201, 7202  # ports: the tunnels' ends
READY, DONE = 7203, 7204  # and where the ranks meet
START_S, RUN_S = 20, 120

COMMON = """foreground = yes
debug = 3
pid =
sslVersion = TLSv1.3
ciphersuites = TLS_AES_128_GCM_SHA256
PSKsecrets = {folder}/key
"""
ARRIVES = """[in]
accept = {own}:{far}
connect = 127.0.0.1:{port}
"""
LEAVES = """[out]
client = yes
accept = 127.0.0.1:{near}
connect = {other}:{far}
PSKidentity = bench
"""


def listening():
    """Ports of this namespace that something listens on. Nobody is connected to, who takes one connection."""
    with open("/proc/net/tcp", encoding="ascii") as file:
        rows = [line.split() for line in file.readlines()[1:]]
    return {int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A"}


def wait_until(what, test):
    end = time.monotonic() + START_S
    while not test():
        if time.monotonic() > end:
            sys.exit(f"tls_stream: {what} is not there after {START_S} s")
        time.sleep(0.02)


def meet(own, other, port):
    """Both ranks are here when it returns: each has connected to the other."""
    with socket.create_server((own, port)) as server:
        server.settimeout(RUN_S)
        wait_until("the other rank", lambda: socket_connects(other, port))
        server.accept()[0].close()


def socket_connects(address, port):
    try:
        with socket.create_connection((address, port), 1):
            return True
    except OSError:
        return False


@contextlib.contextmanager
def started(argv, errors=None):
    with subprocess.Popen(argv, stderr=errors) as process:
        try:
            yield process
        finally:
            process.terminate()


def main():
    rank, addresses = int(os.environ["RANK"]), os.environ["CLUSTER_ADDRESSES"].split(",")
    stream, mebibytes = sys.argv[1:]
    own, other, port = addresses[rank], addresses[1 - rank], int(os.environ["MASTER_PORT"])
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:

        def tunnel(name, text):
            path = os.path.join(folder, name)
            with open(path, "w", encoding="ascii") as file:
                file.write((COMMON + text).format(folder=folder, own=own, other=other, far=FAR, near=NEAR, port=port))
            stack.enter_context(started(["stunnel", path], subprocess.DEVNULL))

        with open(os.open(os.path.join(folder, "key"), os.O_CREAT | os.O_WRONLY, 0o600), "w",
                  encoding="ascii") as file:
            file.write("bench:" + "5a" * 32 + "\n")  # protects nothing
        process = stack.enter_context(started([stream, mebibytes, str(NEAR)]))
        tunnel("in", ARRIVES)
        wait_until("what the data arrives at", lambda: {port, FAR} <= listening())
        # Only when both ends are there may data leave: a tunnel that finds nobody gives up.
        meet(own, other, READY)
        tunnel("out", LEAVES)
        code = process.wait(RUN_S)
        meet(own, other, DONE)  # what it has sent may still be in the tunnel
        return code


if __name__ == "__main__":
    sys.exit(main())
