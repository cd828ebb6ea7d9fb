"""The ProcessGroup that torch calls, from Python and from C++ (pybind11 finds the methods by name).

Each method turns torch's lists and options into a call of shoal.torch._collectives.
"""

import ctypes
import datetime

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from shoal import errors
from shoal.torch import _collectives, _monitored_barrier, _native, _reconfigurable, _rendezvous
from shoal.torch import _session, _versions, _work


going_on = None  # the session for which the default process group is made anew (_generations.py)


class Options:
    """What `pg_options` of init_process_group may say; all ranks say the same.

    job: the name of the job, under which newcomers find it (shoal.torch.join); without one it has a name that
    nobody else has."""

    def __init__(self, job=None):
        if job is not None and not (isinstance(job, str) and job):
            raise errors.InvalidError(f"Options: the job's name is {job!r}: it is a text, or None")
        self.job = job


def create(options, more=None):
    """The ProcessGroup that torch asks for (its _DistributedBackendOptions); every member calls it. more: what
    pg_options was.

    A group inside torch's default group is a group of the same job. Without such a default group
    (the default one itself, or one beside a default group of another backend) it is a job."""
    ranks = list(options.global_ranks_in_group)
    default = dist.GroupMember.WORLD
    name = more.job if isinstance(more, Options) else None
    if ranks and isinstance(default, ProcessGroup):
        session = default.session
        group = session.job.open_group(ranks, _session.milliseconds(options.timeout))
    elif going_on is not None and not ranks:
        session = going_on
        group = session.job.world
    else:
        rank, size = options.group_rank, options.group_size
        meeting = _rendezvous.meet(options.store, rank, size, options.timeout, name)
        session = _session.Session(meeting, rank, size, options.timeout)
        group = session.job.world
    return ProcessGroup(
        session,
        group,
        options.group_id or "default",
        ranks or list(range(options.group_size)),
        options.store,
        options.timeout,
    )


def is_checkpoint_rank(group=None):
    """Whether this rank is the one of the group (None: of the whole job) that writes what all ranks of it
    have alike: its first. On one rank of one node it is true, on all others false, as on those that are not in
    the group. Where parts of a model are replicated, the group of the replicas says who writes a part.

    Nothing is sent. A job that is started anew has a first rank again, whichever was lost: ask it anew, too.
    Before init_process_group, and in a forked process, which is no rank, this raises."""
    if not dist.is_initialized():
        raise errors.StateError("is_checkpoint_rank: there is no process group, call init_process_group first")
    member = dist.GroupMember.WORLD if group is None else group
    if isinstance(member, ProcessGroup):
        member.session.check_process()
    return dist.get_rank(group) == 0


