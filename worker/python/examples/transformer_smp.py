"""A small language model in a script for SMP v2: each layer divided between two ranks, and sharded over two
pairs of them. In the middle it is saved, made anew, and loaded.

    shoalrun -n 4 -- python3 -m shoal.smddp transformer_smp.py [--device cuda]
"""

import functools
import shutil
import tempfile

import common
import torch
import torch.distributed as dist
import torch.sagemaker as tsm
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.sagemaker.delayed_param import DelayedParamIniter
from torch.sagemaker.distributed.checkpoint.state_dict_loader import load
from torch.sagemaker.distributed.checkpoint.state_dict_saver import async_save, maybe_finalize_async_calls
from torch.sagemaker.grad_norm import clip_grad_norm_
from torch.sagemaker.tensor_parallel.transformer import TransformerLayer
from torch.sagemaker.utils.process_group_utils import get_global_ranks


def wrap(model, device, **arguments):
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={TransformerLayer})
    return FSDP(model, auto_wrap_policy=policy, device_id=device, **arguments)


def save(model, folder):
    """Each tensor parallel rank has a checkpoint of its own, which one sharding group saves."""
    group = model.process_group
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        content = {"model": model.state_dict()}
    if tsm.state.ranker.get_rep_rank(dist.get_rank()) == 0:
        where = {"process_group": group, "coordinator_rank": min(get_global_ranks(group))}
        async_save(content, checkpoint_id=f"{folder}/tp{tsm.state.tp_rank}", **where)


def resume(folder, device):
    """The model anew, without ever having whole parameters, with the weights of the checkpoint."""
    with torch.device("meta"):
        model = common.TextModel()
    mask = torch.full((32, 32), float("-inf"), device=device).triu(1)
    model.register_buffer("mask", mask, persistent=False)
    model = tsm.transform(model)
    model.reset_parameters = lambda: torch.nn.init.zeros_(model.position)  # which no module of torch's makes
    initer = DelayedParamIniter(model)
    with initer.validate_params_and_buffers_inited():
        model = wrap(model, device, param_init_fn=initer.get_param_init_fn())
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        content = {"model": model.state_dict()}
        load(
            content,
            checkpoint_id=f"{folder}/tp{tsm.state.tp_rank}",
            process_group=model.process_group,
            coordinator_rank=min(get_global_ranks(model.process_group)),
        )
        model.load_state_dict(content["model"])
    return model


def main():
    options, rank, _ = common.start(__doc__.splitlines()[0], devices=("cpu", "cuda"))
    tsm.init({"tensor_parallel_degree": 2, "hybrid_shard_degree": 2})
    folder = [tempfile.mkdtemp(prefix="shoal-example-") if rank == 0 else None]
    dist.broadcast_object_list(folder)
    model = wrap(tsm.transform(common.TextModel()), options.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for inputs, targets in common.text_batches(tsm.state.dp_rank, tsm.state.dp_size, options.steps):
        if len(losses) == options.steps // 2:
            save(model, folder[0])
            maybe_finalize_async_calls(blocking=True, process_group=model.process_group)
            dist.barrier()
            model = resume(folder[0], options.device)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        inputs, targets = inputs.to(options.device), targets.to(options.device)
        loss = common.text_loss(model, inputs, targets)
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(model, 1.0)
        optimizer.step()
        losses.append(loss.item())
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder[0])
    common.finish(losses)


if __name__ == "__main__":
    main()
