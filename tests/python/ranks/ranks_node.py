"""One rank of a job that some launcher has started; it says where it is, as a line of JSON. die-once: rank 1
dies first, for torchrun to start all again."""

import contextlib
import json
import os
import pathlib
import signal
import sys

import shoal.torch  # noqa: F401
import torch
import torch.distributed as dist
from shoal.torch._process_group import member_of


def daemons_here():
    """The numbers of the processes in this rank's network that are a shoald."""
    network, found = os.readlink("/proc/self/ns/net"), []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if (folder / "comm").read_text() == "shoald\n" and os.readlink(folder / "ns/net") == network:
                found.append(int(folder.name))
    return found


def main():
    dist.init_process_group("shoal")
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.full((100_000,), float(rank + 1))
    dist.all_reduce(tensor)
    assert torch.all(tensor == size * (size + 1) / 2)
    if sys.argv[1:] == ["die-once"] and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    session = member_of(dist.GroupMember.WORLD).session
    place = {
        "rank": rank,
        "local_rank": int(os.environ["LOCAL_RANK"]),
        "nodes": session.job.node_count,
        "in_node": [session.job.local_rank, session.job.local_size],
        "socket": session.meeting.socket_path,
        "daemons": daemons_here(),
    }
    configuration = pathlib.Path(place["socket"]).with_suffix(".json")
    if configuration.exists():  # of a daemon that the ranks have started
        place["listen"] = json.loads(configuration.read_text())["listen"]["address"]
    dist.barrier()
    # At once: ranks have one pipe together.
    os.write(1, f"PLACE {json.dumps(place)}\n".encode())
    del session
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