class ProcessGroup(_versions.GroupInPython, _reconfigurable.Reconfigurable, c10d.ProcessGroup):
    """A group of ranks of a job. Calls start a collective and return torch's Work for it.

    The native group is asked first. It says None, and has done nothing, when a call is none for it."""

    _holds = False  # the session, which ends with the last group that does
    _native = None  # the native group; None also while it may not be asked

    def __init__(self, session, group, name, ranks, store, timeout):
        super().__init__(group.rank, group.size)
        self._name = name
        self._store = store
        self._timeout = timeout
        self._barriers = 0
        self._use(session, group, ranks)

    def _use(self, session, group, ranks):
        """Be this group of the session's job from now on."""
        self.session = session
        self._group = group
        self._is_whole = group is session.job.world
        self._rank, self._size = group.rank, group.size
        self._ranks = _list(ranks)  # in the default group's numbers, for errors
        self._failure = None  # after which the ranks no longer agree on what comes next
        if session.native is not None:
            self._native = _native.make_group(session.native, group, self._name, self._ranks, self._timeout)
        self._counter = self._native or _Counter()
        self._coalescing = None  # operations of a batch that has been begun
        self._refused = None  # why the last one begun is none
        session.acquire()
        self._holds = True
        session.members.add(self)

    def _begin_anew(self, place, rank, size, timeout):
        """Of a group whose job has been left."""
        session = _session.Session(place, rank, size, timeout)
        self._use(session, session.job.world, list(range(size)))

    def _work_that_is_over(self):
        return _work.all_of([])

    def retire(self, why):
        """The job goes on without this group: it raises `why`."""
        self._failure, self._native, self._is_whole = why, None, False
        self._store = None  # whose server may be with one that is lost
        if self._group is not self.session.job.world:
            self._group.close()
        self._leave()

    def _leave(self):
        """The session may end without it, though wrappers keep it."""
        if self._holds:
            self._holds = False
            self.session.release(self._group)

    def failure(self):
        """What it has failed with, and raises from now on; or None."""
        return self._failure or self._counter.failure()

    def check_not_retired(self):
        if self._group.handle is None and self._failure:
            raise type(self._failure)(str(self._failure))

    def __del__(self):
        # Not there when __init__ has failed.
        if "session" in self.__dict__:
            self._leave()
        self._forget_place()

    # --- what torch asks about a group

    def getBackendName(self):
        return "shoal"

    def getRank(self):
        return self._rank

    def getSize(self):
        return self._size

    rank, size = getRank, getSize

    def _set_sequence_number_for_group(self):
        self._counter.set_number(0)

    def _get_sequence_number_for_group(self):
        return self._counter.number()

    # --- starting operations

    def _start(self, name, options, start, value, way=None):
        """Run `start(group, operation)`, and make a Work of the operation with this value. way: of a
        send or receive, which: it does not wait for others."""
        self._failure = self.failure()
        if self._failure:
            raise type(self._failure)(str(self._failure))
        timeout = _versions.timeout_of(options) or self._timeout
        number = self._counter.next_number()
        operation = _work.Operation(
            f"{name} (number {number} of group {self._name}, ranks {self._ranks})",
            timeout.total_seconds(),
            self.session,
            way,
        )
        operation.value = value
        try:
            start(self._group, operation)
        except BaseException as error:
            self.give_up_batch(error)
            if operation.requests or operation.error:
                # Some ranks may wait for the requests that were not made.
                self._fail(error if isinstance(error, errors.ShoalError) else None)
                self.session.completions.drain(operation)
            raise
        finally:
            operation.leave_stream(self._group)
        work = operation.make_work(self.session.completions, self._fail)
        if self._coalescing is not None:
            self._coalescing.append(operation)
        return work

    def _fail(self, error):
        self._failure = self._failure or error or errors.StateError("an earlier call has failed")
        self._native = None

    # --- reductions

    def allreduce(self, tensors, options=None):
        if self._native and (work := self._native.all_reduce(tensors, options)):
            return work
        tensors = _as_list(tensors)
        op = _op_of(options)

        def start(group, operation):
            for tensor in tensors:
                _collectives.all_reduce(group, operation, tensor, op)

        return self._start("all_reduce", options, start, tensors)

    def allreduce_coalesced(self, tensors, options=None):
        return self.allreduce(tensors, options)

    def reduce(self, tensors, root=0, op=None):
        if self._native and (work := self._native.reduce(tensors, root)):
            return work
        tensors = _as_list(tensors)
        root, options = _root_of(root)
        op = _op_of(op if options is None else options)

        def start(group, operation):
            for tensor in tensors:
                _collectives.reduce(group, operation, tensor, op, root)

        return self._start("reduce", options, start, tensors)

    def reduce_scatter(self, outputs, inputs, options=None):
        if self._native and (work := self._native.reduce_scatter(outputs, inputs, options)):
            return work
        outputs, inputs = _as_list(outputs), _as_lists(inputs)
        op = _op_of(options)

        def start(group, operation):
            for output, given in zip(outputs, inputs):
                _collectives.reduce_scatter(group, operation, output, given, op)

        return self._start("reduce_scatter", options, start, outputs)

    def _reduce_scatter_base(self, output, tensor, options=None):
        if self._native and (work := self._native.reduce_scatter_tensor(output, tensor, options)):
            return work
        return self.reduce_scatter_tensor_coalesced([output], [tensor], options)

    def reduce_scatter_tensor_coalesced(self, outputs, inputs, options=None):
        if self._native and (work := self._native.reduce_scatter_tensors(outputs, inputs, options)):
            return work
        op = _op_of(options)

        def start(group, operation):
            for output, tensor in zip(outputs, inputs):
                parts = _parts(operation, tensor, group.size, output, "reduce_scatter_tensor")
                _collectives.reduce_scatter(group, operation, output, parts, op)

        return self._start("reduce_scatter_tensor", options, start, list(outputs))

    # --- moving

    def broadcast(self, tensors, root=0):
        if self._native and (work := self._native.broadcast(tensors, root)):
            return work
        tensors = _as_list(tensors)
        root, options = _root_of(root)

        def start(group, operation):
            for tensor in tensors:
                _collectives.broadcast(group, operation, tensor, root)

        return self._start("broadcast", options, start, tensors)

    def allgather(self, outputs, inputs, options=None):
        if self._native and (work := self._native.all_gather(outputs, inputs, options)):
            return work
        outputs, inputs = _as_lists(outputs), _as_list(inputs)

        def start(group, operation):
            for results, tensor in zip(outputs, inputs):
                _collectives.all_gather(group, operation, results, tensor)

        return self._start("all_gather", options, start, outputs)

    def allgather_coalesced(self, outputs, inputs, options=None):
        # outputs[r][i] is rank r's inputs[i].
        return self.allgather([list(results) for results in zip(*outputs)], inputs, options)

    def _allgather_base(self, output, tensor, options=None):
        if self._native and (work := self._native.all_gather_into_tensor(output, tensor, options)):
            return work
        return self.allgather_into_tensor_coalesced([output], [tensor], options)

    def allgather_into_tensor_coalesced(self, outputs, inputs, options=None):
        if self._native and (work := self._native.all_gather_into_tensors(outputs, inputs, options)):
            return work

        def start(group, operation):
            for output, tensor in zip(outputs, inputs):
                name = "all_gather_into_tensor"
                results = _parts(operation, output, group.size, tensor, name, written=True)
                _collectives.all_gather(group, operation, results, tensor)

        return self._start("all_gather_into_tensor", options, start, list(outputs))

    def gather(self, outputs, inputs, root=0):
        if self._native and (work := self._native.gather(outputs, inputs, root)):
            return work
        outputs, inputs = _as_lists(outputs), _as_list(inputs)
        root, options = _root_of(root)

        def start(group, operation):
            for number, tensor in enumerate(inputs):
                results = outputs[number] if group.rank == root else None
                _collectives.gather(group, operation, results, tensor, root)

        return self._start("gather", options, start, outputs)

    def scatter(self, outputs, inputs, root=0):
        if self._native and (work := self._native.scatter(outputs, inputs, root)):
            return work
        outputs, inputs = _as_list(outputs), _as_lists(inputs)
        root, options = _root_of(root)

        def start(group, operation):
            for number, output in enumerate(outputs):
                given = inputs[number] if group.rank == root else None
                _collectives.scatter(group, operation, output, given, root)

        return self._start("scatter", options, start, outputs)

    def alltoall(self, outputs, inputs, options=None):
        if self._native and (work := self._native.all_to_all(outputs, inputs, options)):
            return work
        outputs, inputs = list(outputs), list(inputs)

        def start(group, operation):
            _collectives.all_to_all(group, operation, outputs, inputs)

        return self._start("all_to_all", options, start, outputs)

    def alltoall_base(self, output, tensor, output_sizes, input_sizes, options=None):
        sizes = output_sizes, input_sizes
        if self._native and (work := self._native.all_to_all_single(output, tensor, *sizes, options)):
            return work

        def start(group, operation):
            name = "all_to_all_single"
            results = _collectives.whole(operation, output, name, written=True)
            given = _collectives.whole(operation, tensor, name)
            _collectives.all_to_all(
                group,
                operation,
                _rows(results, output_sizes, group.size, "the output"),
                _rows(given, input_sizes, group.size, "the input"),
            )

        return self._start("all_to_all_single", options, start, [output])

    def send(self, tensors, rank, tag):
        if self._native and (work := self._native.send(tensors, rank, tag)):
            return work

        def start(group, operation):
            for tensor in tensors:
                _collectives.send(group, operation, tensor, rank, tag)

        name, way = f"send to rank {rank} of the group", ("send", rank)
        return self._start(name, None, start, list(tensors), way)

    def recv(self, tensors, rank, tag):
        if self._native and (work := self._native.recv(tensors, rank, tag)):
            return work

        def start(group, operation):
            for tensor in tensors:
                _collectives.recv(group, operation, tensor, rank, tag)

        name, way = f"recv from rank {rank} of the group", ("recv", rank)
        return self._start(name, None, start, list(tensors), way)

    def recv_anysource(self, tensors, tag):
        source = ctypes.c_int(-1)

        def start(group, operation):
            for tensor in tensors:
                _collectives.recv_any(group, operation, tensor, tag, source)

        name, way = "recv from any rank of the group", ("recv", "any")
        work = self._start(name, None, start, list(tensors), way)
        _work.remember_source(work, source)
        return work

    # --- barriers

    def barrier(self, options=None, opts=None):
        if self._native and (work := self._native.barrier(opts or options)):
            return work
        return self._start("barrier", opts or options, _collectives.barrier, [])

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        self._barriers += 1  # a count of its own: a rank may be stuck in a collective
        _monitored_barrier.wait(
            self._store,
            f"monitored_barrier/{self._barriers}",
            self.rank(),
            self.size(),
            self._timeout if timeout is None else _as_timedelta(timeout),
            wait_all_ranks,
        )

    # --- several operations as one

    def _start_coalescing(self, device=None):
        self._coalescing, self._refused = [], None
        if self._native:
            self._native = _Batch(self, self._counter, self._coalescing)

    def give_up_batch(self, error):
        """Whoever began a batch in which something was refused may not end it: nothing may be kept for that."""
        if self._coalescing is not None:
            self._end_batch()
            self._refused = f"the batch is not whole: {error}"

    def _end_batch(self):
        """The operations of the batch; what is started from now on is none of it."""
        operations, self._coalescing = self._coalescing or [], None
        if self._native:
            self._native = self._counter
        return operations

    def _end_coalescing(self, device=None):
        refused, self._refused = self._refused, None
        operations = self._end_batch()
        if refused:
            raise errors.StateError(refused)
        return _work.all_of(operations)


