"""How the ranks of a job find their daemons, through torch's store.

A daemon that is configured is used: SHOAL_SOCKET, or one that answers at the default path. Without
one, the first rank of each node starts a daemon for the job (_daemon.py) and tells the others; but where all ranks
have a group already whose daemons were started in one meeting, those serve the new job too.

    every rank    -> node/RANK      where it runs, which daemons are there, and a mark that no other process has
    rank 0        -> plan/MARK      for each rank: the name of this meeting
    rank 0        -> NAME/plan      the job's name (of pg_options, of SHOAL_JOB, or one that nobody has), the nodes in
                                    order, which daemon
    every rank    -> NAME/met/RANK  it has seen that
    rank 0        -> NAME/next      NAME when all have, else the name of the meeting that follows
    first of node -> NAME/address/NODE   where the other daemons will reach its daemon
    rank 0        -> NAME/roster         the addresses, the secret that the daemons share
    first of node -> NAME/socket/NODE    the daemon's socket, for the ranks of the node

Rank 0 gathers, so that the number of look-ups grows with the ranks and not with their square.

A launcher that starts all ranks anew may give them the store of an earlier attempt, with what is in it. For this reason
rank 0 takes an answer for a rank's only when the rank has seen the plan that was made from that answer, and else makes
another plan. A rank that is started anew by itself, once the others have met, waits for its timeout.
"""

import contextlib
import datetime
import itertools
import json
import os
import secrets
import socket
import sys
import time
import weakref

import torch.distributed as dist

from shoal import errors
from shoal.torch import _daemon, _hosts

DEFAULT_SOCKET = "/run/shoal/shoald.sock"
# Rank 0 waits so long for ranks to see its plan before it looks whether they have answered anew.
_SLICE = datetime.timedelta(milliseconds=500)
_SAY_S = 10  # so long a rank waits before it says for whom
_launched = itertools.count()  # meetings of all ranks that this process was launched with
_places = weakref.WeakSet()  # whose daemons ranks have started


class Place:
    """Where a rank is: its job, its daemon's socket, its number on the node."""

    def __init__(self, job, socket_path, local_rank, local_size, daemon=None, membership=None, name=None, started=None):
        self.job = job
        self.name = name  # of the meeting, which no other has; None without one
        self.socket_path = socket_path
        self.local_rank = local_rank
        self.local_size = local_size
        self._daemon = daemon  # the one that this process has started
        self._membership = membership  # keeps an embedded daemon alive
        self._started = started  # the meeting in which it was started
        if membership is not None:
            _places.add(self)

    @property
    def is_embedded(self):
        """Whether ranks have started its daemon."""
        return self._membership is not None

    def started_in(self):
        """The meeting in which its daemon was started, while that lives; else None."""
        if self._membership is None:
            return None
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            try:
                probe.connect(self.socket_path)
            except BlockingIOError:
                pass  # it is there, and busy
            except OSError:
                return None
        return self._started

    def of_job(self, job, name=None, local_rank=-1, local_size=None):
        """Return the Place of this rank in another job; the embedded daemon stays alive for it too."""
        membership = None if self._membership is None else os.dup(self._membership)
        return Place(
            job, self.socket_path, local_rank, local_size or self.local_size, None, membership, name, self._started
        )

    def settled(self):
        """All ranks have joined, or this one has not: the daemon no longer needs this process's
        own descriptors."""
        if self._daemon:
            self._daemon.settled()

    def leave(self):
        """The embedded daemon ends when all its ranks have left."""
        if self._membership is not None:
            os.close(self._membership)
            self._membership = None


def meet(store, rank, size, timeout, job=None):
    """Every rank calls it with the same store, and the same name for the job (None: any); returns its Place. An error
    on one rank is raised on all that wait for it."""
    given = _given_socket()
    told = {"node": _hosts.node_identity(), "given": bool(given), "job": job, "mark": secrets.token_hex(8)}
    told["name"] = _hosts.node_name()
    told["launched"] = _launched_name(rank, size)
    places = {place.started_in(): place for place in list(_places)}
    told["started"] = sorted(filter(None, places))
    told["address"] = None if given or size == 1 else _hosts.address_towards_master()
    store.set(f"node/{rank}", json.dumps(told))
    name = _gather(store, size, timeout) if rank == 0 else _follow(store, rank, told["mark"], timeout)
    store = dist.PrefixStore(name, store)
    plan = _get(store, "plan", timeout, "rank 0")
    node = plan["node_of"][rank]
    local = [other for other, its in enumerate(plan["node_of"]) if its == node]
    local_rank = local.index(rank)
    if plan["given"]:
        return Place(plan["job"], given, local_rank, len(local), name=name)
    if plan["started"]:
        return places[plan["started"]].of_job(plan["job"], name, local_rank, len(local))
    daemon = None
    if local_rank == 0:
        owed = [f"address/{node}", f"socket/{node}"] + (["roster"] if rank == 0 else [])
        with _telling(store, rank, owed):
            daemon = _start_daemon(store, rank, node, plan, timeout)
    told = _get(store, f"socket/{node}", timeout, f"rank {local[0]}")
    membership = os.open(told["alive"], os.O_WRONLY | os.O_CLOEXEC)
    _daemon.be_taken_before_it()
    return Place(plan["job"], told["socket"], local_rank, len(local), daemon, membership, name, started=name)


