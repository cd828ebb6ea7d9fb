"""The kinds of faults of scripts/chaos.py. A kind is a class with a name, whose first line of text the usage shows:

    strike()    what goes wrong, on `self.node`, at chaos.struck(); then `away_s` seconds pass, which are not counted
    heal()      what must be over for the others to go on; what that takes by itself is added to `away_s`
    mend()      back to a cluster in which nothing is missing; not counted

`chaos` is a chaos.Chaos."""

import os
import pathlib
import signal
import types


class Fault:
    away_s = 0.0
    seen = True  # False: the ranks may notice nothing but time, with `recovery`
    wants_recovery = False  # a job without it does not outlive it
    usual = True  # among those of a run that names none

    def __init__(self, chaos, taken=()):
        """On a node that is not among those taken."""
        self.chaos = chaos
        self.node = chaos.random.choice(sorted(set(self.victims(chaos)) - set(taken)))

    @staticmethod
    def victims(chaos):
        return chaos.rank_nodes()

    def strike(self):
        raise NotImplementedError

    def heal(self):
        pass

    def mend(self):
        pass


class Nothing(Fault):
    """nothing: what steps take"""

    seen = False
    usual = False

    def strike(self):
        self.chaos.struck()


class Rank(Fault):
    """a rank is killed; it comes again as a newcomer"""

    def strike(self):
        self.chaos.take(self.node)

    def mend(self):
        self.chaos.newcomer(self.node)


class Node(Fault):
    """a node is lost: its daemon and its ranks are killed; both are started again"""

    def strike(self):
        self.chaos.take(self.node)  # first, or it would say that its daemon is gone
        self.chaos.daemon_kill(self.node)

    def mend(self):
        self.chaos.daemon_start(self.node)
        self.chaos.newcomer(self.node)


class Cpu(Fault):
    """the daemon of a CPU node is killed, and started again"""

    def __init__(self, chaos, taken=()):
        super().__init__(chaos, taken)
        self.seen = not chaos.options.recovery

    @staticmethod
    def victims(chaos):
        return chaos.cpu_nodes()

    def strike(self):
        self.chaos.daemon_kill(self.node)

    def mend(self):
        self.chaos.daemon_start(self.node)


class Daemon(Fault):
    """the daemon of a node with a rank is killed, and started again; the rank lives"""

    seen = False
    wants_recovery = True

    def strike(self):
        self.chaos.daemon_kill(self.node)

    def heal(self):
        self.away_s += self.chaos.daemon_start(self.node)


class Stop(Cpu):
    """the daemon of a CPU node is stopped (SIGSTOP) until the others do without it, then killed and started"""

    def strike(self):
        self.chaos.daemon_signal(self.node, signal.SIGSTOP)

    def mend(self):
        self.chaos.daemon_kill(self.node)
        self.chaos.daemon_start(self.node)


class StopNode(Stop):
    """the daemon of a node with a rank is stopped, and the rank killed; both are started again"""

    def __init__(self, chaos, taken=()):
        super().__init__(chaos, taken)
        self.seen = True

    @staticmethod
    def victims(chaos):
        return chaos.rank_nodes()

    def strike(self):
        self.chaos.take(self.node)
        super().strike()

    def mend(self):
        super().mend()
        self.chaos.newcomer(self.node)


class Pause(Fault):
    """a rank is stopped for 300 ms"""

    away_s = 0.3
    seen = False

    def strike(self):
        self.chaos.struck()
        self.chaos.rank_of(self.node).process.send_signal(signal.SIGSTOP)

    def heal(self):
        self.chaos.rank_of(self.node).process.send_signal(signal.SIGCONT)


class Reset(Fault):
    """all connections of a node's daemon are reset"""

    seen = False
    wants_recovery = True

    @staticmethod
    def victims(chaos):
        return chaos.rank_nodes() + chaos.cpu_nodes()

    def strike(self):
        # The fault resets connections of shoald alone: shoal cannot mend a rank's connection with torch's store.
        listed = self.chaos.inside(self.node, "ss", "-Htnp", "state", "established")
        ends = (ports_of(line) for line in listed.splitlines() if '"shoald"' in line)
        words = " or ".join(f"( sport = :{here} and dport = :{there} )" for here, there in ends)
        self.chaos.struck()
        if words:
            self.chaos.inside(self.node, "ss", "-K", "-t", "state", "established", words)


class Cable(Reset):
    """a node's link is down for 400 ms"""

    away_s = 0.4  # well below timeouts.peer_ms of a run with many faults

    def link(self, state):
        self.chaos.inside("bridge", "ip", "link", "set", self.node, state)

    def strike(self):
        self.chaos.struck()
        self.link("down")

    def heal(self):
        self.link("up")


KINDS = {
    "none": Nothing,
    "rank": Rank,
    "node": Node,
    "cpu": Cpu,
    "daemon": Daemon,
    "stop": Stop,
    "stop-node": StopNode,
    "pause": Pause,
    "reset": Reset,
    "cable": Cable,
}


class Two:
    """two of the others at once, on two nodes"""

    wants_recovery = False
    usual = True

    def __init__(self, chaos, kinds):
        first = KINDS[chaos.random.choice(kinds)](chaos)
        left = [it for it in kinds if set(KINDS[it].victims(chaos)) - {first.node}]
        second = KINDS[chaos.random.choice(left)](chaos, {first.node})
        self.chaos, self.faults = chaos, [first, second]
        self.node = f"{first.node}+{second.node}"
        self.away_s = max(it.away_s for it in self.faults)
        self.seen = any(it.seen for it in self.faults)

    def strike(self):
        for it in self.faults:
            it.strike()

    def heal(self):
        for it in self.faults:
            it.heal()

    def mend(self):
        for it in self.faults:
            it.mend()


class During(Two):
    """a rank is killed, and one of the others comes when it is noticed, while the next generation forms"""

    def __init__(self, chaos, kinds):
        super().__init__(chaos, kinds)
        taken = {self.faults[1].node}
        self.faults[0] = Rank(chaos, taken)
        self.node = f"{self.faults[0].node}+{self.faults[1].node}"
        self.away_s = self.faults[1].away_s
        self.seen = True

    def strike(self):
        said = self.chaos.losses
        self.faults[0].strike()
        self.chaos.wait_until_lost(said)
        self.faults[1].strike()


PAIRS = {"two": Two, "during": During}


def make(chaos, kind, kinds):
    """kinds: those of which a pair is made."""
    return KINDS[kind](chaos) if kind in KINDS else PAIRS[kind](chaos, kinds)


def places(kinds, nodes, cpu_nodes):
    """How many nodes the single ones of these kinds can hit, of so many with ranks and so many without."""
    named = types.SimpleNamespace(
        rank_nodes=lambda: [f"node{i}" for i in range(nodes)], cpu_nodes=lambda: [f"cpu{i}" for i in range(cpu_nodes)]
    )
    return len({node for kind in kinds if kind in KINDS for node in KINDS[kind].victims(named)})


def ports_of(line):
    """Return the two ports of a connection, as ss -n lists it: here, there."""
    _, _, here, there, *_ = line.split()
    return here.rsplit(":", 1)[1], there.rsplit(":", 1)[1]


def daemons_in(pids):
    """Yield the pids that are daemons."""
    for pid in pids:
        try:
            if pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == "shoald":
                yield int(pid)
        except OSError:
            pass  # it has just ended


def signal_to(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
