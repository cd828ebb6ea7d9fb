"""The process groups that torch gets: the native Backend, or a ProcessGroup in Python, over a Member each."""

import datetime

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from shoal import _autoload, errors
from shoal.torch import _native, _reconfigurable, _rendezvous, _session, _versions, _work
from shoal.torch._member import Member

DEFAULT_TIMEOUT = datetime.timedelta(minutes=30)  # as init_process_group has it
going_on = None  # the session for which the default process group is made anew (_generations.py)


class Options:
    """The `pg_options` of init_process_group; all ranks give the same.

    job: the name of the job, under which newcomers find it (shoal.torch.join); without one it has the name in
    SHOAL_JOB, or one that nobody else has. reconfigurable: the group has the methods of
    torch.distributed._reconfigure, by which the same object goes on with other ranks; torch's groups in C++ have
    one size for ever, so this one is in Python."""

    def __init__(self, job=None, reconfigurable=False):
        if job is not None and not (isinstance(job, str) and job):
            raise errors.InvalidError(f"Options: the job's name is {job!r}: it is a text, or None")
        self.job = job
        self.reconfigurable = bool(reconfigurable)


def create(options, more=None):
    """Make what torch asks for (its _DistributedBackendOptions): a Backend or a ProcessGroup; every member calls it. more:
    what pg_options was.

    A group inside torch's default group is a group of the same job. Without such a default group
    (the default one itself, or one beside a default group of another backend) it is a job."""
    ranks = list(options.global_ranks_in_group)
    default = member_of(dist.GroupMember.WORLD)
    more = more if isinstance(more, Options) else Options()
    if ranks and default is not None:
        session = default.session
        group = session.open_job().open_group(ranks, _session.milliseconds(options.timeout))
    elif going_on is not None and not ranks:
        session = going_on
        group = session.job.world
    else:
        rank, size = options.group_rank, options.group_size
        meeting = _rendezvous.meet(options.store, rank, size, options.timeout, more.job)
        session = _session.Session(meeting, rank, size, options.timeout)
        group = session.job.world
    name = options.group_id or "default"
    ranks = ranks or list(range(options.group_size))
    store = options.store
    if session.store is None and session.meeting.name:  # a launcher may give the store of an earlier attempt
        store = dist.PrefixStore(session.meeting.name, store)
    parts = session, group, name, ranks, store, options.timeout
    if session.native is None or more.reconfigurable:
        return ProcessGroup(*parts)
    return _native.make_backend(Member(*parts))


def make_group(store, rank, size, timeout=DEFAULT_TIMEOUT, options=None):
    """Make a process group of `size` ranks, of which this is number `rank`, that meet in a store of torch's: a job of
    its own, without init_process_group, which knows nothing of it. It ends with the last reference to it.

    timeout: of the meeting, and of calls that say none. options: Options, the same on all ranks."""
    if not 0 <= rank < size:
        raise errors.InvalidError(f"make_group: rank {rank} of {size}: it is 0 to size - 1")
    asked = c10d._DistributedBackendOptions()
    asked.store, asked.timeout, asked.group_id = store, timeout, "made"
    asked.group_rank, asked.group_size = rank, size
    made = create(asked, options)
    if isinstance(made, c10d.ProcessGroup):
        return made
    group = dist.ProcessGroup(store, rank, size)
    kind = dist.ProcessGroup.BackendType.CUSTOM
    for device in _autoload.device_types():
        group._register_backend(torch.device(device), kind, made)
    group._set_default_backend(kind)
    return group


def member_of(group):
    """Return the Member of a process group; None where it is of another backend, or None."""
    if isinstance(group, Member):
        return group
    if not isinstance(group, c10d.ProcessGroup):
        return None
    for device in group._device_types:
        backend = group._get_backend(device)
        # With TORCH_DISTRIBUTED_DEBUG=DETAIL torch puts one that checks before it.
        member = getattr(getattr(backend, "wrapped_pg", backend), "member", None)
        if isinstance(member, Member):
            return member
    return None


def is_checkpoint_rank(group=None):
    """Whether this rank is the one of the group (None: of the whole job) that writes what all ranks of it
    have alike: its first. On one rank of one node it is true, on all others false, as on those that are not in
    the group. Where parts of a model are replicated, the group of the replicas says who writes a part.

    Nothing is sent. A job that is started anew has a first rank again, whichever was lost: ask it anew, too.
    Before init_process_group, and in a forked process, which is no rank, this raises."""
    if not dist.is_initialized():
        raise errors.StateError("is_checkpoint_rank: there is no process group, call init_process_group first")
    member = member_of(dist.GroupMember.WORLD if group is None else group)
    if member is not None:
        member.session.check_process()
    return dist.get_rank(group) == 0


class ProcessGroup(_versions.GroupInPython, _reconfigurable.Reconfigurable, Member, c10d.ProcessGroup):
    """A group whose calls come to Python: torch's dispatcher knows nothing of it. It serves where there is no native
    module for this torch, and where a group is to go on with other ranks."""

    def __init__(self, session, group, name, ranks, store, timeout):
        c10d.ProcessGroup.__init__(self, group.rank, group.size)
        self._batch = None  # the works of one that has been begun
        self._refused = None  # why the last one begun is none
        Member.__init__(self, session, group, name, ranks, store, timeout)

    def _begin_anew(self, place, rank, size, timeout):
        """Begin a new job for a group whose job has been left."""
        session = _session.Session(place, rank, size, timeout)
        self._batch = self._refused = None
        self.use(session, session.job.world, list(range(size)))

    def _another(self, *parts):
        return ProcessGroup(*parts)

    def _work_that_is_over(self):
        return _work.all_of([])

    def __del__(self):
        Member.__del__(self)
        self._forget_place()

    # --- what torch asks about a group

    def getBackendName(self):
        return "shoal"

    def getRank(self):
        return self.group.rank

    def getSize(self):
        return self.group.size

    rank, size = getRank, getSize

    def get_group_store(self):
        return self._store

    def _set_sequence_number_for_group(self):
        self.counter.set_number(0)

    def _get_sequence_number_for_group(self):
        return self.counter.number()

    def get_error(self):
        return _versions.error_type(self.failure())

    def split_group(self, new_ranks, timeout=None, opts=None, group_name=None, group_desc=None):
        new = self.split(self._store, sorted(new_ranks), timeout)  # as torch's own in C++
        return _named(new, group_name, group_desc)

    def merge_remote_group(self, store, size, timeout=None, group_name=None, group_desc=None):
        rank = store.add("mergeGroupRank", 1) - 1  # torch's key: in the order in which they come
        return _named(self.merge(store, rank, size, timeout), group_name, group_desc)

    # --- several operations as one

    def _start(self, *arguments):
        try:
            work = super()._start(*arguments)
        except BaseException as error:
            self._give_up_batch(error)
            raise
        if self._batch is not None:
            self._batch.append(work)
        return work

    def _start_coalescing(self, device=None):
        self._batch, self._refused = [], None

    def _give_up_batch(self, error):
        """Whoever began a batch in which something was refused perhaps never ends it: nothing is kept for that."""
        if self._batch is not None:
            self._batch, self._refused = None, f"the batch is not whole: {error}"

    def _end_coalescing(self, device=None):
        works, self._batch = self._batch or [], None
        refused, self._refused = self._refused, None
        if refused:
            raise errors.StateError(refused)
        return _work.all_of(works)


def _named(group, name, description):
    if group is not None:
        group._set_group_name(name or group.group_name)
        group._set_group_desc(description or group.group_desc)
    return group
