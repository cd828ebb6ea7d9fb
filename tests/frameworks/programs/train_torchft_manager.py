"""torchft: its Manager over two replicas, of which one is killed in the middle, is started again and takes the other's
state. Both are one rank each. The program is their launcher, too: a lighthouse, and a process for each replica.

On shoal the Manager is given a group of shoal's own, which goes on with other ranks (Options(reconfigurable=True)).
"""

import concurrent.futures
import os
import signal
import subprocess
import sys

import told
import torch
import torch.distributed as dist
import torchft
import torchft.coordination
import torchft.optim

REPLICAS, STEPS, KILLED_AT = 2, 6, 3
BY_SHOAL = "SHOAL_AS" in os.environ


def make_group():
    if not BY_SHOAL:
        return torchft.ProcessGroupGloo()
    import shoal.torch

    return shoal.torch.make_group(dist.HashStore(), 0, 1, options=shoal.torch.Options(reconfigurable=True))


def name_of(group):
    return group.name() if BY_SHOAL else group._pg._get_backend(torch.device("cpu")).name()


def train(number, dies):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    layers = told.model()
    optimizer = torch.optim.AdamW(layers.parameters(), lr=0.01)

    def load(state):
        layers.load_state_dict(state["layers"])
        optimizer.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=(group := make_group()),
        min_replica_size=REPLICAS,
        use_async_quorum=False,
        state_dict=lambda: {"layers": layers.state_dict(), "optimizer": optimizer.state_dict()},
        load_state_dict=load,
        replica_id=f"replica{number}",
        hostname="localhost",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
    )
    model = torchft.DistributedDataParallel(manager, layers)
    stepping = torchft.optim.OptimizerWrapper(manager, optimizer)
    losses = {}
    while (step := manager.current_step()) < STEPS:
        stepping.zero_grad()  # the replicas of this step agree, and who is behind takes the other's state
        step = manager.current_step()
        rows, classes = told.data(16, seed=100 * step + number).tensors
        loss = torch.nn.functional.cross_entropy(model(rows), classes)
        if dies and step == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        stepping.step()
        if manager.current_step() > step:
            losses[step] = loss.item()
    told.say("group", number, called="gloo", backend=name_of(group))
    told.say("trained", number, losses=losses, size=group.size(), **told.bits(layers))
    manager.shutdown()


def live(number, lighthouse):
    """Run a replica to its end, and once more if it is killed; its exit statuses."""
    codes = []
    while not codes or codes[-1] == -signal.SIGKILL:
        words = [sys.executable, __file__, str(number), "dies" if (number, codes) == (1, []) else "lives"]
        codes.append(subprocess.run(words, env={**os.environ, "TORCHFT_LIGHTHOUSE": lighthouse}).returncode)
    return codes


def launch():
    lighthouse = torchft.coordination.LighthouseServer(bind="127.0.0.1:0", min_replicas=REPLICAS, join_timeout_ms=100)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        codes = list(threads.map(lambda number: live(number, lighthouse.address()), range(REPLICAS)))
    lighthouse.shutdown()
    assert codes == [[0], [-signal.SIGKILL, 0]], codes


if __name__ == "__main__":
    if len(sys.argv) == 1:
        launch()
    else:
        train(int(sys.argv[1]), sys.argv[2] == "dies")
