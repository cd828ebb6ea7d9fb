"""Tests the benchmark itself: bounds, turns, medians, table, picture, and how failures are told."""
import json
import os
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

import bench
import peers
import plot
import report
import rows


class Bounds(unittest.TestCase):
    """Against the formulas written another way, and by hand."""

    def test_ring(self):
        for nodes in range(2, 9):
            self.assertAlmostEqual(rows.bound_links(nodes, 0, 100.0, 10.0),
                                   2 * (nodes - 1) * 100 / (nodes * 10))

    def test_only_cpu_servers(self):
        for nodes, cpu_nodes in ((4, 4), (8, 8), (2, 5)):
            self.assertAlmostEqual(rows.bound_links(nodes, cpu_nodes, 100.0, 10.0), 10.0)

    def test_busiest_link_with_best_shares(self):
        for nodes in range(2, 9):
            for cpu_nodes in range(1, nodes):
                whole = nodes * nodes + cpu_nodes * nodes - 2 * cpu_nodes
                own, cpu = (nodes - cpu_nodes) / whole, 2 * (nodes - 1) / whole
                self.assertAlmostEqual(nodes * own + cpu_nodes * cpu, 1.0)
                # A node sends all but its own shard, and its shard's sum to the others.
                node_load = (1 - own) + (nodes - 1) * own
                cpu_load = nodes * cpu
                self.assertAlmostEqual(node_load, cpu_load)
                self.assertAlmostEqual(rows.bound_links(nodes, cpu_nodes, 1.0, 1.0), node_load)

    def test_by_hand(self):
        self.assertAlmostEqual(rows.bound_links(4, 2, 60.0, 1.0), 2 * 4 * 3 * 60 / 20)


class Turns(unittest.TestCase):
    def test_each_side_in_each_pair_and_first_by_turns(self):
        order = []
        measured = rows.by_turns(4, "test", a=lambda: order.append("a") or 1.0,
                                 b=lambda: order.append("b") or 2.0)
        self.assertEqual(measured, {"a": [1.0] * 4, "b": [2.0] * 4})
        self.assertEqual("".join(order), "abbaabba")

    def test_ratios_are_of_pairs(self):
        self.assertEqual(rows.divided([6.0, 9.0], [2.0, 1.0]), [3.0, 9.0])


class Results(unittest.TestCase):
    def result(self, ratios, target=3.0, at_least=True, skipped=""):
        return rows.Result("1", "what", "figure", target, at_least, ratios, skipped)

    def test_median_decides(self):
        self.assertEqual(report.measured(self.result([1.0, 3.1, 9.0])), (3.1, True))
        self.assertEqual(report.measured(self.result([9.0, 2.9, 1.0])), (2.9, False))
        self.assertEqual(report.measured(self.result([1.0, 2.9, 9.0], at_least=False)), (2.9, True))
        self.assertEqual(report.measured(self.result([3.1], at_least=False)), (3.1, False))
        self.assertEqual(report.measured(self.result([3.1], target=None)), (3.1, None))
        self.assertEqual(report.measured(self.result([])), (None, None))

    def test_table(self):
        about = report.machine()
        text = report.as_markdown([self.result([4.0, 5.0, 3.5]), self.result([1.0]),
                                   self.result([2.0], target=None),
                                   self.result([], skipped="no peer")], about, 3, "x.svg")
        self.assertIn("| at least 3 | 4.000 (3.500 to 5.000) | pass |", text)
        self.assertIn("| 1.000 (1.000 to 1.000) | FAIL |", text)
        self.assertIn("skipped: no peer", text)
        self.assertIn("1 reached, 1 not reached, 1 skipped.", text)
        self.assertIn("(x.svg)", text)
        table = [line for line in text.splitlines() if line.startswith("|")]
        self.assertEqual({line.count("|") for line in table}, {7})

    def test_json(self):
        about = report.machine()
        document = json.loads(json.dumps(report.as_json([self.result([4.0])], [], about)))
        self.assertEqual(document["rows"][0]["median"], 4.0)
        self.assertTrue(document["rows"][0]["reached"])
        self.assertGreaterEqual(document["machine"]["cores"], 1)


