"""ignite: idist starts the ranks, wraps the model, parts the data and adds up the metrics."""

import os

import ignite.distributed as idist
import told
import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy, Loss


def training(local_rank):
    told.tell_group()
    model = idist.auto_model(told.model())
    assert isinstance(model, torch.nn.parallel.DistributedDataParallel), type(model)
    optimizer = idist.auto_optim(torch.optim.AdamW(model.parameters(), lr=0.01))
    loader = idist.auto_dataloader(told.data(96), batch_size=16, shuffle=True)
    trainer = create_supervised_trainer(model, optimizer, torch.nn.functional.cross_entropy)
    losses = []

    @trainer.on(Events.ITERATION_COMPLETED)
    def note(engine):
        losses.append(engine.state.output)
        told.step_is_done(engine.state.iteration - 1)

    trainer.run(loader, max_epochs=10**6 if told.asked() == "interrupt" else 3)
    told.tell("trained", losses=losses, **told.bits(model))
    metrics = {"accuracy": Accuracy(), "loss": Loss(torch.nn.functional.cross_entropy)}
    measured = create_supervised_evaluator(model, metrics).run(loader).metrics
    told.tell("evaluated", together=idist.all_gather(torch.tensor([idist.get_rank() + 0.5])).tolist(), **measured)


if __name__ == "__main__":
    place = {"nproc_per_node": int(os.environ["TEST_RANKS"]), "master_port": int(os.environ["TEST_PORT"])}
    if "TEST_NODES" in os.environ:
        place |= {"nnodes": 2, "node_rank": int(os.environ["NODE_RANK"]), "master_addr": os.environ["MASTER_ADDR"]}
    with idist.Parallel(backend="gloo", **place) as parallel:
        parallel.run(training)
