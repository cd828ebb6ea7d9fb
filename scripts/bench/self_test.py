"""Tests the benchmark itself: bounds, turns, medians, table, picture, and how failures are told."""
import contextlib
import io
import json
import math
import os
import select
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import xml.etree.ElementTree

import bench
import curves
import peers
import plot
import report
import rows
from self_test_calls import Gpu, TorchCalls  # noqa: F401


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


class Collectives(unittest.TestCase):
    """Row 17, with tools that measure nothing."""

    class Tools:
        def __init__(self, factor):
            self.factor, self.ran = factor, []

        def shoal(self, ranks, case, options=(), collective="all_reduce"):
            return ("shoal", ranks, case.sizes, 1.0, collective)

        def mpi(self, ranks, case, collective="all_reduce"):
            return ("open_mpi", ranks, case.sizes, self.factor, collective)

        def copies(self, ranks, case, collective):
            return ("alone", ranks, case.sizes, 0.5, collective)

        def pieces_s(self, _ranks, size, _rounds):
            return 0.5e-6 * (size + 1)

    def results(self, factor):
        tools = self.Tools(factor)

        def run(command):
            tools.ran.append(command)
            return [{"bytes": size, "time_us": command[3] * (size + 1)} for size in command[2]]

        with unittest.mock.patch.object(rows, "run", run), contextlib.redirect_stderr(io.StringIO()):
            return list(rows.row_17(tools, 2)), tools.ran

    def test_every_collective_size_and_number_of_ranks(self):
        results, ran = self.results(1.2)
        names = {"all_reduce": 13, "broadcast": 13, "all_gather": 11, "reduce_scatter": 11, "barrier": 1}
        for ranks in (2, 4, 8):
            for name, sizes in names.items():
                label = f"one host, {name}, private buffers, {ranks} ranks, "
                of = [result for result in results if result.what.startswith(label)]
                alone = [result for result in of if result.figure.endswith("alone")]
                of = [result for result in of if result not in alone]
                self.assertEqual(len(of), sizes)
                self.assertEqual(len(alone), {"all_reduce": 3, "broadcast": 5, "all_gather": 5}.get(name, 0))
                for result in alone:
                    self.assertAlmostEqual(result.ratios[0], 2.4)
                for result in of:
                    self.assertEqual(len(result.ratios), 2)
                    self.assertAlmostEqual(result.ratios[1], 1.2)
        self.assertEqual({command[4] for command in ran}, set(names))
        for _, ranks, sizes, _, name in ran:
            parts = ranks if name in ("all_gather", "reduce_scatter") else 1
            self.assertTrue(all(size % (4 * parts) == 0 for size in sizes))

    def test_targets(self):
        self.assertEqual([rows.against_mpi(2, size) for size in (4, 4095, 4096, 1 << 26)], [0.5, 0.5, 1.0, 1.0])
        self.assertEqual([rows.against_mpi(8, size) for size in (0, 16383, 16384)], [1.0, 1.0, 1.5])

    def test_a_turn_with_many_sizes_is_one_line(self):
        self.assertEqual(rows.figure({4: 1.5e-6, 16: 2.0}), "1.5e-06 2")
        self.assertEqual(rows.figure(0.25), "0.25")


class Terminal(io.StringIO):
    """Errors that go to a terminal."""

    def isatty(self):
        return True


class Progress(unittest.TestCase):
    def said(self, errors, term):
        with unittest.mock.patch.dict(os.environ, {"TERM": term, "COLUMNS": "30"}), \
                contextlib.redirect_stderr(errors):
            rows.by_turns(1, "one\n", a=lambda: 1.0, b=lambda: 2.0)
        return errors.getvalue()

    def test_a_line_on_a_terminal_as_wide_as_that(self):
        wanted = ("\r  one?, pair 1 of 1, now: a\033[K\r" "\r  one?, pair 1 of 1, now: b\033[K\r"
                  "\r\033[K  one\n, pair 1 of 1: a 1, b 2\n")
        self.assertEqual(self.said(Terminal(), "xterm"), wanted)
        long = "  one?" + "x" * 40
        with unittest.mock.patch.dict(os.environ, {"TERM": "xterm", "COLUMNS": "30"}), \
                contextlib.redirect_stderr(Terminal()) as errors:
            peers.progress(long)
        self.assertEqual(errors.getvalue(), f"\r{long[:29]}\033[K\r")

    def test_none_elsewhere(self):
        for errors, term in ((Terminal(), "dumb"), (Terminal(), ""), (io.StringIO(), "xterm")):
            self.assertEqual(self.said(errors, term), "  one\n, pair 1 of 1: a 1, b 2\n")


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


