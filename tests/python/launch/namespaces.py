"""Nodes on one machine: network namespaces, each with two cables to the other one.

Addresses of node i (0 or 1): 10.232.8.(i + 1) on "near", 10.232.9.(i + 1) on "far". A node's commands run
in a mount namespace of their own too, in which its files (hosts, resourceconfig.json) may be laid over those of the
machine; so nothing of it is seen outside.
"""

import atexit
import contextlib
import os
import pathlib
import shlex
import subprocess
import unittest

import suite


class Nodes:
    def __init__(self):
        self.names = [f"shoal-py-{os.getpid()}-{letter}" for letter in "ab"]
        self.processes = []
        atexit.register(self.close)  # when the program is ended in the middle
        self.reason = self._make()  # why there are none; None: they are there

    def _ip(self, *words):
        try:
            command = ["ip", *map(str, words)]
            return subprocess.run(command, capture_output=True, timeout=suite.LIMIT_S).returncode == 0
        except OSError:
            return False

    def _make(self):
        if not all(self._ip("netns", "add", name) for name in self.names):
            return "no right to make network namespaces, or no ip command"
        a, b = self.names
        for number, cable in enumerate(("near", "far")):
            # The ends are made inside, so that no name is taken outside.
            peer = ("peer", "name", cable, "netns", b)
            if not self._ip("-n", a, "link", "add", cable, "type", "veth", *peer):
                return "no virtual Ethernet"
            for index, name in enumerate(self.names):
                address = f"10.232.{8 + number}.{index + 1}/24"
                if not (
                    self._ip("-n", name, "addr", "add", address, "dev", cable)
                    and self._ip("-n", name, "link", "set", cable, "up")
                ):
                    return "the namespaces cannot be given addresses"
        for name in self.names:
            self._ip("-n", name, "link", "set", "lo", "up")
        probe = self.start(0, [["true"]])
        self.wait([probe])
        return None if probe.returncode == 0 else "no right to mount inside of a namespace"

    def use_ipv6(self, index):
        """Instead of IPv4: fd00:8::(i + 1) on "near", fd00:9::(i + 1) on "far"."""
        for number, cable in enumerate(("near", "far")):
            name, address = self.names[index], f"fd00:{8 + number}::{index + 1}/64"
            made = self._ip("-n", name, "addr", "flush", "dev", cable, "scope", "global") and self._ip(
                "-n", name, "addr", "add", address, "dev", cable, "nodad"
            )
            if not made:
                raise unittest.SkipTest("the namespaces cannot be given addresses of IPv6")

    def use_link_local(self):
        """Instead of IPv4: fe80::(i + 1) on "far", which node 1 calls "other". Returns the interfaces' names."""
        a, b = self.names
        made = self._ip("-n", b, "link", "set", "far", "down", "name", "other")
        for index, (name, cable) in enumerate(((a, "far"), (b, "other"))):
            made = made and all(self._ip("-n", name, "addr", "flush", "dev", one) for one in ("near", cable))
            made = made and self._ip("-n", name, "link", "set", cable, "addrgenmode", "none")
            made = made and self._ip("-n", name, "link", "set", cable, "up")
            made = made and self._ip("-n", name, "addr", "add", f"fe80::{index + 1}/64", "dev", cable, "nodad")
        if not made:
            raise unittest.SkipTest("the namespaces cannot be given addresses of IPv6")
        return ["far", "other"]

    def start(self, index, commands, before="", each=None, **more):
        """A node's commands, [[word, ...], ...], side by side; each[i] is added to the environment of number i.
        before: shell text that goes first, for mounts. Returns the process that waits for all."""
        lines = ["set -e", "mount --make-rprivate /", before, "status=0 pids="]
        for number, command in enumerate(commands):
            variables = [f"{name}={value}" for name, value in (each[number] if each else {}).items()]
            lines.append(f"{shlex.join(['env', *variables, *map(str, command)])} & pids=\"$pids $!\"")
        lines.append("for pid in $pids; do wait $pid || status=1; done; exit $status")
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.names[index], "sh", "-c", "\n".join(lines)],
            env=suite.environment(**more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.processes.append(process)
        return process

    def wait(self, processes):
        """The text of all of them together."""
        return "".join(process.communicate(timeout=suite.LIMIT_S)[0] for process in processes)

    def pids(self, index, name):
        """Return the pids of the node's processes of this name."""
        found = []
        for pid in self._pids(self.names[index]):
            with contextlib.suppress(OSError):  # it has ended
                if pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == name:
                    found.append(pid)
        return found

    def close(self):
        """Everything goes; again, nothing is left to go."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdout.close()
        for name in self.names:
            # End what has been started in it and still runs: daemons, which end by themselves, may.
            for pid in self._pids(name):
                try:
                    os.kill(pid, 9)
                except ProcessLookupError:
                    pass
            self._ip("netns", "del", name)

    def _pids(self, name):
        command = ["ip", "netns", "pids", name]
        found = subprocess.run(command, capture_output=True, text=True, timeout=suite.LIMIT_S)
        return [int(pid) for pid in found.stdout.split()]
