"""Ranks of a job that goes on after a loss, and takes a newcomer in, by shoal.library alone. Without arguments: a
process that starts them, three at first, and prints what it saw."""

import ctypes
import os
import pathlib
import subprocess
import sys
import tempfile

from shoal import errors, library

LIMIT_MS = 60000
GO_ON, GROW, END = range(3)


def go_on(job):
    """Go on as the next generation; another rank may be lost meanwhile."""
    while True:
        try:
            return job.reconfigure(LIMIT_MS, 5000)
        except errors.RankLostError:
            pass


def wish(job, folder):
    if (folder / "end").exists():
        return END
    return GROW if (folder / "grow").exists() and job.world_size < 3 else GO_ON


def run_rank(folder, rank):
    """One collective after the other, until rank 0 says that this is the end."""
    newcomer = rank < 0
    job = library.Job(
        "elastic",
        os.environ["SHOAL_SOCKET"],
        rank,
        0 if newcomer else 3,
        local_rank=-1,
        timeout_ms=LIMIT_MS,
        arena_bytes=64 << 20,
        newcomer=newcomer,
    )
    said, rounds, what = 0, 0, GO_ON
    data = (ctypes.c_double * 2)()
    while what != END:
        data[0], data[1] = job.rank + 1, wish(job, folder) if job.rank == 0 else 0
        address, kept = ctypes.addressof(data), None
        try:
            job.world.all_reduce(address, address, 2, library.F64, library.SUM).wait(LIMIT_MS)
            what, rounds = int(data[1]), rounds + 1
            assert data[0] == job.world_size * (job.world_size + 1) / 2, list(data)
            if said < job.generation:
                said = job.generation
                print(f"GENERATION {said} {job.rank} {job.world_size}", flush=True)
            if what == GROW:
                kept = go_on(job)
                assert kept == rounds, (kept, rounds)
        except errors.RecoverableError as error:
            print("LOST", type(error).__name__, flush=True)
            kept = go_on(job)
            assert rounds - 1 <= kept <= rounds + 1, (kept, rounds)
        if kept is not None:
            rounds = 0
    job.close()


def start(folder, rank):
    command = [sys.executable, __file__, folder, str(rank)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def until(process, beginning, end=""):
    for line in process.stdout:
        if line.startswith(beginning) and line.rstrip().endswith(end):
            return
    raise RuntimeError(f"a rank ended before '{beginning}...{end}'")


def main():
    with tempfile.TemporaryDirectory(prefix="shoal-generations-") as folder:
        ranks = [start(folder, rank) for rank in range(3)]
        for rank in ranks:
            until(rank, "GENERATION 1")
        ranks[0].kill()
        ranks[0].wait()
        for rank, process in enumerate(ranks[1:]):
            until(process, "LOST RankLostError")
            until(process, f"GENERATION 2 {rank} 2")
        newcomer = start(folder, -1)
        (pathlib.Path(folder) / "grow").touch()
        for rank, process in enumerate([ranks[1], ranks[2], newcomer]):
            until(process, "GENERATION", f"{rank} 3")
        (pathlib.Path(folder) / "end").touch()
        codes = [process.wait() for process in (ranks[1], ranks[2], newcomer)]
    print("CODES", *codes)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run_rank(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
    else:
        main()
