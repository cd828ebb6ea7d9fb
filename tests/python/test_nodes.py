#!/usr/bin/python3
"""Launchers on one node and on two (network namespaces): torchrun, srun, SageMaker, a script that spawns
its ranks; no daemon is configured, or one at the default path, or one on each node by SHOAL_SOCKET."""

import json
import os
import pathlib
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

import suite
from launch import namespaces, with_daemon

SCRIPT = suite.RANKS / "ranks_node.py"


def across(node):
    """torchrun's options for two nodes."""
    meeting = ["--rdzv_backend=c10d", "--rdzv_endpoint=10.232.8.1:29500", "--rdzv_id=nodes"]
    host = f"--rdzv_conf=is_host={node == 0},read_timeout=60"
    return ["--nnodes=2", "--max_restarts=0", *meeting, host, f"--local_addr=10.232.8.{node + 1}"]


def places(text):
    """Return the places that the ranks have said, by rank."""
    found = [json.loads(line) for line in re.findall(r"PLACE (\{.*\})", text)]
    return sorted(found, key=lambda place: place["rank"])


class Launchers(unittest.TestCase):
    def check_end(self, ranks):
        """The daemons that the ranks have started end with them, and leave nothing."""
        folders = {pathlib.Path(place["socket"]).parent for place in ranks}
        suite.wait_for_daemons(folders)
        self.assertEqual([folder for folder in folders if folder.exists()], [])
        return len(folders)


class OneNode(Launchers):
    def test_torchrun(self):
        """It starts the ranks once more after one has died."""
        options = ["--rdzv_backend=c10d", "--rdzv_endpoint=127.0.0.1:0", "--max_restarts=1"]
        finished = suite.run([*suite.torchrun(*options), SCRIPT, "die-once"])
        self.assertEqual(finished.returncode, 0, finished.stdout)
        ranks = places(finished.stdout)
        self.assertEqual([place["in_node"] for place in ranks], [[0, 2], [1, 2]], finished.stdout)
        self.assertEqual(self.check_end(ranks), 1)

    def test_torchrun_and_ranks_that_die_as_the_job_begins(self):
        """The job has one name and one daemon: what is left of it is not in the way of the next."""
        with tempfile.TemporaryDirectory(prefix="shoal-restarted-") as folder, suite.reserved_port() as port:
            path, program = f"{folder}/shoald.sock", suite.BUILD / "bin" / "shoald"
            configuration = pathlib.Path(folder) / "shoald.json"
            configuration.write_text(json.dumps({"socket": {"path": path}, "listen": {"port": port}}))
            with with_daemon.readiness(pathlib.Path(folder)) as notify:
                daemon = subprocess.Popen([program, "--config", configuration], env={**os.environ, "NOTIFY_SOCKET": notify})
            try:
                options = ["--rdzv_backend=c10d", "--rdzv_endpoint=127.0.0.1:0", "--max_restarts=3"]
                command = [*suite.torchrun(*options), suite.RANKS / "ranks_restarted.py", suite.BUILD / "bin" / "shoalctl"]
                finished = suite.run(command, SHOAL_SOCKET=path)
            finally:
                daemon.terminate()
                self.assertEqual(daemon.wait(), 0)
        self.assertEqual(finished.returncode, 0, finished.stdout)
        trained = sorted(re.findall(r"TRAINED (.*)", finished.stdout))
        self.assertEqual(trained, ["0 of 2 after 3", "1 of 2 after 3"], finished.stdout)

    def test_a_script_that_spawns_its_ranks(self):
        with suite.reserved_port() as port:
            finished = suite.run([sys.executable, suite.RANKS / "ranks_spawned.py", port])
        self.assertEqual(finished.returncode, 0, finished.stdout)
        trained = re.findall(r"^PARAMETERS trained (.*)", finished.stdout, re.MULTILINE)
        self.assertEqual((len(trained), len(set(trained))), (4, 1), finished.stdout)
        loaded = re.findall(r"^PARAMETERS loaded (.*)", finished.stdout, re.MULTILINE)
        self.assertEqual((len(loaded), len(set(loaded))), (2, 1), finished.stdout)