class Curves(unittest.TestCase):
    """The curves that the plot shows, with tools that measure nothing."""

    class Tools:
        @staticmethod
        def shoal(ranks, case, options=()):
            return ("shoal" + "".join(options), ranks, case.sizes)

        @staticmethod
        def torch(ranks, case):
            return ("torch", ranks, case.sizes)

        @staticmethod
        def gloo(ranks, case):
            return ("gloo", ranks, case.sizes)

        @staticmethod
        def mpi(_ranks, _case):
            raise peers.Missing("Open MPI is not installed")

    def test_every_curve_from_the_smallest_size_on(self):
        def run(command):
            factor = {"shoal": 4.0, "torch": 5.0, "gloo": 8.0}.get(command[0], 1.0)
            return [{"bytes": size, "time_us": factor * size} for size in command[2]]

        with unittest.mock.patch.object(curves, "run", run), contextlib.redirect_stderr(io.StringIO()):
            found = curves.one_host(self.Tools)["curves"]
        names = ["shoal, arena", "shoal, private buffers", "shoal in torch", "Gloo in torch"]
        self.assertEqual(list(found), names)
        for curve, rate in zip(found.values(), (1e-3, 0.25e-3, 0.2e-3, 0.125e-3)):
            self.assertEqual((min(curve), max(curve), len(curve)), (4, 64 << 20, 13))
            for value in curve.values():
                self.assertAlmostEqual(value, rate)


class Picture(unittest.TestCase):
    def panel(self):
        return {"title": "a < b & c", "curves": {
            "shoal, arena": {4096: 0.02, 65536: 0.9, 1 << 20: 5.5},
            "Gloo in torch": {4096: 0.001, 65536: 0.1, 1 << 20: 0.4},
            "bound: raw streams": {4096: 0.08, 65536: 0.08, 1 << 20: 0.08}}}

    def test_is_xml_with_a_line_for_each_curve(self):
        root = xml.etree.ElementTree.fromstring(plot.svg([self.panel(), self.panel()]))
        spaces = {"s": "http://www.w3.org/2000/svg"}
        self.assertEqual(len(root.findall("s:g", spaces)), 2)
        self.assertEqual(len(root.findall(".//s:circle", spaces)), 2 * 2 * 3)
        words = [text.text for text in root.findall(".//s:text", spaces)]
        for word in ("a < b & c", "Gloo in torch", "4 KiB", "1 MiB", "0.001", "10"):
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
            plot.svg([{"title": "t", "curves": {"Gloo in torch": {4096: 1.0}}}]))


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

    def test_a_signal_ends_what_runs_and_leaves_nothing(self):
        code = ("import sys; sys.path.insert(0, sys.argv[1]); import bench, peers\n"
                "bench.catch_signals()\n"
                "try: peers.run(['sh', '-c', 'echo $$ >\"$1\"; sleep 100', '-', sys.argv[2]])\n"
                "finally: print('taken down')")
        with tempfile.TemporaryDirectory() as folder:
            fifo = os.path.join(folder, "pid")
            os.mkfifo(fifo)
            with subprocess.Popen([sys.executable, "-c", code, peers.HERE, fifo],
                                  stdout=subprocess.PIPE, text=True) as process:
                with open(os.open(fifo, os.O_RDWR), encoding="utf-8") as file:
                    self.assertTrue(select.select([file], [], [], 60)[0])
                    ran = os.pidfd_open(int(file.readline()))
                self.addCleanup(os.close, ran)
                process.terminate()
                said, _ = process.communicate(timeout=60)
        self.assertEqual((process.returncode, said), (143, "taken down\n"))
        # Readable once it has ended, whether or not somebody has collected it. It was killed, and may
        # still be on its way.
        self.assertTrue(select.select([ran], [], [], 60)[0])

    def test_a_signal_in_the_middle_of_a_start_ends_it_too(self):
        code = ("import os, signal, subprocess, sys; sys.path.insert(0, sys.argv[1]); import bench, peers\n"
                "class Told(subprocess.Popen):\n"
                "    def _execute_child(self, *arguments, **options):\n"
                "        super()._execute_child(*arguments, **options)\n"
                "        print(self.pid, flush=True)\n"
                "        os.kill(os.getpid(), signal.SIGTERM)\n"
                "bench.catch_signals()\n"
                "subprocess.Popen = Told\n"
                "peers.run(['sleep', '100'])")
        done = subprocess.run([sys.executable, "-c", code, peers.HERE], stdout=subprocess.PIPE, text=True,
                              timeout=60, check=False)
        self.assertEqual(done.returncode, 143)
        try:
            ran = os.pidfd_open(int(done.stdout))
        except ProcessLookupError:
            return
        self.addCleanup(os.close, ran)
        self.assertTrue(select.select([ran], [], [], 60)[0])

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

        def odd(_tools, _pairs):
            yield rows.Result("1", "what", "figure", 1.0, True, [1 / 0])

        kept = dict(rows.ROWS)
        try:
            for row, expected in ((failing, ("failed: it broke", True)), (missing, ("no peer", False)),
                                  (odd, ("failed: ZeroDivisionError('division by zero')", True))):
                rows.ROWS["1"] = row
                options = bench.options_parse(["--rows", "1"])
                with contextlib.redirect_stderr(io.StringIO()):
                    results, failed = bench.rows_measure(None, options)
                self.assertEqual((results[0].skipped, failed), expected)
        finally:
            rows.ROWS.update(kept)

    def test_what_is_measured_is_written_row_by_row(self):
        """Also when the program is ended in the middle."""
        def good(_tools, _pairs):
            yield rows.Result("1", "what", "figure", 1.0, True, [2.0])

        def ended(_tools, _pairs):
            raise KeyboardInterrupt
            yield

        kept = dict(rows.ROWS)
        rows.ROWS.update({"1": good, "2": ended})
        try:
            with tempfile.TemporaryDirectory() as folder:
                os.mkdir(os.path.join(folder, "bench"))
                with self.assertRaises(KeyboardInterrupt):
                    bench.main(["--build", folder, "--rows", "1,2"])
                with open(os.path.join(folder, "bench", "bench.json"), encoding="utf-8") as file:
                    self.assertEqual([row["median"] for row in json.load(file)["rows"]], [2.0])
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


