"""Two processes of multiprocessing, started as the first argument says, of which the second ends after a collective,
in the way that a later argument says: the first one says what it hears of that in its next collective. The second
argument is a folder for stores."""

import sys

import shoal.torch  # noqa: F401 (registers the backend)
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def rank(number, how, store):
    dist.init_process_group("shoal", init_method=f"file://{store}", rank=number, world_size=2)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    if number == 1:
        if how == "raises":
            raise ValueError("its own error")
        sys.exit(3 if how == "exits" else 0)
    try:
        dist.all_reduce(tensor)
    except RuntimeError as error:
        print(f"HEARD {how}: {error}", flush=True)


def main():
    method, folder, *hows = sys.argv[1:]
    context = mp.get_context(method)
    for how in hows:
        words = how, f"{folder}/{how}"
        processes = [context.Process(target=rank, args=(number, *words)) for number in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        print(f"ENDED {how} {[process.exitcode for process in processes]}", flush=True)


if __name__ == "__main__":
    main()