# Without torch, which takes seconds to load.
ADDRESS = f"""
import importlib.util
found = importlib.util.spec_from_file_location("_hosts", "{suite.TREE}/worker/python/shoal/torch/_hosts.py")
module = importlib.util.module_from_spec(found)
found.loader.exec_module(module)
print(module.own_address(), module.from_here("fe80::7%theirs"))"""
# Commands in a network of its own, whose host is called box; the environment; and what the address is then, or what is
# said of it. A cable is e0 or e1.
ADDRESSES = {
    "debian": (("127.0.1.1 box",), ("e0 10.9.0.1/24",), {"MASTER_ADDR": "box"}, "10.9.0.1"),
    "the host's name": (("10.9.1.1 box",), ("e0 10.9.0.1/24", "e1 10.9.1.1/24"), {}, "10.9.1.1"),
    "the master": ((), ("e0 10.9.0.1/24", "e1 10.9.1.1/24"), {"MASTER_ADDR": "10.9.1.7"}, "10.9.1.1"),
    "default route": ((), ("e0 10.9.0.1/24", "e1 10.9.1.1/24", "default via 10.9.1.7"), {}, "10.9.1.1"),
    "several": ((), ("e0 10.9.0.1/24", "e1 10.9.1.1/24"), {}, "set SHOAL_INTERFACE to the one of e0 (10.9.0.1), e1 (10"),
    "named": ((), ("e0 10.9.0.1/24", "e1 10.9.1.1/24"), {"SHOAL_INTERFACE": "e1"}, "10.9.1.1"),
    "IPv6": ((), ("e0 fd00::1/64",), {}, "fd00::1"),
    "IPv6, the master": ((), ("e0 fd00::1/64", "e1 fd01::1/64"), {"MASTER_ADDR": "fd01::7"}, "fd01::1"),
    "IPv6, named": ((), ("e0 fd00::1/64", "e1 fd01::1/64"), {"SHOAL_INTERFACE": "e1"}, "fd01::1"),
    "link-local, named": ((), ("e0 fe80::1/64",), {"SHOAL_INTERFACE": "e0"}, "%e0"),
    "link-local, the master": ((), ("e0 fe80::1/64",), {"MASTER_ADDR": "fe80::7%e0"}, "%e0 fe80::7%e0\n"),
    "link-local, no interface": ((), ("e0 fe80::1/64",), {"MASTER_ADDR": "fe80::7"}, "set SHOAL_INTERFACE to the one of e0"),
    "link-local, several": ((), ("e0 fe80::1/64",), {}, "set SHOAL_INTERFACE to the one of e0"),
    "link-local beside IPv4": ((), ("e0 10.9.0.1/24",), {"SHOAL_INTERFACE": "e0"}, "10.9.0.1 fe80::7%e0\n"),
    "no such interface": ((), ("e0 fe80::1/64",), {"SHOAL_INTERFACE": "e7"}, "e7 has no IPv4 and no IPv6 address"),
    "no network": (("127.0.1.1 box",), (), {"MASTER_ADDR": "box"}, "127.0.0.1"),
}


class Addresses(unittest.TestCase):
    """The address that a node publishes."""

    def test_addresses(self):
        probe = ["unshare", "-nmu", "ip", "link", "set", "lo", "up"]
        if not (shutil.which("unshare") and shutil.which("ip")) or suite.run(probe).returncode != 0:
            self.skipTest("no right to make namespaces, or no ip command")
        for name, (hosts, network, variables, expected) in ADDRESSES.items():
            with self.subTest(name):
                self.assertIn(expected, self.said(hosts, network, variables))

    def said(self, hosts, network, variables):
        with tempfile.NamedTemporaryFile("w", prefix="shoal-hosts-") as file:
            file.write("\n".join(("127.0.0.1 localhost", *hosts, "")))
            file.flush()
            lines = ["set -e", "mount --make-rprivate /", f"mount --bind {file.name} /etc/hosts", "hostname box"]
            lines += ["ip link set lo up"]
            for word in network:
                if word.startswith("default"):
                    lines.append(f"ip route add {word}")
                else:
                    cable, address = word.split()
                    lines += [f"ip link add {cable} type veth peer {cable}p", f"ip link set {cable}p up"]
                    lines += [f"ip link set {cable} up"]
                    nodad = "nodad" if ":" in address else ""
                    lines.append(f"ip addr add {address} dev {cable} {nodad}")
            lines.append(f"exec {sys.executable} -c {shlex.quote(ADDRESS)}")
            command = ["unshare", "-nmu", "bash", "-c", "\n".join(lines)]
            return suite.run(command, **variables).stdout


