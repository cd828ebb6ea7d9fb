#!/usr/bin/python3
"""Hybrid sharding on 8 ranks: degrees, and checkpoints that go from one to another."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import suite  # noqa: E402


SCRIPT = pathlib.Path(__file__).with_name("ranks_fsdp.py")


class Sharding(suite.ForkedRanksCase, script=SCRIPT, ranks=8):
    imports = "torch._dynamo,torch.distributed.fsdp,torch.distributed.checkpoint,shoal.smddp.smp"


if __name__ == "__main__":
    sys.exit(suite.main())
