"""All differences between versions of torch: 2.6 to 2.13, and the names after it."""

import contextlib
import datetime
import functools
import inspect
import os

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d

from shoal import errors

OLDEST = (2, 6)

if tuple(map(int, torch.__version__.split(".")[:2])) < OLDEST:
    raise ImportError(f"shoal.torch needs torch {OLDEST[0]}.{OLDEST[1]} or later, and this is {torch.__version__}")

# Methods of a ProcessGroup under the names that later versions call them by: later -> ours.
METHOD_NAMES = {
    "all_gather_into_tensor": "_allgather_base",
    "all_gather_single": "_allgather_base",
    "all_gather_into_tensor_coalesced": "allgather_into_tensor_coalesced",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "reduce_scatter_tensor": "_reduce_scatter_base",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
}

class GroupInPython:
    """Attributes that torch asks of a ProcessGroup. For a group of its own, torch keeps the names in the group's
    backends, of which a group made in Python has none, and asks the backend for a device what it can."""

    _name = _desc = ""
    group_name = property(lambda self: self._name)
    group_desc = property(lambda self: self._desc)
    _device_types = property(lambda self: [torch.device("cpu"), torch.device("cuda")])
    supports_splitting = supports_coalescing = supports_time_estimate = False

    def _set_group_name(self, name):
        self._name = name

    def _set_group_desc(self, desc):
        self._desc = desc

    def _get_backend(self, device):
        return self


def add_method_names(process_group_class):
    """Ours under every name: a torch that has one of them has it in the base class too, where it would
    look for a backend in C++."""
    for name, ours in METHOD_NAMES.items():
        if name not in vars(process_group_class):
            setattr(process_group_class, name, getattr(process_group_class, ours))


def register_in_dist2(name, make_group, make_options):
    """Have torch.distributed._dist2.new_group make groups too, where this torch has it (since 2.9). Its keyword
    arguments are the fields of Options; the device is not used."""
    try:
        from torch.distributed import _dist2
    except ImportError:
        return

    def create(store, rank, size, timeout, device, **options):
        return make_group(store, rank, size, timeout, make_options(**options) if options else None)

    with contextlib.suppress(ValueError):  # it knows it already
        _dist2.register_backend(name, create)


@contextlib.contextmanager
def without_meeting():
    """In it, init_process_group does not have the ranks meet in the store: they have met, and there a rank that is
    lost meanwhile would be waited for as long as the group's timeout."""
    meet = distributed_c10d._store_based_barrier
    distributed_c10d._store_based_barrier = lambda *_, **named: None
    try:
        yield
    finally:
        distributed_c10d._store_based_barrier = meet


def make_store(host, port, is_master, timeout):
    """A TCPStore for whoever comes; port 0: any."""
    more = {}
    if "use_libuv" in (dist.TCPStore.__init__.__doc__ or ""):
        more["use_libuv"] = os.environ.get("USE_LIBUV", "1") == "1"  # as torch's own rendezvous has it
    return dist.TCPStore(host, port, None, is_master, timeout, wait_for_workers=False, **more)


def error_type(failure):
    """Return torch's word for what a group has failed with (None: nothing)."""
    kinds = c10d.ErrorType
    if failure is None:
        return kinds.SUCCESS
    return kinds.TIMEOUT if isinstance(failure, errors.TimeoutError) else kinds.REMOTE_ERROR


def timeout_of(options):
    """The time that a call's options allow, or None when they leave it to the group."""
    timeout = getattr(options, "timeout", None)
    return timeout if timeout is not None and timeout > datetime.timedelta(0) else None


def hide_from_dynamo(*classes):
    """Have torch.compile run the methods of these classes as they are, and what they call, rather than trace them.
    Nothing before 2.8, which has no such strategy: there it traces them."""
    dynamo = torch._C._dynamo.eval_frame
    if not hasattr(dynamo, "_FrameExecStrategy"):
        return
    skip = dynamo._FrameExecStrategy(dynamo._FrameAction.SKIP, dynamo._FrameAction.SKIP)
    for method in (method for one in classes for method in vars(one).values()):
        if inspect.isfunction(method):
            # All methods that one decorator of torch's wraps share the wrapper's code.
            dynamo.set_code_exec_strategy(inspect.unwrap(method).__code__, skip)


# Functions of torch.distributed that know one backend by its name or class -> what a Member has for it.
_OF_ONE_BACKEND = {"monitored_barrier": "monitored_barrier", "_set_pg_timeout": "set_timeout"}


def patch_functions_of_one_backend(member_of):
    """Make them serve our groups. member_of: gives the Member of a process group, or None."""
    for name, method in _OF_ONE_BACKEND.items():
        original = getattr(distributed_c10d, name)
        if not hasattr(original, "shoal"):
            patched = _patched(original, method, member_of)
            setattr(distributed_c10d, name, patched)
            if hasattr(dist, name):
                setattr(dist, name, patched)


def _patched(original, method, member_of):
    signature = inspect.signature(original)

    @functools.wraps(original)
    def patched(*given, **named):
        arguments = signature.bind(*given, **named).arguments
        group = arguments.pop("group", None) or dist.GroupMember.WORLD
        member = member_of(group)
        return original(*given, **named) if member is None else getattr(member, method)(**arguments)

    patched.shoal = True
    return patched
