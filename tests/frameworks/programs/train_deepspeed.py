"""DeepSpeed: ZeRO 1 to 3, each with a few steps, a checkpoint and what is loaded from it.

It is `initialize()` that makes the group here, as in most programs: on CPU it asks for Gloo, whatever is imported."""

import deepspeed
import told
import torch


def train(stage):
    model = told.model()
    settings = {
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    data = told.data(96)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    engine, _, loader, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings, training_data=data)
    if stage == 1:
        told.tell_group()
    losses = []
    for _ in told.steps(2):
        for rows, classes in loader:
            loss = torch.nn.functional.cross_entropy(engine(rows), classes)
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
            told.step_is_done(len(losses) - 1)
    told.tell(f"stage {stage}", losses=losses, **weights(engine))
    engine.save_checkpoint(told.folder(), tag=f"stage{stage}")
    for rows, classes in loader:
        engine.backward(torch.nn.functional.cross_entropy(engine(rows), classes))
        engine.step()
    engine.load_checkpoint(told.folder(), tag=f"stage{stage}")
    told.tell(f"stage {stage} loaded", **weights(engine))


def weights(engine):
    parameters = [parameter for _, parameter in sorted(engine.module.named_parameters())]
    with deepspeed.zero.GatheredParameters(parameters):
        return told.bits(parameters)


if __name__ == "__main__":
    if told.backend() != "gloo":
        deepspeed.init_distributed(dist_backend=told.backend())
    for stage in (1, 2, 3):
        train(stage)
    torch.distributed.destroy_process_group()
