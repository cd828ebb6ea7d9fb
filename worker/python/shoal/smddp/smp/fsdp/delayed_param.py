"""torch.sagemaker.delayed_param: parameters that get their memory, and their first values, inside FSDP.

The model is made on the meta device, where tensors have shapes alone. FSDP then asks for the values of one
module after another (param_init_fn), so no process ever holds more than it must. Values come from the
default random generator: ranks that were seeded alike make the same ones.
"""

import contextlib

import torch

from shoal import errors
from shoal.smddp.smp import _random, moe_layer
from shoal.smddp.smp.fsdp import module_utils
from shoal.smddp.smp.logger import get_logger


class NotInitializedError(errors.InvalidError, AssertionError):
    """The error of validate_params_and_buffers_inited(): by SMP's reference an AssertionError."""


class DelayedParamIniter:
    """Gives FSDP the functions that give the parameters of `model` their values.

    init_method_using_config: called with one module after another; it sets what the module itself has, not its
    children. Default: a module's reset_parameters(), the model's _init_weights() where it has one (as models of Hugging
    Face's transformers do), and ones for the scale of a normalization. A parameter that none of them sets is an
    InvalidError that names it.
    verbose: log every module."""

    def __init__(self, model, init_method_using_config=None, verbose=False):
        self.model = model
        self.init_method_using_config = init_method_using_config
        self.verbose = verbose
        self._unset = {id(parameter): parameter for parameter in model.parameters() if parameter.is_meta}
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._in_place_of = {}  # meta parameter -> the one that took its place: a shared one stays shared

    def get_param_init_fn(self):
        """For FSDP's param_init_fn."""
        return self._init_module

    def get_post_param_init_fn(self):
        """For post_param_init_fn, which FSDP's constructor has once torch.sagemaker is imported: shares the
        weights again that a custom init_method_using_config has made two of, by the model's tie_weights()."""
        return tie_weights

    def count_num_params(self, module, *args):
        """Elements of the model's parameters on the meta device that `module` itself has and that have not
        been counted; they count as initialized from now on. args: such parameters, in place of all."""
        parameters = args or tuple(module._parameters.values())
        found = {id(p): p for p in parameters if p is not None and id(p) in self._unset}
        for key in found:
            del self._unset[key]
        return sum(parameter.numel() for parameter in found.values())

    @contextlib.contextmanager
    def validate_params_and_buffers_inited(self, enabled=True):
        """Around FSDP's constructor: raises NotInitializedError, naming what, unless every parameter was given
        values and no buffer is left on the meta device."""
        yield
        if not enabled:
            return
        missing = [self._names[key] for key in self._unset]
        if missing:
            raise NotInitializedError(f"{len(missing)} parameters were not initialized: {', '.join(missing[:5])}")
        left = [
            name
            for named in (self.model.named_parameters(), self.model.named_buffers())
            for name, tensor in named
            if tensor.is_meta
        ]
        if left:
            raise NotInitializedError(f"still on the meta device: {', '.join(left[:5])}")

    def _init_module(self, module):
        before = dict(module._parameters)
        if self.verbose:
            get_logger().info("initializing %s", type(module).__name__)
        with torch.no_grad():
            if self.init_method_using_config is not None:
                self.init_method_using_config(module)
            else:
                self._init_by_default(module)
        self.count_num_params(module, *(p for p in before.values() if p is not None))

    def _init_by_default(self, module):
        device = module_utils.default_device()
        mine = {name: p for name, p in module._parameters.items() if p is not None and p.is_meta}
        known = {name: self._in_place_of[id(p)] for name, p in mine.items() if id(p) in self._in_place_of}
        if len(known) < len(mine):
            module_utils.empty_module_params(module, device)
            with _of_its_own(module):
                init_values(module, self.model)
        for name, parameter in mine.items():
            if name in known:
                module._parameters[name] = known[name]
            self._in_place_of[id(parameter)] = module._parameters[name]
        module_utils.move_buffers_to_device(module, device)


def _of_its_own(module):
    """Random numbers for an expert: ranks that were seeded alike have other experts in the same place."""
    place = moe_layer.place_of(module)
    if place is None:
        return contextlib.nullcontext()
    return _random.seeded(int(torch.randint(2**31, (1,)).item()) + place.rank)


def init_values(module, model):
    """First values for what `module` itself has, as its class or `model` gives them. A divided module
    (tensor_parallel) makes the whole parameter and keeps its part, so that the values are those that one
    process would have made."""
    whole = getattr(module, "whole_parameters", None)
    with whole() if whole else contextlib.nullcontext():
        own = [(name, p) for name, p in module._parameters.items() if p is not None]
        for _, parameter in own:
            if parameter.is_floating_point():
                parameter.detach().fill_(float("nan"))  # to see what nobody sets
        for call in (
            _of_model(module, model),
            getattr(module, "reset_parameters", None),
            getattr(module, "_reset_parameters", None),
        ):
            if call is not None and any(_is_unset(p) for _, p in own):
                call()
        for name, parameter in own:
            if _is_unset(parameter) and type(module).__name__.endswith("Norm"):
                parameter.detach().fill_(1.0 if name == "weight" else 0.0)
            if _is_unset(parameter):
                raise errors.InvalidError(
                    f"DelayedParamIniter: nothing initializes {name} of a {type(module).__name__}: it has no "
                    "reset_parameters(), and the model no _init_weights(); give an init_method_using_config"
                )


def _of_model(module, model):
    init = getattr(model, "_init_weights", None)
    return (lambda: init(module)) if callable(init) else None


def _is_unset(parameter):
    return parameter.numel() > 0 and bool(torch.isnan(parameter.detach()).any())


def tie_weights(module):
    """The module's own tie_weights(), where it has one."""
    tie = getattr(module, "tie_weights", None)
    if callable(tie):
        tie()


def call_after_init(arguments, post_param_init_fn):
    """Make FSDP's param_init_fn call post_param_init_fn(module) once all of the module's parameters have
    left the meta device. arguments: FSDP's."""
    module, init = arguments["module"], arguments.get("param_init_fn")
    if init is None:
        return
    called = []

    def init_and_call(child):
        init(child)
        if not called and not any(parameter.is_meta for parameter in module.parameters()):
            called.append(True)
            post_param_init_fn(module)

    arguments["param_init_fn"] = init_and_call
