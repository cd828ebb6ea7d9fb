"""torch.sagemaker.transform: a model divided among the tensor parallel ranks."""

import logging

import torch
import torch.distributed as dist

from shoal import errors
from shoal.smddp.smp.tensor_parallel import _divided, _plan, transformer

_log = logging.getLogger("shoal.smddp")
COMMUNICATION = ("p2p", "all_gather")


def transform(model, state, device, dtype, config, load_state_dict_from_rank0, cp_comm_type, replace=None):
    """Do the work of torch.sagemaker.transform; state: torch.sagemaker.state. replace(model): replaces modules after
    what is divided has been found by the names that the model has."""
    if cp_comm_type not in COMMUNICATION:
        raise errors.InvalidError(f"cp_comm_type is {cp_comm_type!r}, but one of {COMMUNICATION} is wanted")
    plan = _plan_of(config)
    has_meta = any(parameter.is_meta for parameter in model.parameters())
    model = model.to(device=None if has_meta else device, dtype=dtype)
    styles = _styles(model, plan, state.tp_size)
    if replace is not None:
        replace(model)
    styles = {name: styles[module] for name, module in model.named_modules() if module in styles}
    transformer.register_layers(model, styles)
    if state.tp_size == 1:
        return model
    tp = _divided.TensorParallel(state.tp_process_group, state.tp_rank, state.tp_size, state.random_seed)
    if not styles:
        raise errors.UnsupportedError(
            f"transform: nothing in a {type(model).__name__} is known how to divide into tensor_parallel_degree "
            f"{tp.size} parts; config={{'tensor_parallel_plan': {{name: style}}}} says it"
        )
    first_group = state.rank // state.tp_size == 0
    if load_state_dict_from_rank0:
        _check_rank0(model, state)
    if not load_state_dict_from_rank0 or first_group:
        _give_out(model, tp, from_first=load_state_dict_from_rank0)
    _divide(model, styles, tp)
    return model


def _styles(model, plan, size):
    """{module: style}. Where nothing is divided, a plan that comes with the model may say what is not known here:
    it only tells which layers there are."""
    named = _plan.match(model, plan or _plan.of_model(model), check=bool(plan) or size > 1)
    modules = dict(model.named_modules())
    return {modules[name]: style for name, style in (named or _plan.of_known(model, size)).items()}


def _plan_of(config):
    """The script's own plan in `config`; None."""
    if config is None:
        return None
    if not isinstance(config, dict):
        raise errors.UnsupportedError(f"transform: config is a {type(config).__name__}, but a dict is wanted")
    unknown = sorted(set(config) - {"tensor_parallel_plan"})
    if unknown:
        raise errors.InvalidError(f"transform: config has {unknown[0]!r}; its one key is tensor_parallel_plan")
    return config.get("tensor_parallel_plan")


def _divide(model, styles, tp):
    memo = {}
    modules = dict(model.named_modules())
    parents = set()
    for name, style in styles.items():
        _plan.divide_module(name, modules[name], style, tp, memo)
        if style == "colwise":
            parents.add(name.rpartition(".")[0])
    _divided.check_shared(model, memo)
    for name in sorted(parents):
        _plan.divide_heads(name, modules[name], tp)
    for module in modules.values():
        if isinstance(module, torch.nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0  # its path for inference reads whole weights
        elif isinstance(module, torch.nn.TransformerEncoder):
            module.enable_nested_tensor = module.use_nested_tensor = False  # and so does this one's, from 2.1 on
    if tp.rank == 0:
        _log.debug("transform: %d modules divided into %d parts", len(styles), tp.size)


def _check_rank0(model, state):
    """Rank 0 has the weights; all hear of it where it has not."""
    missing = [None]
    if state.rank == 0:
        missing = [next((name for name, p in model.named_parameters() if p.is_meta), None)]
    dist.broadcast_object_list(missing, src=0)
    if missing[0] is not None:
        raise errors.InvalidError(
            f"transform: load_state_dict_from_rank0 takes rank 0's weights, but {missing[0]} is on its meta device"
        )


def _give_out(model, tp, from_first):
    """The first tensor parallel rank's parameters and buffers on all, so that the parts are of one model.
    from_first: the others need have none, and get memory on the CPU for them."""
    tensors = dict(model.named_parameters())
    tensors.update(model.named_buffers())
    mine = [(name, tuple(t.shape), str(t.dtype), t.is_meta) for name, t in tensors.items()]
    everyone = [None] * tp.size
    dist.all_gather_object(everyone, mine, group=tp.group)
    _check_same_model(everyone, from_first)
    if from_first:
        _materialize(model)
        tensors = dict(model.named_parameters())
        tensors.update(model.named_buffers())
    source = dist.get_global_rank(tp.group, 0)
    for name, _, _, is_meta in everyone[0]:
        if not is_meta:
            dist.broadcast(tensors[name].detach(), src=source, group=tp.group)


def _check_same_model(everyone, from_first):
    for rank, other in enumerate(everyone):
        for mine, theirs in zip(everyone[0], other):
            if mine[:3] != theirs[:3] or len(everyone[0]) != len(other):
                raise errors.MismatchError(
                    f"transform: tensor parallel ranks 0 and {rank} have different models: {mine[:3]} and {theirs[:3]}"
                )
            if mine[3] != theirs[3] and not from_first:
                raise errors.MismatchError(
                    f"transform: {mine[0]} is on the meta device of one of the tensor parallel ranks 0 and {rank}; "
                    "load_state_dict_from_rank0=True gives rank 0's weights to the others"
                )


def _materialize(model):
    """Memory on the CPU for what is on the meta device."""
    made = {}
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is None or not tensor.is_meta:
                    continue
                if id(tensor) not in made:
                    empty = torch.empty_like(tensor, device="cpu")
                    if isinstance(tensor, torch.nn.Parameter):
                        empty = torch.nn.Parameter(empty, requires_grad=tensor.requires_grad)
                    made[id(tensor)] = (tensor, empty)
                table[name] = made[id(tensor)][1]
