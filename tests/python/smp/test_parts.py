#!/usr/bin/python3
"""Divided modules beside whole ones on 4 ranks, and how parameters are divided."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import suite  # noqa: E402

sys.path.insert(0, str(suite.TREE / "worker" / "python"))
SCRIPT = pathlib.Path(__file__).with_name("ranks_parts.py")


class Parts(suite.ForkedRanksCase, script=SCRIPT, ranks=4):
    imports = "shoal.smddp.smp"


class Split(unittest.TestCase):
    def test_parts_make_the_whole(self):
        import torch
        from shoal.smddp.smp.tensor_parallel._split import Split

        whole = torch.arange(12 * 8).reshape(12, 8)
        for dim, sections, size in ((0, 1, 2), (0, 3, 2), (0, 3, 4), (1, 1, 4), (1, 2, 2), (0, 1, 1)):
            split = Split(dim, sections)
            parts = [split.part(whole, rank, size) for rank in range(size)]
            self.assertTrue(all(part.shape[dim] * size == whole.shape[dim] for part in parts))
            self.assertTrue(torch.equal(split.whole(parts), whole))

    def test_a_part_has_its_share_of_every_section(self):
        import torch
        from shoal.smddp.smp.tensor_parallel._split import Split

        self.assertEqual(Split(0, 3).part(torch.arange(12), 1, 2).tolist(), [2, 3, 6, 7, 10, 11])

    def test_what_does_not_divide(self):
        from shoal import errors
        from shoal.smddp.smp.tensor_parallel._split import Split

        Split(0, 3).check("w", (12, 2), 4)
        with self.assertRaisesRegex(errors.InvalidError, "w has 12 along dimension 0 in 3 sections"):
            Split(0, 3).check("w", (12, 2), 3)


if __name__ == "__main__":
    sys.exit(suite.main())