def table_rows(name):
    """(tensor, elements, operations) of a model."""
    top = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    with open(os.path.join(top, "tests/bench/models", name + ".csv"), encoding="utf-8") as file:
        lines = [line.strip() for line in file if not line.startswith("#")]
    assert lines[0] == "tensor,elements,operations"
    return [(tensor, int(elements), int(operations))
            for tensor, elements, operations in (line.split(",") for line in lines[1:])]


class StandingCluster:
    """A cluster whose links are measured as 100 MB/s."""

    def __init__(self, _tools, *shape, weights=None):
        self.shape, self.weights = shape, weights
        self.sealed = shape[-1] == "encrypt"

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    @staticmethod
    def stream_Bps():
        return 1e8

    @classmethod
    def measured(cls, row, *arguments, **options):
        """The row's results on such clusters."""
        kept, rows.Cluster = rows.Cluster, cls
        try:
            return list(row(*arguments, **options))
        finally:
            rows.Cluster = kept


class Links(unittest.TestCase):
    """Rows over links, with a stand-in for the cluster."""

    def test_both_kinds_of_buffers_are_measured_in_the_same_turns(self):
        asked = []

        class Standing(StandingCluster):
            @staticmethod
            def shoal(case, per_node, options):
                asked.append(("shoal", per_node, options))
                return {case.sizes[0]: 2.0 if options else 4.0}

            @staticmethod
            def gloo(case, per_node):
                asked.append(("gloo", per_node))
                return {case.sizes[0]: 6.0}

        results = Standing.measured(rows.links, None, 3, "7", (4, 4, "1gbit"), (100000000,), 1.05, 1.5, per_node=2)
        self.assertEqual([result.ratios for result in results], [[2.0] * 3, [3.0] * 3, [4.0] * 3, [1.5] * 3])
        self.assertEqual([result.what.rsplit("f32, ", 1)[1] for result in results],
                         ["arena, in place"] * 2 + ["private buffers"] * 2)
        self.assertEqual(sorted(asked[:3]), [("gloo", 2), ("shoal", 2, ()), ("shoal", 2, ("--arena", "--in-place"))])
        self.assertEqual(len(asked), 9)
        self.assertEqual(set(results[0].seconds), {"shoal_in_place", "stream_Bps", "gloo"})

    def test_without_gloo(self):
        class Standing(StandingCluster):
            @staticmethod
            def shoal(case, _per_node, _options):
                return {case.sizes[0]: 1.2}

        results = Standing.measured(rows.links, None, 1, "9", (4, 2, "1gbit"), (100000000,), 1.06, None)
        self.assertEqual(len(results), 2)
        self.assertAlmostEqual(results[0].ratios[0], 1.0)


