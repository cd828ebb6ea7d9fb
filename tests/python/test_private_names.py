#!/usr/bin/python3
"""Private names of torch and of Python that shoal uses, changes or overrides: each is listed here, and is in the torch
at hand. Where one is gone, this says so before a program does less than it should.

And what shoal puts in place of torch's functions takes whatever torch's takes."""

import ast
import collections
import functools
import importlib
import inspect
import re
import runpy
import sys
import unittest

import suite

PACKAGE = suite.TREE / "worker" / "python"
# Where -> what, as Python has it there: an expression that fails where torch has it no more. In a tuple: the names of
# one thing in different versions, of the last ones first.
NAMES = {
    "multiprocessing.process": ("BaseProcess._bootstrap",),
    "sys": ("_current_frames",),
    "torch": ("_assert_async", "_C._get_accelerator", "_disable_dynamo", "Tensor._nnz", "Tensor._version"),
    "torch._C._dynamo.eval_frame": (
        ("_FrameAction.SKIP", "skip_code"),  # 2.6 has the second, which is not used
        ("_FrameExecStrategy", "skip_code"),
    ),
    "torch._C._distributed_c10d": (
        "_create_work_from_future",
        "_DistributedBackendOptions",
        "ProcessGroup._allgather_base",
        "ProcessGroup._device_types",
        "ProcessGroup._end_coalescing",
        "ProcessGroup._get_backend",
        "ProcessGroup._get_sequence_number_for_group",
        "ProcessGroup._reduce_scatter_base",
        "ProcessGroup._register_backend",
        "ProcessGroup._set_default_backend",
        "ProcessGroup._set_group_desc",
        "ProcessGroup._set_group_name",
        "ProcessGroup._set_sequence_number_for_group",
        "ProcessGroup._start_coalescing",
        "Work._source_rank",
    ),
    "torch.distributed": (
        ("_dist2", "_register_comm_hook"),  # 2.6 has no such module
        "_register_comm_hook",
        "Backend._plugins",
        "ProcessGroupGloo._Options()._timeout",
    ),
    "torch.distributed._shard.sharded_tensor.api": (
        "_SHARDED_OPS",
        "ShardedTensorBase.__annotations__['_local_shards']",
    ),
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper": (
        "CheckpointWrapper(torch.nn.Identity())._checkpoint_wrapped_module",
        "OffloadWrapper",
    ),
    "torch.distributed.algorithms._comm_hooks": ("default_hooks",),
    "torch.distributed.checkpoint._nested_dict": ("unflatten_state_dict",),
    "torch.distributed.checkpoint.state_dict_saver": ("_save_state_dict",),
    "torch.distributed.distributed_c10d": (
        "_new_process_group_helper",
        "_set_pg_timeout",
        "_store_based_barrier",
        "_world.pg_backend_config",
        "_world.pg_map",
        "inspect.unwrap(init_process_group).__code__.co_varnames.index('_distributed_excepthook')",
    ),
    "torch.distributed.fsdp": (
        "FullyShardedDataParallel._optim_state_dict_impl",
        "FullyShardedDataParallel._optim_state_dict_to_load_impl",
        "ShardingStrategy._HYBRID_SHARD_ZERO2",
    ),
    "torch.distributed.fsdp._common_utils": (
        "_FSDPState()._comm_hook",
        "_FSDPState()._comm_hook_state",
        "_FSDPState()._handle",
        "_FSDPState()._state_dict_config",
        "_FSDPState()._state_dict_type",
    ),
    "torch.distributed.fsdp._flat_param": (
        "FlatParameter.__annotations__['_param_infos']",
        "FlatParameter.__annotations__['_params']",
        "FlatParameter.__annotations__['_shard_param_infos']",
        "FlatParamHandle.__init__.__code__.co_names.index('_use_orig_params')",
    ),
    "torch.distributed.fsdp._fully_shard._fsdp_param_group": ("FSDPParamGroup",),
    "torch.distributed.fsdp._fully_shard._fully_shard": (
        ("_init_default_mesh", "_init_default_fully_shard_mesh"),  # 2.6 has the second
    ),
    "torch.distributed.fsdp._init_utils": ("_check_module_states_for_sync_module_states",),
    "torch.distributed.fsdp._shard_utils": ("_create_chunk_sharded_tensor",),
    "torch.distributed.rendezvous": ("_rendezvous_handlers",),
    "torch.nn": (
        "Module()._buffers",
        "Module()._forward_hooks",
        "Module()._forward_pre_hooks",
        "Module()._modules",
        "Module()._parameters",
        "Module()._register_state_dict_hook",
        "MultiheadAttention._reset_parameters",
    ),
    "torch.nn.modules.module": ("_IncompatibleKeys",),
    "torch.nn.parallel": (
        "DistributedDataParallel.__init__.__code__.co_names.index('_comm_hooks')",
        "DistributedDataParallel.__init__.__code__.co_names.index('_delay_all_reduce_all_params')",
        "DistributedDataParallel.__init__.__code__.co_names.index('_has_rebuilt_buckets')",
        "DistributedDataParallel.__init__.__code__.co_names.index('_use_python_reducer')",
        "DistributedDataParallel._check_comm_hook",
        "DistributedDataParallel._ddp_init_helper",
        "DistributedDataParallel._lazy_init",
        "DistributedDataParallel._lazy_init.__code__.co_names.index('_lazy_init_ran')",
        "DistributedDataParallel._pre_forward",
        "DistributedDataParallel._register_builtin_comm_hook",
        "DistributedDataParallel._update_process_group",
        "DistributedDataParallel.register_comm_hook.__code__.co_names.index('_set_comm_hook_name')",
        "inspect.unwrap(DistributedDataParallel.__init__).__code__.co_consts.index('_ddp_params_and_buffers_to_ignore')",
    ),
}
# The arguments of private functions that shoal counts on.
ARGUMENTS = (
    ("torch.distributed.checkpoint.state_dict_saver", "_save_state_dict",
     {"state_dict", "process_group", "coordinator_rank", "no_dist"}),
    ("torch.distributed.fsdp", "FullyShardedDataParallel._optim_state_dict_impl", {"model", "full_state_dict"}),
    ("torch.distributed.fsdp", "FullyShardedDataParallel._optim_state_dict_to_load_impl",
     {"optim_state_dict", "model"}),
    ("torch.distributed.fsdp._fully_shard._fsdp_param_group", "FSDPParamGroup", {"params", "modules", "mesh_info"}),
    ("torch.distributed.fsdp._shard_utils", "_create_chunk_sharded_tensor", {"tensor", "rank", "world_size", "pg"}),
)  # fmt: skip
# Private names of shoal's process group that other files touch.
OURS = {"_fail", "_group"}
# Words that look like such names: of ctypes, of the wheel, of Hugging Face's models, and the ends of longer ones.
WORDS = {"_fields_", "_fields", "_bundle", "_rank", "_init_weights", "_tp_plan", "_proj_weight", "_process_group"}
# Alone: the whole package would change torch.
HOOKS = runpy.run_path(str(PACKAGE / "shoal/smddp/smp/_hooks.py")) if suite.reason_to_skip() is None else {}
PRIVATE = re.compile(r"(?<!\w)_[A-Za-z]\w*")