class TwoNodes(Launchers):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="shoal-nodes-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.nodes = namespaces.Nodes()
        self.addCleanup(self.nodes.close)
        if self.nodes.reason:
            self.skipTest(self.nodes.reason)

    def check(self, processes, size, network):
        """Ranks were on two nodes; the daemons that they started listened on one network."""
        text = self.nodes.wait(processes)
        self.assertEqual([process.returncode for process in processes], [0, 0], text)
        ranks, half = places(text), size // 2
        self.assertEqual([place["rank"] for place in ranks], list(range(size)), text)
        for place in ranks:
            node, local = divmod(place["rank"], half)
            self.assertEqual((place["nodes"], place["in_node"]), (2, [local, half]))
            self.assertEqual(place["local_rank"], local)
            self.assertEqual(place["listen"], f"10.232.{network}.{node + 1}")
        self.assertEqual(self.check_end(ranks), 2)

    def test_torchrun(self):
        self.check(
            [self.nodes.start(node, [[*suite.torchrun(*across(node)), SCRIPT]]) for node in range(2)],
            4,
            8,
        )

    def start_daemons(self):
        """One on each node, of one roster. Returns their sockets, and the processes that wait for them."""
        secret = self.folder / "secret"
        secret.write_text(secrets.token_hex(32))
        secret.chmod(0o600)
        sockets = [str(self.folder / f"{node}.sock") for node in range(2)]
        processes = []
        with with_daemon.readiness(self.folder, 2) as notify:
            for node in range(2):
                configuration = self.folder / f"{node}.json"
                servers = [{"name": f"n{i}", "address": f"10.232.8.{i + 1}:7070"} for i in range(2)]
                own = {"node": f"n{node}", "secret_file": str(secret), "servers": servers}
                own.update(socket={"path": sockets[node]}, listen={"address": f"10.232.8.{node + 1}"})
                configuration.write_text(json.dumps(own))
                command = [suite.BUILD / "bin" / "shoald", "--config", configuration]
                processes.append(self.nodes.start(node, [command], NOTIFY_SOCKET=notify))
        return sockets, processes

    def test_torchrun_with_daemons_of_the_nodes(self):
        """SHOAL_SOCKET names one on each: they serve the job, with no other beside them, and stay."""
        sockets, daemons = self.start_daemons()
        numbers = [self.nodes.pids(node, "shoald") for node in range(2)]
        jobs = [
            self.nodes.start(node, [[*suite.torchrun(*across(node)), SCRIPT]], SHOAL_SOCKET=sockets[node])
            for node in range(2)
        ]
        text = self.nodes.wait(jobs)
        self.assertEqual([job.returncode for job in jobs], [0, 0], text)
        ranks = places(text)
        self.assertEqual([place["rank"] for place in ranks], list(range(4)), text)
        for place in ranks:
            node, local = divmod(place["rank"], 2)
            self.assertEqual((place["nodes"], place["in_node"]), (2, [local, 2]))
            self.assertEqual(place["socket"], sockets[node])
            self.assertEqual(place["daemons"], numbers[node])
        for node in range(2):
            self.assertEqual(self.nodes.pids(node, "shoald"), numbers[node])
            (number,) = numbers[node]
            os.kill(number, signal.SIGTERM)
        text = self.nodes.wait(daemons)
        self.assertEqual([daemon.returncode for daemon in daemons], [0, 0], text)

    def test_srun(self):
        """The variables that srun sets are enough, on hosts that have names."""
        hosts = self.folder / "hosts"
        hosts.write_text("127.0.0.1 localhost\n10.232.8.1 shoal-n07\n10.232.8.2 shoal-n08\n")
        self.check(
            [
                self.nodes.start(
                    node,
                    [[sys.executable, SCRIPT]] * 2,
                    before=f"mount --bind {hosts} /etc/hosts",
                    each=[
                        {"SLURM_PROCID": str(2 * node + local), "SLURM_LOCALID": str(local)}
                        for local in range(2)
                    ],
                    SLURM_NTASKS="4",
                    SLURM_JOB_ID="4711",
                    SLURM_STEP_ID="0",
                    SLURM_JOB_NODELIST="shoal-n[01,07-08]",
                    SLURM_STEP_NODELIST="shoal-n[07-08]",
                )
                for node in range(2)
            ],
            4,
            8,
        )

    def start_named(self, hosts, **more):
        """Ranks that look for a master by its name, which means what hosts[node] says."""
        processes = []
        for node, text in enumerate(hosts):
            path = self.folder / f"hosts{node}"
            path.write_text(f"127.0.0.1 localhost\n{text}\n")
            before = f"mount --bind {path} /etc/hosts"
            processes.append(self.start_ranks(node, before, MASTER_ADDR="shoal-master", **more))
        return processes

    def start_ranks(self, node, before="", **more):
        """Two ranks of four, by torch's own variables."""
        each = [
            {"RANK": 2 * node + local, "LOCAL_RANK": local, "WORLD_SIZE": 4, "MASTER_PORT": 29500}
            for local in range(2)
        ]
        return self.nodes.start(node, [[sys.executable, SCRIPT]] * 2, before=before, each=each, **more)

    def test_a_master_whose_name_is_its_loopback(self):
        """Debian gives a host's own name 127.0.1.1: the first node takes the interface towards the other one."""
        own = f"127.0.1.1 {socket.gethostname()}"
        hosts = (f"{own} shoal-master", f"{own}\n10.232.8.1 shoal-master")
        self.check(self.start_named(hosts), 4, 8)

    def test_ipv6_alone(self):
        for node in range(2):
            self.nodes.use_ipv6(node)
        hosts = ("fd00:8::1 shoal-master", "fd00:8::1 shoal-master")
        processes = self.start_named(hosts, SHOAL_INTERFACE="far")
        text = self.nodes.wait(processes)
        self.assertEqual([process.returncode for process in processes], [0, 0], text)
        listen = [place["listen"] for place in places(text)]
        self.assertEqual(listen, [f"fd00:9::{node}" for node in (1, 1, 2, 2)], text)

    def test_link_local_addresses(self):
        """The two nodes call their interfaces by different names."""
        interfaces = self.nodes.use_link_local()
        own = [f"fe80::{node + 1}%{name}" for node, name in enumerate(interfaces)]
        hosts = ["--hosts", ",".join(own), "-n", "2"]
        script = ["--", sys.executable, SCRIPT]
        ways = {
            "torch's variables": lambda node, name: self.start_ranks(
                node, MASTER_ADDR=f"fe80::1%{name}", SHOAL_INTERFACE=name
            ),
            "the master alone": lambda node, name: self.start_ranks(node, MASTER_ADDR=f"fe80::1%{name}"),
            "shoalrun": lambda node, name: self.nodes.start(
                node, [[suite.BUILD / "bin" / "shoalrun", *hosts, "--node-rank", node, *script]]
            ),
        }
        for what, start in ways.items():
            with self.subTest(what):
                processes = [start(node, name) for node, name in enumerate(interfaces)]
                text = self.nodes.wait(processes)
                self.assertEqual([process.returncode for process in processes], [0, 0], text)
                listen = [place["listen"] for place in places(text)]
                self.assertEqual(listen, [own[node] for node in (0, 0, 1, 1)], text)

    def test_sagemaker(self):
        """Hosts and the interface are of resourceconfig.json; no variable names a master."""
        hosts = self.folder / "hosts"
        hosts.write_text("127.0.0.1 localhost\n10.232.8.1 algo-1\n10.232.8.2 algo-2\n")
        (self.folder / "resourceconfig.json").write_text(
            json.dumps({"hosts": ["algo-2", "algo-1"], "network_interface_name": "far"})
        )
        mounts = f"""
            mount --bind {hosts} /etc/hosts
            mount -t tmpfs tmpfs /opt
            mkdir -p /opt/ml/input/config
            cp {self.folder}/resourceconfig.json /opt/ml/input/config"""
        self.check(
            [
                self.nodes.start(
                    node,
                    [[sys.executable, SCRIPT]],
                    before=mounts,
                    RANK=str(node),
                    WORLD_SIZE="2",
                    LOCAL_RANK="0",
                )
                for node in range(2)
            ],
            2,
            9,
        )

    def test_a_daemon_at_the_default_path(self):
        """It is used, and is there for the next job."""
        shoald = suite.BUILD / "bin" / "shoald"
        process = self.nodes.start(
            0,
            [[sys.executable, suite.LAUNCH / "with_daemon.py", shoald, 2, 1, SCRIPT]],
            before="mount -t tmpfs tmpfs /run; mkdir /run/shoal",
        )
        text = self.nodes.wait([process])
        self.assertEqual(process.returncode, 0, text)
        ranks = places(text)
        self.assertEqual([place["rank"] for place in ranks], [0, 0], text)
        self.assertEqual({place["socket"] for place in ranks}, {"/run/shoal/shoald.sock"})


del Launchers  # not a case by itself

if __name__ == "__main__":
    sys.exit(suite.main())