class _Batch:
    """The native group in a batch that has been begun: what it starts is of the batch."""

    def __init__(self, owner, native, started):
        self._owner, self._native_group, self._started = owner, native, started

    def __getattr__(self, name):
        method = getattr(self._native_group, name)

        def start(*arguments):
            try:
                work = method(*arguments)
            except BaseException as error:
                self._owner.give_up_batch(error)
                raise
            if work:
                self._started.append(work)
            return work

        return start


class _Counter:
    """What a group without a native one counts by itself."""

    def __init__(self):
        self._number = 0

    def next_number(self):
        self._number += 1
        return self._number

    def number(self):
        return self._number

    def set_number(self, number):
        self._number = number

    def failure(self):
        return None


def _as_list(tensors):
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _as_lists(lists):
    """[[Tensor]], which some callers give as [Tensor]."""
    lists = list(lists)
    if lists and isinstance(lists[0], torch.Tensor):
        return [lists]
    return [list(tensors) for tensors in lists]


def _as_timedelta(timeout):
    """pybind11 takes seconds as well."""
    if isinstance(timeout, datetime.timedelta):
        return timeout
    return datetime.timedelta(seconds=timeout)


def _root_of(root):
    """(root, options): some callers give options that have the root."""
    return (root, None) if isinstance(root, int) else (root.rootRank, root)


