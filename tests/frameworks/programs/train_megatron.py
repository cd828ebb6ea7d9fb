"""Megatron-core: a small GPT with tensor parallelism, its DistributedDataParallel and its distributed optimizer.

Megatron names CUDA devices itself, so what it makes there is made on the CPU; a user with GPUs needs none of this.
"""

import os

import told
import torch
from torch.overrides import TorchFunctionMode


class OnTheCPU(TorchFunctionMode):
    def __torch_function__(self, function, types, arguments=(), named=None):
        named = named or {}
        if str(named.get("device", "")).startswith("cuda"):
            named["device"] = "cpu"
        result = function(*arguments, **named)
        asks_type = function is torch.Tensor.type and len(arguments) == 1
        return result.replace("torch.", "torch.cuda.") if asks_type else result


for name, instead in {
    "current_device": lambda: "cpu",
    "synchronize": lambda *_: None,
    "manual_seed": torch.manual_seed,
    "get_rng_state": lambda device=None: torch.get_rng_state(),
    "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
}.items():
    setattr(torch.cuda, name, instead)
    setattr(torch.cuda.random, name, instead)

from megatron.core import parallel_state, tensor_parallel  # noqa: E402
from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.models.gpt.gpt_model import GPTModel  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

WORDS, LENGTH = 32, 12


def model():
    sizes = TransformerConfig(
        num_layers=2,
        hidden_size=16,
        num_attention_heads=2,
        tensor_model_parallel_size=2,
        use_cpu_initialization=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        gradient_accumulation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
    )
    layers = get_gpt_layer_local_spec(normalization="LayerNorm")
    made = GPTModel(sizes, layers, vocab_size=WORDS, max_sequence_length=LENGTH)
    settings = DistributedDataParallelConfig(
        use_distributed_optimizer=True, overlap_grad_reduce=True, overlap_param_gather=True
    )
    return DistributedDataParallel(sizes, settings, made)


def train():
    tensor_parallel.model_parallel_cuda_manual_seed(5)
    torch.manual_seed(5)
    wrapped = model()
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=1e-2, use_distributed_optimizer=True, clip_grad=1.0), [wrapped]
    )
    part = parallel_state.get_data_parallel_rank()
    words = torch.randint(0, WORDS, (4, LENGTH + 1), generator=torch.Generator().manual_seed(10 + part))
    places = torch.arange(LENGTH).expand(4, LENGTH)
    mask = torch.ones(LENGTH, LENGTH).tril().logical_not().expand(1, 1, LENGTH, LENGTH)
    losses, norms = [], []
    for step in told.steps(8):
        wrapped.zero_grad_buffer()
        optimizer.zero_grad()
        loss = wrapped(words[:, :-1], places, mask, labels=words[:, 1:]).mean()
        loss.backward()
        finalize_model_grads([wrapped])
        _, norm, _ = optimizer.step()
        losses.append(loss.item())
        norms.append(float(norm))
        told.step_is_done(step)
    wrapped.start_param_sync(force_sync=True)  # the parts of the last step, which the next one would have gathered
    told.tell("trained", losses=losses, norms=norms, **told.bits(wrapped.module))


def main():
    torch.distributed.init_process_group("gloo")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
    told.tell_group()
    for what in ("tensor_model_parallel", "data_parallel"):
        told.tell_group(what, getattr(parallel_state, f"get_{what}_group")())
    with OnTheCPU():
        train()
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