def place_of_newcomer(job):
    """Without a store: where a process is that comes to a job that is there. A daemon which ranks of that job have
    started knows of no other node, and ends with them, so that one is not looked for."""
    given = _given_socket()
    if not given:
        raise errors.DisconnectedError(
            f"no daemon is there (SHOAL_SOCKET, or {DEFAULT_SOCKET}), through which job '{job}' could be joined"
        )
    local_size = os.environ.get("LOCAL_WORLD_SIZE", "")
    return Place(job, given, -1, int(local_size) if local_size.isdigit() and int(local_size) > 0 else 1)


def _launched_name(rank, size):
    """Return SHOAL_JOB where the ranks that meet are those that a launcher has started, for the first time; else
    None. Another job of these processes needs a name of its own."""
    name, environment = os.environ.get("SHOAL_JOB"), (os.environ.get("RANK"), os.environ.get("WORLD_SIZE"))
    return name if name and environment == (str(rank), str(size)) and next(_launched) == 0 else None


def _start_daemon(store, rank, node, plan, timeout):
    """Start the daemon of this node; its first rank calls it."""
    daemon = _daemon.EmbeddedDaemon(plan["nodes"], node, list(filter(None, plan["towards"])))
    try:
        store.set(f"address/{node}", json.dumps(daemon.address))
        if rank == 0:
            store.set("roster", json.dumps(_make_roster(store, plan, timeout)))
        daemon.start(_get(store, "roster", timeout, "rank 0"))
    except BaseException:
        daemon.discard()
        raise
    store.set(
        f"socket/{node}", json.dumps({"socket": daemon.socket_path, "alive": daemon.alive_path})
    )
    return daemon


class _Told(Exception):
    """The error of another rank, which caused this one's."""


@contextlib.contextmanager
def _telling(store, rank, keys):
    """An error goes under these keys too, for those who wait for them."""
    try:
        yield
    except Exception as problem:
        text = str(problem) if isinstance(problem.__cause__, _Told) else f"on rank {rank}: {problem}"
        code = getattr(problem, "code", errors.SystemCallError.code)
        with contextlib.suppress(RuntimeError):  # the store may be what has failed
            for key in keys:
                store.set(key, json.dumps({"error": text, "code": code}))
        raise


def _wait(store, keys, left_s, missing):
    """Wait for keys of the store; say once, when that takes long, what `missing()` says; None: another rank does."""
    soon_s = min(left_s, _SAY_S)
    try:
        store.wait(keys, datetime.timedelta(seconds=soon_s))
        return
    except RuntimeError:
        if left_s <= soon_s:
            raise
    what = None if store.check(keys) else missing()
    if what:
        rank = os.environ.get("RANK", "?")
        print(f"shoal: rank {rank} waits for its job to begin: {what}", file=sys.stderr, flush=True)
    store.wait(keys, datetime.timedelta(seconds=left_s - soon_s))


def _get(store, key, timeout, who, deadline=None, missing=None):
    """Return what `who` has put under the key, or raise the error that it has put there instead. deadline: of
    time.monotonic(), where the timeout began earlier. missing: as _wait() has it."""
    left_s = timeout.total_seconds() if deadline is None else max(0.001, deadline - time.monotonic())
    try:
        _wait(store, [key], left_s, missing or (lambda: f"{who} has not joined"))
    except RuntimeError as problem:
        raise errors.TimeoutError(
            f"timed out: {who} has not joined within {timeout.total_seconds():g} s ({key}: {problem})"
        ) from problem
    told = json.loads(store.get(key))
    if isinstance(told, dict) and "error" in told:
        raise errors.make_error(told["code"], told["error"]) from _Told()
    return told


def _given_socket():
    """The path of a daemon that is there already, or None."""
    path = os.environ.get("SHOAL_SOCKET")
    if path:
        return path
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(5)
        try:
            probe.connect(DEFAULT_SOCKET)
        except OSError:
            return None
    return DEFAULT_SOCKET


def _gather(store, size, timeout):
    """Return, on rank 0, the name of a meeting whose plan all ranks have seen."""
    deadline = time.monotonic() + timeout.total_seconds()
    owed = []  # keys that ranks wait for
    with _telling(store, 0, owed):
        while True:
            answers = _answers(store, size, owed, deadline, timeout)
            name = secrets.token_hex(8)
            store.set(f"{name}/plan", json.dumps(_plan_or_error(answers)))
            for key in owed:
                store.set(key, json.dumps(name))
            owed[:] = [f"{name}/next"]
            if _all_have_seen(store, name, answers, deadline, timeout):
                store.set(f"{name}/next", json.dumps(name))
                return name


