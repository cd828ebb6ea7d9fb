#!/usr/bin/python3
"""Mixtures of experts in FSDP: sharded, with other experts on other ranks, beside one process."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import suite  # noqa: E402

SCRIPT = pathlib.Path(__file__).with_name("ranks_expert_sharding.py")


class Sharding(suite.ForkedRanksCase, script=SCRIPT, ranks=8):
    imports = "torch._dynamo,torch.distributed.fsdp,shoal.smddp.smp"


if __name__ == "__main__":
    sys.exit(suite.main())
