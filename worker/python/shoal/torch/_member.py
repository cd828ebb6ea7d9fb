"""A rank's side of a group of torch's: the group of the library, how it goes, and each collective in Python.

A method that starts a collective turns torch's lists and options into a call of shoal.torch._collectives, and returns
torch's Work. torch reaches it by way of the native Backend, for what that does not do itself, or of the ProcessGroup
in Python (_process_group.py).
"""

import collections
import ctypes
import datetime

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from shoal import errors
from shoal.torch import _collectives, _monitored_barrier, _native, _rendezvous, _session, _versions, _work


class Member:
    """A rank's part in a group of ranks of a job."""

    _holds = False  # the session, which ends with the last group that does

    def __init__(self, session, group, name, ranks, store, timeout):
        """group: of the library. ranks: in the default group's numbers."""
        self._name = name
        self._store = store
        self.timeout = timeout  # of calls that say none
        self._barriers = 0
        self._parts = collections.Counter()
        self.use(session, group, ranks)

    def use(self, session, group, ranks):
        """Be this group of the session's job from now on."""
        self.session = session
        self.group = group
        self.is_whole = group is session.job.world
        self._job_ranks = list(range(group.size)) if self.is_whole else list(ranks)
        self._ranks = _list(ranks)  # for errors
        self._failure = None  # after which the ranks no longer agree on what comes next
        # The native collectives, which count for both; else a count of its own.
        self.counter = _Counter()
        if session.native is not None:
            self.counter = _native.make_group(session.native, group, self._name, self._ranks, self.timeout)
        session.acquire()
        self._holds = True
        session.members.add(self)

    def retire(self, why):
        """The job goes on without this group: it raises `why`."""
        self._fail(why, anew=True)
        self._store = None  # whose server may be with one that is lost
        if not self.is_whole and self.session.job is not None:
            self.group.close()
        self.is_whole = False
        self.leave()

    def leave(self):
        """The session may end without it, though wrappers keep it."""
        if self._holds:
            self._holds = False
            self.session.release(self.group)

    def failure(self):
        """Return the error with which the group has failed, and which it raises from now on; or None."""
        return self._failure or self.counter.failure()

    def check(self):
        self._failure = self.failure()
        if self._failure:
            raise errors.without_frames(self._failure)

    def _fail(self, error, anew=False):
        """error: None where it is none of shoal's. anew: though it has failed before."""
        if anew or not self._failure:
            self._failure = errors.without_frames(error or errors.StateError("an earlier call has failed"))
        self.counter.fail(self._failure.code, str(self._failure))

    def __del__(self):
        # Not there when __init__ has failed.
        if "session" in self.__dict__:
            self.leave()

    # --- its end

    def abort(self):
        """Fail what is under way, so that whoever waits for it goes on. A group that is the whole job leaves it, so
        that the other ranks learn of it, and takes the groups within along."""
        if not self._holds:
            return
        why = errors.StateError("the process group was aborted before this was complete")
        self._fail(why)
        self.counter.give_up(why.code, str(why))
        self.session.completions.give_up(self._fail, why)
        if self.is_whole:
            self.session.close(0)
        self.leave()

    def shutdown(self):
        """Take no more calls. The job is left with the last of its groups, once what streams wait for is over."""
        if self._holds:
            self._fail(errors.StateError("the process group was destroyed"))
            self.leave()

    # --- groups of its ranks

    def split(self, store, ranks, timeout=None):
        """Make a group of these ranks of this one, in this order, and return what torch has for it; None on a rank that
        is not among them. Every one of them calls it."""
        self.check()
        if self.group.rank not in ranks:
            return None
        if not all(0 <= rank < self.group.size for rank in ranks) or len(set(ranks)) != len(ranks):
            raise errors.InvalidError(f"split: ranks {ranks} of a group of {self.group.size}: each once, from 0")
        timeout = timeout or self.timeout
        ranks = [self._job_ranks[rank] for rank in ranks]
        group = self.session.open_job().open_group(ranks, _session.milliseconds(timeout))
        self._parts[tuple(ranks)] += 1  # whose members have made it as often
        store = dist.PrefixStore(f"part/{ranks}/{self._parts[tuple(ranks)]}", store)
        return self._another(self.session, group, ranks, store, timeout)

    def shrink(self, without, timeout=None):
        """Make a group of all ranks but these, as split() does."""
        ranks = [rank for rank in range(self.group.size) if rank not in without]
        return self.split(self._store, ranks, timeout)

    def merge(self, store, rank, size, timeout=None):
        """Make a job of `size` ranks that meet in the store, in which this rank has this number."""
        timeout = timeout or self.timeout
        session = _session.Session(_rendezvous.meet(store, rank, size, timeout), rank, size, timeout)
        return self._another(session, session.job.world, list(range(size)), store, timeout)

    def _another(self, session, group, ranks, store, timeout):
        return _native.make_backend(Member(session, group, self._name, ranks, store, timeout))

    def set_timeout(self, timeout):
        """Set the timeout of later calls that say none."""
        self.timeout = _as_timedelta(timeout)
        self.counter.set_timeout(self.timeout)

    # --- starting operations

    def _start(self, name, options, start, value, way=None):
        """Run `start(group, operation)`, and make a Work of the operation with this value. way: of a
        send or receive, which: it does not wait for others."""
        self.check()
        timeout = _versions.timeout_of(options) or self.timeout
        self.counter.count()
        operation = _work.Operation(
            f"{name} (torch's group {self._name}, ranks {self._ranks})",
            timeout.total_seconds(),
            self.session,
            way,
        )
        operation.value = value
        try:
            start(self.group, operation)
        except BaseException as error:
            if operation.requests or operation.error:
                # Some ranks may wait for the requests that were not made.
                self._fail(error if isinstance(error, errors.ShoalError) else None)
                self.session.completions.drain(operation)
            raise
        finally:
            operation.leave_stream(self.group)
        return operation.make_work(self.session.completions, self._fail)

    @staticmethod
    def all_of(works):
        """Make one Work for these."""
        return _work.all_of(works)

    # --- reductions

    def allreduce(self, tensors, options=None):
        tensors = _as_list(tensors)
        op = _op_of(options)

        def start(group, operation):
            for tensor in tensors:
                _collectives.all_reduce(group, operation, tensor, op)

        return self._start("all_reduce", options, start, tensors)

    def allreduce_coalesced(self, tensors, options=None):
        return self.allreduce(tensors, options)

    def reduce(self, tensors, root=0, op=None):
        tensors = _as_list(tensors)
        root, options = _root_of(root)
        op = _op_of(op if options is None else options)

        def start(group, operation):
            for tensor in tensors:
                _collectives.reduce(group, operation, tensor, op, root)

        return self._start("reduce", options, start, tensors)

    def reduce_scatter(self, outputs, inputs, options=None):
        outputs, inputs = _as_list(outputs), _as_lists(inputs)
        op = _op_of(options)

        def start(group, operation):
            for output, given in zip(outputs, inputs):
                _collectives.reduce_scatter(group, operation, output, given, op)

        return self._start("reduce_scatter", options, start, outputs)

    def _reduce_scatter_base(self, output, tensor, options=None):
        return self.reduce_scatter_tensor_coalesced([output], [tensor], options)

    def reduce_scatter_tensor_coalesced(self, outputs, inputs, options=None):
        op = _op_of(options)

        def start(group, operation):
            for output, tensor in zip(outputs, inputs):
                parts = _parts(operation, tensor, group.size, output, "reduce_scatter_tensor")
                _collectives.reduce_scatter(group, operation, output, parts, op)

        return self._start("reduce_scatter_tensor", options, start, list(outputs))

    # --- moving

    def broadcast(self, tensors, root=0):
        tensors = _as_list(tensors)
        root, options = _root_of(root)

        def start(group, operation):
            for tensor in tensors:
                _collectives.broadcast(group, operation, tensor, root)

        return self._start("broadcast", options, start, tensors)

    def allgather(self, outputs, inputs, options=None):
        outputs, inputs = _as_lists(outputs), _as_list(inputs)

        def start(group, operation):
            for results, tensor in zip(outputs, inputs):
                _collectives.all_gather(group, operation, results, tensor)

        return self._start("all_gather", options, start, outputs)

    def allgather_coalesced(self, outputs, inputs, options=None):
        # outputs[r][i] is rank r's inputs[i].
        return self.allgather([list(results) for results in zip(*outputs)], inputs, options)

    def _allgather_base(self, output, tensor, options=None):
        return self.allgather_into_tensor_coalesced([output], [tensor], options)

    def allgather_into_tensor_coalesced(self, outputs, inputs, options=None):
        def start(group, operation):
            for output, tensor in zip(outputs, inputs):
                name = "all_gather_into_tensor"
                results = _parts(operation, output, group.size, tensor, name, written=True)
                _collectives.all_gather(group, operation, results, tensor)

        return self._start("all_gather_into_tensor", options, start, list(outputs))

    def gather(self, outputs, inputs, root=0):
        outputs, inputs = _as_lists(outputs), _as_list(inputs)
        root, options = _root_of(root)

        def start(group, operation):
            for number, tensor in enumerate(inputs):
                results = outputs[number] if group.rank == root else None
                _collectives.gather(group, operation, results, tensor, root)

        return self._start("gather", options, start, outputs)

    def scatter(self, outputs, inputs, root=0):
        outputs, inputs = _as_list(outputs), _as_lists(inputs)
        root, options = _root_of(root)

        def start(group, operation):
            for number, output in enumerate(outputs):
                given = inputs[number] if group.rank == root else None
                _collectives.scatter(group, operation, output, given, root)

        return self._start("scatter", options, start, outputs)

    def alltoall(self, outputs, inputs, options=None):
        outputs, inputs = list(outputs), list(inputs)

        def start(group, operation):
            _collectives.all_to_all(group, operation, outputs, inputs)

        return self._start("all_to_all", options, start, outputs)

    def alltoall_base(self, output, tensor, output_sizes, input_sizes, options=None):
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
        def start(group, operation):
            for tensor in tensors:
                _collectives.send(group, operation, tensor, rank, tag)

        name, way = f"send to rank {rank} of the group", ("send", rank)
        return self._start(name, None, start, list(tensors), way)

    def recv(self, tensors, rank, tag):
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
        return self._start("barrier", opts or options, _collectives.barrier, [])

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        self.check()
        self._barriers += 1  # a count of its own: a rank may be stuck in a collective
        _monitored_barrier.wait(
            self._store,
            f"monitored_barrier/{self._barriers}",
            self.group.rank,
            self.group.size,
            self.timeout if timeout is None else _as_timedelta(timeout),
            wait_all_ranks,
        )


class _Counter:
    """The number of collectives, counted by a group without a native one."""

    def __init__(self):
        self._number = 0

    def count(self):
        self._number += 1

    def number(self):
        return self._number

    def set_number(self, number):
        self._number = number

    def failure(self):
        return None

    def fail(self, code, text):
        pass

    give_up = fail

    def set_timeout(self, timeout):
        pass


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