def _answers(store, size, owed, deadline, timeout):
    """Return what all ranks have answered. owed: gets the key of each that waits for the plan."""
    answers = []

    def missing():
        ranks = [str(rank) for rank in range(size) if not store.check([f"node/{rank}"])]
        return f"rank {ranks[0]} has not joined" if len(ranks) == 1 else f"ranks {', '.join(ranks)} have not joined"

    for rank in range(size):
        try:
            answers.append(_get(store, f"node/{rank}", timeout, f"rank {rank}", deadline, missing))
        except Exception:
            come = [f"node/{later}" for later in range(rank + 1, size) if store.check([f"node/{later}"])]
            owed += [f"plan/{json.loads(store.get(key))['mark']}" for key in come]
            raise
        owed.append(f"plan/{answers[rank]['mark']}")
    return answers


def _all_have_seen(store, name, answers, deadline, timeout):
    """Wait for all ranks. False: a rank has answered anew, so that its first answer was of an earlier attempt."""
    missing = list(range(1, len(answers)))
    while missing:
        try:
            store.wait([f"{name}/met/{rank}" for rank in missing], _SLICE)
            break
        except RuntimeError:  # the slice is over
            missing = [rank for rank in missing if not store.check([f"{name}/met/{rank}"])]
        if any(json.loads(store.get(f"node/{rank}")) != answers[rank] for rank in missing):
            return False
        if missing and time.monotonic() >= deadline:
            raise errors.TimeoutError(f"timed out: rank {missing[0]} has not joined within {timeout.total_seconds():g} s")
    return all(json.loads(store.get(f"node/{rank}")) == answer for rank, answer in enumerate(answers))


def _follow(store, rank, mark, timeout):
    """Return, on every other rank, the name on which rank 0 has settled."""
    deadline = time.monotonic() + timeout.total_seconds()

    def missing():  # rank 0 says whom it waits for
        return None if store.check(["node/0"]) else "rank 0 has not joined"

    name, following = None, _get(store, f"plan/{mark}", timeout, "rank 0", missing=missing)
    while following != name:
        name = following
        store.set(f"{name}/met/{rank}", "seen")
        while following == name and time.monotonic() < deadline:
            try:
                store.wait([f"{name}/next"], _SLICE)
                break
            except RuntimeError:  # the slice is over; a rank 0 that was started anew has made another plan
                following = _get(store, f"plan/{mark}", timeout, "rank 0", deadline)
        if following == name:
            following = _get(store, f"{name}/next", timeout, "rank 0", deadline)
    return name


def _plan_or_error(answers):
    """Return a plan, or the error that all raise once they have seen it: it may be of answers of an earlier attempt."""
    try:
        return _make_plan(answers)
    except errors.ShoalError as problem:
        return {"error": str(problem), "code": problem.code}


def _make_plan(answers):
    """Return what rank 0 tells all ranks: answers[r] is rank r's."""
    size = len(answers)
    with_daemon = [rank for rank, answer in enumerate(answers) if answer["given"]]
    if with_daemon and len(with_daemon) < size:
        without = next(rank for rank in range(size) if not answers[rank]["given"])
        raise errors.InvalidError(
            f"rank {with_daemon[0]} has a daemon on its node and rank {without} has none:"
            " start shoald on every node (or set SHOAL_SOCKET), or on none"
        )
    other = next((rank for rank in range(size) if answers[rank]["job"] != answers[0]["job"]), None)
    if other is not None:
        raise errors.MismatchError(
            f"rank 0 names the job {answers[0]['job']!r}, and rank {other} {answers[other]['job']!r} (pg_options)"
        )
    launched = [answer.get("launched") for answer in answers]
    other = next((rank for rank, name in enumerate(launched) if name and launched[0] and name != launched[0]), None)
    if other is not None:
        raise errors.MismatchError(
            f"SHOAL_JOB is {launched[0]!r} on rank 0, and {launched[other]!r} on rank {other}: set the same on all"
        )
    started = [] if with_daemon else answers[0]["started"]
    numbers = {}
    node_of = [numbers.setdefault(answer["node"], len(numbers)) for answer in answers]
    firsts = [answers[node_of.index(node)] for node in range(len(numbers))]
    return {
        "job": answers[0]["job"] or (all(launched) and launched[0]) or f"torch-{secrets.token_hex(8)}",
        "given": bool(with_daemon),
        "started": next((one for one in started if all(one in answer["started"] for answer in answers)), None),
        "nodes": _hosts.distinct([first.get("name", "node") for first in firsts]),
        "node_of": node_of,
        "towards": [first.get("address") for first in firsts],
    }


def _make_roster(store, plan, timeout):
    firsts = [plan["node_of"].index(node) for node in range(len(plan["nodes"]))]
    addresses = [
        _get(store, f"address/{node}", timeout, f"rank {first}") for node, first in enumerate(firsts)
    ]
    return {"addresses": addresses, "secret": secrets.token_hex(32)}
