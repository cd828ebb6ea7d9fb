"""Lightning: a Trainer with the strategy that the program is given, or Fabric. The launcher is Lightning's own."""

import os
import sys

import lightning
import told
import torch
from lightning.fabric.strategies import DDPStrategy
from lightning.pytorch.strategies import ModelParallelStrategy

DEVICES = int(os.environ["TEST_RANKS"])
NODES = int(os.environ.get("TEST_NODES", "1"))
BY_NAME = told.backend() == "shoal"
PLACE = {"accelerator": "cpu", "devices": DEVICES, "num_nodes": NODES}


def loader():
    return torch.utils.data.DataLoader(told.data(96), batch_size=8, shuffle=True)


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = told.model()
        self.losses = []

    def configure_model(self):
        if not isinstance(self.trainer.strategy, ModelParallelStrategy):
            return
        from torch.distributed.fsdp import fully_shard

        if not isinstance(self.layers, torch.distributed.fsdp.FSDPModule):
            fully_shard(self.layers, mesh=self.device_mesh["data_parallel"])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)

    def on_fit_start(self):
        told.tell_group()

    def training_step(self, batch, number):
        rows, classes = batch
        loss = torch.nn.functional.cross_entropy(self.layers(rows), classes)
        self.log("loss", loss, sync_dist=True)
        self.losses.append(loss.item())
        return loss

    def on_train_batch_end(self, outputs, batch, number):
        told.step_is_done(self.global_step - 1)

    def on_fit_end(self):
        whole = [getattr(value, "full_tensor", lambda value=value: value)() for value in self.parameters()]
        told.tell("trained", losses=self.losses, logged=float(self.trainer.logged_metrics["loss"]), **told.bits(whole))


def fit(strategy):
    lightning.seed_everything(11)
    trainer = lightning.Trainer(
        **PLACE,
        strategy=strategy,
        max_epochs=-1 if told.asked() == "interrupt" else 3,
        logger=False,
        log_every_n_steps=1,
        default_root_dir=told.folder(),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(), loader())


def fabric():
    strategy = DDPStrategy(process_group_backend="shoal") if BY_NAME else "ddp"
    made = lightning.Fabric(**PLACE, strategy=strategy)
    made.launch()
    made.seed_everything(11)
    told.tell_group()
    model, optimizer = made.setup(model := told.model(), torch.optim.SGD(model.parameters(), lr=0.1))
    losses = []
    for _ in told.steps(3):
        for rows, classes in made.setup_dataloaders(loader()):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(rows), classes)
            made.backward(loss)
            optimizer.step()
            losses.append(loss.item())
            told.step_is_done(len(losses) - 1)
    together = made.all_reduce(torch.tensor(losses))
    told.tell("trained", losses=losses, mean=together.tolist(), **told.bits(model))


if __name__ == "__main__":
    if sys.argv[1] == "fabric":
        fabric()
    elif sys.argv[1] == "model_parallel":
        fit(ModelParallelStrategy(process_group_backend="shoal" if BY_NAME else None))
    else:
        fit(sys.argv[1])
