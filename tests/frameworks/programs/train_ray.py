"""Ray Train: a TorchTrainer with its workers on this node, which reports and saves checkpoints."""

import os
import tempfile

import ray
import ray.train.torch
import told
import torch


def training():
    told.tell_group()
    model = ray.train.torch.prepare_model(told.model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    order = torch.Generator().manual_seed(2)
    loader = torch.utils.data.DataLoader(told.data(96), batch_size=8, shuffle=True, generator=order)
    loader = ray.train.torch.prepare_data_loader(loader)
    losses = []
    for _ in told.steps(3):
        for rows, classes in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(rows), classes)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            told.step_is_done(len(losses) - 1)
        with tempfile.TemporaryDirectory() as folder:
            torch.save(model.state_dict(), f"{folder}/model.pt")
            ray.train.report({"loss": losses[-1]}, checkpoint=ray.train.Checkpoint.from_directory(folder))
    told.tell("trained", losses=losses, **told.bits(model))


def begin(workers):
    """Start Ray, with as many processors as workers, for it starts one for each at once. Its node has 30 s to come,
    which no variable changes: a machine that is busy with more than this needs another try."""
    for left in reversed(range(4)):
        try:
            ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=True, object_store_memory=100 << 20)
            return
        except Exception as error:
            if not left or "timed out during startup" not in str(error):
                raise
            ray.shutdown()


if __name__ == "__main__":
    workers = int(os.environ["TEST_RANKS"])
    begin(workers)
    trainer = ray.train.torch.TorchTrainer(
        training,
        torch_config=ray.train.torch.TorchConfig(backend="gloo"),
        scaling_config=ray.train.ScalingConfig(num_workers=workers),
        run_config=ray.train.RunConfig(storage_path=told.folder()),
    )
    trainer.fit()