def has(where, expression):
    try:
        eval(expression, {**vars(importlib.import_module(where)), "inspect": inspect})
    except (ImportError, NameError, AttributeError, KeyError, ValueError):
        return False
    return True


def ways(one):
    """The names of one thing."""
    return (one,) if isinstance(one, str) else one


def missing(names):
    return [
        f"{where}: {one}"
        for where, things in names.items()
        for one in things
        if not any(has(where, name) for name in ways(one))
    ]


def listed(names):
    """Each by its path."""
    return {f"{where}.{name}" for where, things in names.items() for one in things for name in ways(one)}


def is_listed(touched, paths):
    """touched: a path in torch, as an import has it; or a name."""
    if "." in touched:
        return any(re.match(rf"{re.escape(touched)}(?!\w)", path) for path in paths)
    return any(touched in PRIVATE.findall(path) for path in paths)


def defined(tree):
    """The names that a file gives to something."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and name_of(node.value) == "self":
            yield node.attr


def name_of(node):
    return node.id if isinstance(node, ast.Name) else None


def imported(tree):
    """[(path, the name that it has here)] of what a file imports from torch."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            yield from ((f"{node.module}.{one.name}", one.asname or one.name) for one in node.names)
        elif isinstance(node, ast.Import):
            paths = [(one.name, one.asname or "torch") for one in node.names]
            yield from ((path, name) for path, name in paths if path.split(".")[0] == "torch")