def _op_of(options):
    if options is None:
        return c10d.ReduceOp.SUM
    return getattr(options, "reduceOp", options)


def _parts(operation, whole, count, part, name, written=False):
    """`count` equal parts of a tensor in row-major order, each of as many elements as `part` has."""
    if whole.dtype != part.dtype:
        raise errors.InvalidError(f"{name}: {whole.dtype} and {part.dtype} together")
    if whole.numel() != part.numel() * count:
        raise errors.InvalidError(
            f"{name}: {whole.numel()} elements are not {count} times {part.numel()}"
        )
    flat = _collectives.whole(operation, whole, name, written).view(-1)
    return [flat[i * part.numel() : (i + 1) * part.numel()] for i in range(count)]


def _rows(whole, sizes, count, what):
    """A contiguous tensor cut along its first dimension: into these sizes, or equally for []."""
    length = whole.shape[0] if whole.dim() else 0
    if not sizes:
        if length % count:
            raise errors.InvalidError(
                f"all_to_all_single: {what} has {length} rows, not a multiple of {count} ranks"
            )
        sizes = [length // count] * count
    if len(sizes) != count or sum(sizes) != length:
        raise errors.InvalidError(
            f"all_to_all_single: {what} has {length} rows, the sizes for {count} ranks are {sizes}"
        )
    return list(whole.split(list(sizes)))


def _list(ranks, shown=16):
    text = ", ".join(str(rank) for rank in ranks[:shown])
    return text if len(ranks) <= shown else f"{text}, ... ({len(ranks)} in all)"
