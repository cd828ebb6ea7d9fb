"""What stunnel gets on a link, both ways at once: bench_stream between tunnels' ends of its own.

    scripts/cluster.sh run -- python3 tls_stream.py BENCH_STREAM MEBIBYTES

A rank of two, in a namespace each. Each starts one stunnel: what the other one sends arrives at its port
and goes on to bench_stream; what bench_stream sends goes through it to the other's. TLS 1.3 with a key
that both know, and AES-256-GCM, as between daemons. Prints what bench_stream prints.
"""
import os
import socket
import subprocess
import sys
import tempfile
import time

FAR, NEAR = 7201, 7202  # ports: where the other's tunnel ends, where this one's begins
START_S = 20

CONFIG = """foreground = yes
debug = 3
pid =
sslVersion = TLSv1.3
ciphersuites = TLS_AES_256_GCM_SHA384
PSKsecrets = {folder}/key
[in]
accept = {own}:{far}
connect = 127.0.0.1:{port}
[out]
client = yes
accept = 127.0.0.1:{near}
connect = {other}:{far}
PSKidentity = bench
"""


def listens(address, port):
    try:
        with socket.create_connection((address, port), 1):
            return True
    except OSError:
        return False


def main():
    rank, addresses = int(os.environ["RANK"]), os.environ["CLUSTER_ADDRESSES"].split(",")
    stream, mebibytes = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "key"), "w", encoding="ascii") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write("bench:" + "5a" * 32 + "\n")  # protects nothing
        config = os.path.join(folder, "config")
        with open(config, "w", encoding="ascii") as file:
            file.write(CONFIG.format(folder=folder, own=addresses[rank], other=addresses[1 - rank], far=FAR,
                                     near=NEAR, port=os.environ["MASTER_PORT"]))
        with subprocess.Popen(["stunnel", config], stderr=subprocess.DEVNULL) as tunnel:
            try:
                end = time.monotonic() + START_S
                while not all(listens(address, FAR) for address in addresses):
                    if tunnel.poll() is not None or time.monotonic() > end:
                        sys.exit("stunnel does not start")
                    time.sleep(0.05)
                return subprocess.run([stream, mebibytes, str(NEAR)], check=False).returncode
            finally:
                tunnel.terminate()


if __name__ == "__main__":
    sys.exit(main())
