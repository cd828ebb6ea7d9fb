"""A script for SMDDP with Lightning, as Amazon's guide has it. Its argument is the backend."""

import os
import sys

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.strategies import DDPStrategy

environment = LightningEnvironment()
environment.world_size = lambda: int(os.environ["WORLD_SIZE"])
environment.global_rank = lambda: int(os.environ["RANK"])


class Line(LightningModule):
    """Finds which numbers made a sum."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, index):
        loss = torch.nn.functional.mse_loss(self.layer(batch), batch @ torch.arange(8.0)[:, None])
        print(f"loss of rank {self.global_rank}: {loss.item():.9g}", flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.2)


seed_everything(1)
trainer = Trainer(
    max_epochs=4,
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    strategy=DDPStrategy(
        cluster_environment=environment, process_group_backend=sys.argv[1], accelerator="cpu"
    ),
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Line(), torch.utils.data.DataLoader(torch.randn(128, 8), batch_size=8))
assert torch.distributed.get_backend() == sys.argv[1]