class Encryption(unittest.TestCase):
    """Rows 14 to 16."""

    def test_over_links_both_kinds_against_the_clear(self):
        class Standing(StandingCluster):
            def shoal(self, case, _per_node, options):
                return {case.sizes[0]: (1.0 if options else 2.0) + (0.01 if self.sealed else 0)}

        results = Standing.measured(rows.row_14, None, 3)
        self.assertEqual([len(result.ratios) for result in results], [3, 3])
        self.assertAlmostEqual(results[0].ratios[0], 1.01)
        self.assertAlmostEqual(results[1].ratios[0], 1.005)

    def test_the_bound_counts_what_all_nodes_send_and_receive(self):
        # Two nodes send 1e9 bytes each, four 1.5e9: sealed at 1 GB/s and opened at 2.
        self.assertAlmostEqual(rows.bound_cipher(0, 1e9, 2, 1, 2, 1), 3.0)
        self.assertAlmostEqual(rows.bound_cipher(5, 1e9, 2, 1, 2, 2), 6.5)
        self.assertAlmostEqual(rows.bound_cipher(0, 1e9, 4, 1, 2, 1), 9.0)

    def test_over_loopback_against_the_bound(self):
        class Standing:
            @staticmethod
            def shoal_nodes(_nodes, case, protect, _options):
                return {case.sizes[0]: 0.3 if protect == "encrypt" else 0.1}

            @staticmethod
            def seal_GBps():
                cores = len(os.sched_getaffinity(0))
                return 2 * (64 << 20) / 1e8 / cores, 2 * (64 << 20) / 1e8 / cores  # 0.1 s for each

        (result,) = rows.row_15(Standing, 2)
        self.assertAlmostEqual(result.ratios[0], 1.0)

    def test_against_stunnel(self):
        class Standing(StandingCluster):
            def shoal(self, case, _per_node, _options):
                assert self.sealed
                return {case.sizes[0]: case.sizes[0] / 3e8}

            @staticmethod
            def tls_Bps():
                return 1e8

        (result,) = Standing.measured(rows.row_16, None, 2)
        self.assertAlmostEqual(result.ratios[0], 3.0)


