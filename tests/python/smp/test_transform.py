#!/usr/bin/python3
"""Tensor parallelism inside of hybrid sharding, on 8 ranks."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import suite  # noqa: E402


SCRIPT = pathlib.Path(__file__).with_name("ranks_transform.py")


class Transform(suite.ForkedRanksCase, script=SCRIPT, ranks=8):
    imports = "torch._dynamo,torch.distributed.fsdp,torch.distributed.checkpoint,shoal.smddp.smp"


if __name__ == "__main__":
    sys.exit(suite.main())
