"""torchft: a group that is made anew for each quorum, around shoal's or Gloo's. torchft constructs Gloo's by hand,
which stays Gloo, so that the user of shoal writes the class below."""

import os

import shoal.torch
import told
import torch
import torch.distributed as dist
import torchft
from torchft.process_group import ProcessGroupWrapper, reconfigure_with_store


class ProcessGroupShoal(ProcessGroupWrapper):
    def _create_pg(self, store, rank, size):
        return shoal.torch.make_group(store, rank, size, self._timeout)

    def getBackendName(self):
        return "torchft-shoal"


def train(group, store, rank, size, quorum):
    reconfigure_with_store(group, f"{store}/quorum/{quorum}", rank, size)
    name = group._pg._get_backend(torch.device("cpu")).name()
    # Later the daemon of the quorum before may still be ending.
    daemons = {"daemons": len(list(told.daemons()))} if quorum == 0 else {}
    told.say(f"group {quorum}", rank, called="gloo", backend=name, **daemons)
    model = told.model(seed=quorum)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows, classes = (torch.stack(part) for part in zip(*list(told.data())[rank::size]))
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(rows), classes)
        loss.backward()
        for parameter in model.parameters():
            group.allreduce([parameter.grad], dist.AllreduceOptions()).wait()
        optimizer.step()
        losses.append(loss.item())
    told.say(f"trained {quorum}", rank, losses=losses, **told.bits(model))


if __name__ == "__main__":
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    kind = ProcessGroupShoal if "SHOAL_AS" in os.environ else torchft.ProcessGroupGloo
    group = kind()
    for quorum in range(2):
        train(group, store, rank, size, quorum)
    group.shutdown()