class Models(unittest.TestCase):
    """The tables of row 11 against what is known of the models."""

    def test_resnet50(self):
        table = table_rows("resnet50")
        self.assertEqual(sum(elements for _, elements, _ in table), 25557032)
        self.assertEqual(sum(1 for _, elements, _ in table if elements), 161)
        products = sum(operations for tensor, _, operations in table
                       if ("conv" in tensor or "downsample.0" in tensor or tensor == "fc.weight"))
        self.assertEqual(products // 2, 4089184256)  # multiplications, as published: 4.1e9

    def test_bert_large(self):
        table = table_rows("bert_large")
        self.assertEqual(sum(elements for _, elements, _ in table), 335141888)
        self.assertEqual(sum(1 for _, elements, _ in table if elements), 391)
        layers = [[row[1:] for row in table if row[0].startswith(f"layer{i}.")] for i in range(24)]
        self.assertTrue(all(layer == layers[0] for layer in layers))
        self.assertEqual(sum(elements for elements, _ in layers[0]), 12596224)

    def test_row_11(self):
        """With stand-ins for cluster and program."""
        asked = []

        class Standing(StandingCluster):
            def overlap(self, *words):
                asked.append((self.shape, *words))
                return {"exposed_us": 11.0 * len(asked), "last_us": 10.0}

        results = Standing.measured(rows.row_11, None, 2)
        self.assertEqual([result.ratios for result in results], [[1.1, 2.2], [3.3, 4.4]])
        self.assertEqual([report.measured(result)[1] for result in results], [False, False])
        self.assertEqual(asked[0], ((4, 0, "1gbit"), "resnet50", "float", 1e8, 3, 25))
        self.assertEqual(asked[3], ((4, 0, "1gbit"), "bert_large", "bfloat16", 1e8, 1, 6))


class Scale(unittest.TestCase):
    """Row 13 on made-up daemons."""

    def test_growth(self):
        runs = [{"n": 1, "b": 5}, {"n": 3, "b": 25}, {"n": 4, "b": 45}]
        self.assertEqual(rows.growth(runs, "n", lambda run: run["b"]), [10.0, 20.0])

    def test_row_13(self):
        class Standing:
            @staticmethod
            def scale(nodes, per_node, clusters=1):
                # Linear in workers, quadratic in nodes; join n log n, leave n n. Slower by what
                # all daemons together take of the cache.
                time_us = {"join": nodes * math.log(nodes), "all_reduce": nodes, "barrier": 1.0,
                           "leave": nodes * nodes}
                return {"nodes": nodes, "ranks": nodes * per_node,
                        "worked_bytes": 100 * per_node + nodes * nodes,
                        **{step: {"mean_us": value * clusters * nodes * nodes}
                           for step, value in time_us.items()}}

            @staticmethod
            def descriptors(nodes, per_node):
                return 20 + 2 * nodes + 3 * nodes * per_node

        results = list(rows.row_13(Standing, 3))
        ratios = [result.ratios for result in results]
        self.assertEqual(ratios[0], [1.0])
        self.assertAlmostEqual(ratios[1][0], 2.0)
        self.assertEqual(ratios[2:4], [[1.0], [1.0]])
        self.assertEqual([len(ratio) for ratio in ratios[4:]], [3] * 4)
        self.assertAlmostEqual(ratios[4][0], 1.0)
        verdicts = [report.measured(result)[1] for result in results]
        self.assertEqual(verdicts[1], False)
        self.assertEqual(verdicts[5:], [True, True, False])
        self.assertIn("3 for each worker", results[2].what)

    def test_descriptors_of_this_process(self):
        before = peers.descriptors_of(os.getpid())
        with open(__file__, encoding="utf-8"):
            self.assertEqual(peers.descriptors_of(os.getpid()), before + 1)
        self.assertEqual(peers.daemons_of(os.getpid()), [])


class LargeJobs(unittest.TestCase):
    """Rows 19 to 22 on made-up daemons and links."""

    def test_what_a_late_node_adds_is_over_its_lateness(self):
        class Standing:
            @staticmethod
            def links(nodes, per_node, mebibytes, late_ms=0):
                assert (nodes, per_node) == (1000, 8)
                return {"bound_us": 1e3 * mebibytes, "virtual_us": 1.02e3 * mebibytes + 900 * late_ms}

        ratios = [result.ratios for result in rows.row_19(Standing, 7)]
        self.assertAlmostEqual(ratios[0][0], 1.02)
        self.assertAlmostEqual(ratios[1][0], 0.9)

    def test_many_daemons(self):
        class Standing:
            @staticmethod
            def many_daemons(nodes, per_node):
                assert (nodes, per_node) == (128, 2)
                return 12 << 20, 45.0

        self.assertEqual([result.ratios for result in rows.row_20(Standing, 7)], [[1.5], [0.75]])

    def test_all_to_one(self):
        class Standing(StandingCluster):
            dropped = 100

            def drops(self):
                assert self.shape == (32, 1, "1gbit") and self.weights == "0,1"
                return self.dropped

            def shoal(self, case, _per_node, _options):
                self.dropped += 7
                return {case.sizes[0]: 32 * case.sizes[0] / 0.9e8}

        result, = Standing.measured(rows.row_21, None, 3)
        for ratio in result.ratios:
            self.assertAlmostEqual(ratio, 0.9)
        self.assertIn("packets dropped: 7", result.what)
        self.assertFalse(report.measured(result)[1])

    def test_a_short_collective_may_take_one_delay(self):
        class Standing(StandingCluster):
            @staticmethod
            def delay_s():
                return 0.001

            @staticmethod
            def shoal(case, collective):
                assert collective == "all_gather"
                return {case.sizes[0]: 2 * (0.75e-8 * case.sizes[0] + 0.001)}

        results = Standing.measured(rows.row_22, None, 2)
        self.assertEqual(len(results), 2)
        for result in results:
            self.assertAlmostEqual(result.ratios[1], 2.0)

    def test_resident_memory_of_this_process(self):
        self.assertGreater(peers.resident_bytes(os.getpid()), 1 << 20)
        self.assertEqual(peers.resident_bytes(1 << 30), 0)


if __name__ == "__main__":
    unittest.main(verbosity=0)
