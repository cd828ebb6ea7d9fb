"""Cases of self_test.py about `make bench-gpu` and `make bench-torch`: tables and turns, without a GPU or torch."""

import contextlib
import io
import os
import tempfile
import unittest

import gpu
import peers
import torch_calls


class Gpu(unittest.TestCase):
    """gpu.py with stand-ins for the GPU and the programs."""

    def table(self, measure, strict=False):
        kept, gpu.ROWS = gpu.ROWS, [("what", "target", measure), ("next", "target", lambda host: ("1", True))]
        try:
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                status = gpu.table_print(None, strict)
        finally:
            gpu.ROWS = kept
        lines = printed.getvalue().splitlines()
        self.assertEqual(lines[-1], "| next | target | 1 | reached |")
        return status, lines[-2]

    def test_what_failed_is_told_by_the_status(self):
        def fails(error):
            def measure(_host):
                raise error
            return measure

        self.assertEqual(self.table(lambda host: ("2", True)), (0, "| what | target | 2 | reached |"))
        missed = (lambda host: ("2", False)), "| what | target | 2 | MISSED |"
        self.assertEqual(self.table(missed[0]), (0, missed[1]))
        self.assertEqual(self.table(missed[0], strict=True), (1, missed[1]))
        self.assertEqual(self.table(fails(peers.Missing("no torch"))),
                         (0, "| what | target | skipped: no torch |  |"))
        for error, text in ((peers.Failed("exit code 1:\nmore"), "exit code 1: more"),
                            (IndexError(), "IndexError()")):
            self.assertEqual(self.table(fails(error)), (1, f"| what | target | failed: {text} |  |"))

    def row(self, row, seconds):
        """Return what a row says of the seconds of each way's turns."""
        class Host:
            def turns(self, ranks, what):
                return seconds[ranks, what]

        kept, gpu.has_torch = gpu.has_torch, lambda: None
        try:
            return row(Host())
        finally:
            gpu.has_torch = kept

    def test_rows_of_turns(self):
        """A ratio is the median of those of the pairs."""
        turns = {"alone": [1.0, 2.0, 1.0], "shoal": [1.2, 2.2, 1.1], "torch": [2.0, 2.0, 2.0]}
        text, reached = self.row(gpu.ddp_row, {(2, "ddp"): turns})
        self.assertEqual((text, reached),
                         ("1000 ms alone; shoal's wrapper 1200 ms: 1.10; torch's on shoal 2000 ms: 2.00", True))
        turns["gloo"] = [4.0, 4.0, 4.0]
        text, _ = self.row(gpu.ddp_row, {(2, "ddp"): turns})
        self.assertIn("; on gloo 4000 ms: 4.00", text)
        turns = {"shoal": [0.01, 0.02, 0.01], "gloo": [0.04, 0.2, 0.04]}
        self.assertEqual(self.row(gpu.all_reduce_row(4), {(4, "all_reduce"): turns}),
                         ("10.00 ms, gloo 40.00 ms: 4.0 times as fast", False))
        turns = {"alone": [1e-3] * 3, "copies": [1.04e-3] * 3, "shoal": [1.01e-3, 1.5e-3, 1.01e-3]}
        self.assertEqual(self.row(gpu.products_row, {(2, "products"): turns}),
                         ("1.00 ms each alone; slowed by 1.0 %, by plain copies as fast as they go by 4.0 %", True))

    def test_programs(self):
        """A program that shoalrun starts gets the library and the package; its last line of JSON counts."""
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "bin"))
            program = os.path.join(folder, "bin", "shoalrun")
            with open(program, "w", encoding="utf-8") as file:
                file.write('#!/bin/sh\n[ "$6" = silent ] && exit\necho \'{"n": 1}\'\n'
                           'printf \'{"lib": "%s"}\\n\' "$SHOAL_LIBRARY"\n')
            os.chmod(program, 0o755)
            host = gpu.Host(folder, 2)
            self.assertEqual(host.run(1, "any"), {"lib": str(host.folder / "lib" / "libshoal.so")})
            with self.assertRaisesRegex(peers.Failed, "it says nothing"):
                host.run(1, "silent")


class TorchCalls(unittest.TestCase):
    """The tables of calls through torch, from made-up figures."""

    @staticmethod
    def measured(slower=""):
        """Two pairs in which Gloo takes three times as long as we do, but for one call."""
        cases = torch_calls.cases_of(quick=False)
        factors = {"native": 1.0, "python": 9.0, "gloo": 3.0, "shoalperf": 0.8, "alone": 0.5}

        def figure(side, what, pair):
            return factors[side] * (pair + 10) * (0.1 if side == "gloo" and what == slower else 1)

        return {side: [{torch_calls.key(what, size): [figure(side, what, pair), factors[side] * 5.0]
                        for what, size in cases[side]} for pair in range(2)] for side in torch_calls.SIDES}

    def test_each_measure_stands_beside_its_target(self):
        lines = torch_calls.tables([{"torch": "9.9", "ranks": {"2": self.measured()}}])
        said = {line.split(" | ")[0][2:]: line.split(" | ")[2] for line in lines if line.startswith("| ")}
        self.assertEqual(lines[0], "| measure | target | torch 9.9, 2 ranks |")
        found = [said[what].rstrip(" |") for what, _, _ in torch_calls.MEASURES[:5]]
        self.assertEqual(found, ["5 us", "1.25 (64 KiB); 2.25 is the least", "3.00 (all_reduce of 4 B)", "10.5 us",
                                 "0.06 (0.0 of 0.1 ms)"])
        self.assertFalse([line for line in lines if "MISSED" in line])
        self.assertIn("| broadcast | 3.00 |  | 3.00 |  | 3.00 |  | 3.00 |  | 3.00 |", lines)

    def test_what_misses_its_target_is_said(self):
        measured = self.measured(slower="scatter")
        text, reached = torch_calls.gloo_cell(measured)
        self.assertEqual((text, reached), ("0.30 (scatter of 4 B); 5 of 50 below 1", False))
        for run in measured["native"]:
            run["all_reduce 65536"] = [99.0, 41.0]
        self.assertEqual(torch_calls.processor_cell(measured), ("41 us", False))
        self.assertFalse(torch_calls.latency_cell(measured)[1])
        lines = torch_calls.tables([{"torch": "9.9", "ranks": {"2": measured}}])
        self.assertEqual(sum("MISSED" in line for line in lines), 3)

    def test_what_a_torch_does_not_have_is_left_empty(self):
        measured = self.measured()
        for side in ("native", "python"):
            for run in measured[side]:
                del run["fsdp 0"]
        self.assertEqual(torch_calls.step_cell("fsdp", 0)(measured), ("", None))
        self.assertNotIn("fsdp", " ".join(torch_calls.step_lines(measured)))

    def test_no_pair_begins_that_would_not_end(self):
        class Slow:
            ranks, cases, runs = 2, {}, []

            def run(self, side):
                self.runs.append(side)
                return {}

        slow = Slow()
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(len(torch_calls.measure(slow, 5, end=0.0)["native"]), 1)
            self.assertEqual(len(torch_calls.measure(slow, 2, end=float("inf"))["gloo"]), 2)
        sides = list(torch_calls.SIDES)
        self.assertEqual(slow.runs[-5:], sides[1:] + sides[:1])  # each begins with another