class Picture(unittest.TestCase):
    def panel(self):
        return {"title": "a < b & c", "curves": {
            "shoal, arena": {4096: 0.02, 65536: 0.9, 1 << 20: 5.5},
            "Gloo": {4096: 0.001, 65536: 0.1, 1 << 20: 0.4},
            "bound: raw streams": {4096: 0.08, 65536: 0.08, 1 << 20: 0.08}}}

    def test_is_xml_with_a_line_for_each_curve(self):
        root = xml.etree.ElementTree.fromstring(plot.svg([self.panel(), self.panel()]))
        spaces = {"s": "http://www.w3.org/2000/svg"}
        self.assertEqual(len(root.findall("s:g", spaces)), 2)
        self.assertEqual(len(root.findall(".//s:circle", spaces)), 2 * 2 * 3)
        words = [text.text for text in root.findall(".//s:text", spaces)]
        for word in ("a < b & c", "Gloo", "4 KiB", "1 MiB", "0.001", "10"):
            self.assertIn(word, words)

    def test_places(self):
        axes = plot.Axes(self.panel()["curves"])
        self.assertEqual(axes.x(4096), plot.LEFT)
        self.assertAlmostEqual(axes.x(1 << 20), plot.WIDTH - plot.RIGHT)
        self.assertAlmostEqual(axes.y(0.001), plot.HEIGHT - plot.BOTTOM)
        self.assertAlmostEqual(axes.y(10), plot.TOP)
        self.assertLess(axes.y(5.5), axes.y(0.4))

    def test_one_point(self):
        xml.etree.ElementTree.fromstring(
            plot.svg([{"title": "t", "curves": {"Gloo": {4096: 1.0}}}]))


class Running(unittest.TestCase):
    def test_lines_of_json(self):
        rows_read = peers.run(["printf", '# head\\n{"bytes":8,"time_us":2}\\n{"bytes":4,"time_us":1}\\n'])
        self.assertEqual(peers.times(rows_read), {8: 2e-6, 4: 1e-6})

    def test_wrong_elements_are_a_failure(self):
        with self.assertRaisesRegex(peers.Failed, "3 wrong elements at 8 bytes"):
            peers.times([{"bytes": 8, "time_us": 1, "wrong": 3}])

    def test_exit_code_and_words(self):
        with self.assertRaisesRegex(peers.Failed, "exit code 7: no such thing"):
            peers.run(["sh", "-c", "echo no such thing >&2; exit 7"])

    def test_processor_time_of_children(self):
        spent = peers.run_cpu([sys.executable, "-c", "sum(range(3000000))"])
        self.assertGreater(spent, 0)
        self.assertLess(spent, 60)

    def test_unknown_row(self):
        folder = os.path.dirname(os.path.abspath(__file__))
        done = subprocess.run([sys.executable, os.path.join(folder, "bench.py"), "--rows", "1,99"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no row 99", done.stdout)

    def test_failed_and_missing_are_told_apart(self):
        def failing(_tools, _pairs):
            raise peers.Failed("it broke\nmore")
            yield  # a generator, as rows are

        def missing(_tools, _pairs):
            raise peers.Missing("no peer")
            yield

        kept = dict(rows.ROWS)
        try:
            for row, expected in ((failing, ("failed: it broke", True)), (missing, ("no peer", False))):
                rows.ROWS["1"] = row
                options = bench.options_parse(["--rows", "1"])
                results, failed = bench.rows_measure(None, options)
                self.assertEqual((results[0].skipped, failed), expected)
        finally:
            rows.ROWS.update(kept)

    def test_a_row_from_end_to_end(self):
        """With a stand-in for the program: what it prints comes out as ratios."""
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "bench"))
            program = os.path.join(folder, "bench", "bench_reduce")
            line = {"dtype": "float", "isa": "scalar", "inputs": 8, "bytes": 1,
                    "kernel_GBps": [8.0, 9.0], "plain_GBps": [10.0, 9.0], "streamed_GBps": [4.0, 18.0]}
            with open(program, "w", encoding="utf-8") as file:
                file.write("#!/bin/sh\ncat <<'END'\n" + json.dumps(line) + "\nEND\n")
            os.chmod(program, 0o755)
            results = list(rows.row_4(peers.Tools(folder), 2))
        self.assertEqual([result.ratios for result in results], [[0.8, 0.5]])
        self.assertEqual(report.measured(results[0]), (0.65, False))


if __name__ == "__main__":
    unittest.main(verbosity=0)