def root_of(node):
    while isinstance(node, (ast.Attribute, ast.Call, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return name_of(node)


def touched_in(tree, package):
    """Private names of torch, or of nobody known, in a file; package: how often shoal's files define each name. A name
    that is reached from something of torch's is torch's, and so is one that super() has and no other class of shoal's;
    a name that this file defines is shoal's, and so is one that a class gets from another file's."""
    mine, torchs = set(defined(tree)), set()
    for path, name in imported(tree):
        torchs.add(name)
        if PRIVATE.search(path):
            yield path
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and PRIVATE.fullmatch(node.attr):
            inherited = name_of(node.value) == "self" and node.attr in package
            above = root_of(node) == "super" and package[node.attr] < 2
            if above or root_of(node) in torchs or not (node.attr in mine or inherited):
                yield node.attr
        elif isinstance(node, ast.Constant) and re.fullmatch("_[a-z][a-z0-9_]*", str(node.value)):
            if node.value not in package:
                yield node.value


def for_torch_to_call(tree, used):
    """Private names of a file's methods and class variables that nobody of shoal's uses."""
    for kind in ast.walk(tree):
        if isinstance(kind, ast.ClassDef):
            names = {node.name for node in kind.body if isinstance(node, ast.FunctionDef)}
            names |= {name for node in kind.body if isinstance(node, ast.Assign) for name in defined(node)}
            yield from (name for name in names if PRIVATE.fullmatch(name) and name not in used)


def touched_by(sources):
    """{path of a file: the private names that it touches or overrides}; sources: {path: text}"""
    trees = {path: ast.parse(text) for path, text in sources.items()}
    package = collections.Counter(name for tree in trees.values() for name in defined(tree))
    used = {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Load)
    }
    return {
        path: (set(touched_in(tree, package)) | set(for_torch_to_call(tree, used))) - OURS - WORDS
        for path, tree in trees.items()
    }


def files():
    return {str(path.relative_to(PACKAGE)): path.read_text() for path in PACKAGE.glob("shoal/**/*.py")}


def wrappers(text):
    """[(name, whether it takes all that comes)] of functions that functools.wraps makes look like others."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and any("functools.wraps(" in ast.unparse(one) for one in node.decorator_list):
            takes = node.args
            named = [one.arg for one in takes.posonlyargs + takes.args if one.arg != "self"]
            yield node.name, not named and takes.vararg is not None and takes.kwarg is not None


class PrivateNames(unittest.TestCase):
    def test_torch_has_them(self):
        self.assertEqual(missing(NAMES), [])

    def test_one_that_torch_has_not_is_seen(self):
        gone = {"torch": ("_gone", "_assert_async"), "torch._gone": ("anything",), "torch.nn": (("_gone", "Module"),)}
        gone["torch.nn.parallel"] = (("_later", "_earlier"), "DistributedDataParallel.__init__.__code__._gone")
        self.assertEqual(
            missing(gone),
            [
                "torch: _gone",
                "torch._gone: anything",
                "torch.nn.parallel: ('_later', '_earlier')",
                "torch.nn.parallel: DistributedDataParallel.__init__.__code__._gone",
            ],
        )

    def test_what_they_take(self):
        for where, name, wanted in ARGUMENTS:
            found = functools.reduce(getattr, name.split("."), importlib.import_module(where))
            self.assertEqual(wanted - set(inspect.signature(found).parameters), set(), name)

    def test_all_that_is_touched_is_listed(self):
        """Whoever touches one more adds it to NAMES."""
        paths = listed(NAMES)
        for path, touched in touched_by(files()).items():
            self.assertEqual([name for name in touched if not is_listed(name, paths)], [], path)

    def test_all_that_is_listed_is_touched(self):
        touched = " ".join(name for names in touched_by(files()).values() for name in names)
        names = set(PRIVATE.findall(touched))
        self.assertEqual([path for path in listed(NAMES) if PRIVATE.findall(path)[-1] not in names], [])

    def test_each_way_to_touch_one_is_seen(self):
        cases = {
            "import torch\ntorch._one(1)": {"_one"},
            "import torch.distributed as dist\ndist._one.two = 3": {"_one"},
            "import torch._one.two": {"torch._one.two"},
            "from torch.one import _two": {"torch.one._two"},
            "from torch._one import two": {"torch._one.two"},
            "def one(two):\n    return two.three[0]._four": {"_four"},
            "def one(two):\n    return two()._three()": {"_three"},
            "def one(two):\n    return getattr(two, '_three', None)": {"_three"},
            "NAME = '_one'": {"_one"},
            # torch's although this file has one of that name too
            "import torch\ndef _one():\n    return torch._one": {"_one"},
            # torch's to call
            "class One:\n    _two = 3\n    def _four(self):\n        pass": {"_two", "_four"},
            "class One:\n    def _two(self):\n        return super()._two()": {"_two"},
            # shoal's own
            "class One:\n    def _two(self):\n        pass\n"
            "class Three(One):\n    def _two(self):\n        super()._two()": set(),
            "class One:\n    def two(self):\n        self._three = 4\n        return self._three": set(),
            "class One:\n    def two(self):\n        return self._elsewhere()": set(),
            "def one(two):\n    return two._elsewhere": {"_elsewhere"},
            "def _one(_two):\n    return _one.__name__": set(),
        }
        other = "def _elsewhere():\n    return _elsewhere"
        for text, touched in cases.items():
            self.assertEqual(touched_by({"case": text, "other": other})["case"], touched, text)

    def test_one_that_is_gone_is_an_error(self):
        find = HOOKS["find"]
        holder = type("holder", (), {"_later": 1, "_earlier": 2})
        self.assertEqual(find(holder, "_later", "_earlier"), "_later")
        with self.assertRaisesRegex(ImportError, "has no _latest or _last in holder, and torch.sagemaker changes it"):
            find(holder, "_latest", "_last")


class Wrappers(unittest.TestCase):
    def test_they_take_whatever_torchs_function_takes(self):
        """And bind it to its signature: the next torch has more."""
        for path, text in files().items():
            self.assertEqual([name for name, takes_all in wrappers(text) if not takes_all], [], path)

    def test_arguments_have_the_names_that_torch_has(self):
        """Wherever they are in the call, and whatever else this torch's function takes."""

        def of_this_torch(first, group=None, *, later=7):
            pass

        bind = HOOKS["binder"](of_this_torch, process_group=None, group=8)
        self.assertEqual(bind(1), {"first": 1, "group": None, "later": 7, "process_group": None})
        self.assertEqual(bind(1, 2, 3, later=4), {"first": 1, "group": 2, "later": 4, "process_group": 3})
        self.assertRaises(TypeError, bind)
        self.assertRaises(TypeError, bind, 1, unknown=2)

    def test_one_that_repeats_arguments_is_seen(self):
        text = "@functools.wraps(one)\ndef {}({}):\n    pass\n"
        all_there_is = "*given, **named"
        cases = {
            all_there_is: True,
            f"self, {all_there_is}": True,
            "*given, more=1, **named": True,
            "one, *given, **named": False,
            "*given": False,
            "one=None": False,
        }
        for arguments, takes_all in cases.items():
            self.assertEqual(list(wrappers(text.format("two", arguments))), [("two", takes_all)], arguments)


if __name__ == "__main__":
    sys.exit(suite.main())
