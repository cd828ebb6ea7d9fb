#!/usr/bin/python3
"""The live page in a headless Chromium: of a daemon with a job, and of statuses made up here."""

import base64
import hashlib
import http.server
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

import browser

TREE = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(os.environ.get("TEST_BUILD_DIR") or TREE / "build").resolve()
PAGE = TREE / "server" / "page" / "page.html"
SCREENSHOTS = os.environ.get("SHOAL_SCREENSHOTS")  # a folder for pictures to look at
VIEWS = {f"{width}{'-dark' * dark}": {"width": width, "dark": dark} for width in (1280, 400) for dark in (False, True)}
HOSTILE = "<img src=x onerror=alert(1)>\"'><script>document.title='x'</script>\u202e&amp;"


def policy():
    """What the daemon serves the page with, made from the file."""
    page = PAGE.read_text()
    hashes = {}
    for tag in ("style", "script"):
        part = re.search(f"<{tag}>(.*?)</{tag}>", page, re.S).group(1)
        hashes[tag] = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{hashes['script']}'; style-src 'sha256-{hashes['style']}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


class StandIn:
    """A server with the page and documents that a test makes up; a document of None is an error."""

    def __init__(self):
        self.status, self.whys = {}, {"type": "whys", "jobs": [], "steps": [], "left_out": 0}
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                documents = {"/status.json": outer.status, "/why.json": outer.whys}
                if self.path == "/":
                    return self.answer(PAGE.read_bytes(), "text/html; charset=utf-8")
                document = documents.get(self.path)
                if document is None:
                    return self.connection.close()
                return self.answer(json.dumps(document).encode(), "application/json")

            def answer(self, body, kind):
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Content-Security-Policy", policy())
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *words):
                pass

            def handle(self):
                try:
                    super().handle()
                except (OSError, ValueError):
                    pass  # the browser has gone, or the test has closed it

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}/"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def job_of(name, **more):
    waits = {"window_s": 4.0, "collectives": 800, "step_collectives": 8, "sums_s": 0.2, "still_s": 0.0, "own_part_s": 0.1}
    waits["ranks"] = [{"rank": 3, "times": 90, "start_s": 1.2, "data_s": 0.0}]
    waits["nodes"] = [{"node": "n1", "times": 40, "start_s": 0.4, "data_s": 0.2}]
    time = {"window_s": 4.0, "computing_s": 2.4, "hidden_s": 1.2, "exposed_s": 0.4}
    job = {"name": name, "state": "running", "uid": 0, "world_size": 8, "generation": 3, "ranks_missing": [], "late": []}
    return {**job, "groups": 1, "bytes": 123456789, "collectives": 98765, "waits": waits, "time": time, **more}


def status_of(nodes, jobs, uptime_s=100.0, name="n0", link_mbits=0):
    peers = []
    for i in range(1, nodes):
        down = i % 97 == 13
        peer = {"node": i, "name": f"n{i}", "state": "down" if down else "up", "fabric": "down" if down else "up"}
        peer.update(bytes_in=int(uptime_s * 1e6 * (i % 11)), bytes_out=int(uptime_s * 5e5 * (i % 7)), last_error="it is silent")
        peers.append(peer)
    memory = {"used_bytes": 300 << 20, "reserved_bytes": 400 << 20, "limit_bytes": 1 << 30}
    status = {"type": "status", "software": "shoal 0.1.0", "node": name, "uptime_s": uptime_s, "state": "running"}
    return {**status, "peers": peers, "jobs": jobs, "memory": memory, "traffic": {"link_mbits": link_mbits}}


def why_of(job, **more):
    why = {"type": "why", "job": job, "kind": "rank late", "rank": 3, "of_node": "n0", "to_node": None, "times": 90}
    why.update(collectives=800, step_collectives=8, window_s=4.0, step_ms=40.0, lost_ms=12.0, without_ms=28.0, sure=True)
    return {**why, "silent_nodes": [], "reports": [], **more}


def points(gap=False):
    """Five minutes of steps: how long ago, the step, of it the wait for the slowest rank, and the network."""
    ages = [age for age in range(298, -1, -2) if not (gap and 100 < age < 160)]
    bump = lambda age: 40.0 if 30 < age < 90 else 0.0
    first = [[298, 9000.0, 0.0, 0.0]]  # a job's first step
    return first + [[age, 232.0 + bump(age) + age % 7 * (age > 0), 20.0 + bump(age), 32.0] for age in ages[1:]]


STEPS = {"job": "train", "step_collectives": 8, "points": points()}


def reports_of(nodes, time_s, links=True, link_mbits={}):
    """What daemons say of themselves; of 1 MB a second and number, half of it comes in."""
    reports = []
    for i in range(nodes):
        moved = lambda k: {"bytes_in": int(time_s * 5e5 * k), "bytes_out": int(time_s * 1e6 * k)}
        daemon = {"time_s": time_s, **moved(i), "link_mbits": link_mbits.get(f"n{i}", 0), "away": int(i == 2), "recovered": 3 * int(i == 2), "links": []}
        daemon["memory"] = {"used_bytes": (i % 100) << 20, "reserved_bytes": 1 << 30, "limit_bytes": 100 << 20}
        if links:
            daemon["links"] = [{"node": f"n{k}", **moved(min(i, k))} for k in range(nodes) if k != i]
        reports.append({"node": f"n{i}", "window_s": 4.0, "ranks": [], "nodes": [], "daemon": daemon})
    return reports


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = browser.Browser()
        cls.addClassCleanup(cls.browser.close)

    def picture(self, name):
        if SCREENSHOTS:
            data = self.browser.command("Page.captureScreenshot", captureBeyondViewport=True)["data"]
            pathlib.Path(SCREENSHOTS, f"{name}.png").write_bytes(base64.b64decode(data))

    def text(self, selector):
        return self.browser.value(f"document.querySelector({json.dumps(selector)}).textContent")

    def shown(self):
        self.browser.wait("document.getElementById('state').textContent === 'running'")


class MadeUp(Case):
    def setUp(self):
        self.server = StandIn()
        self.addCleanup(self.server.close)

    def open(self, **view):
        self.browser.open(self.server.address, **view)
        self.shown()

    def next_turn(self, *, links={}, **more):
        """What goes over links is known from two answers."""
        for why in self.server.whys["jobs"]:
            if why["reports"]:
                why["reports"] = reports_of(len(why["reports"]), 51.0, len(why["reports"]) <= 13, links)
        self.server.status = {**self.server.status, **more}
        self.browser.wait(f"seen.status.uptime_s === {self.server.status['uptime_s']}")

    def of_one_view(self, picture, width, **view):
        """Nothing is wider than the window, and nothing is said to the console."""
        outside = f"[...document.querySelectorAll('body *')].filter(it => it.getBoundingClientRect().right > {width} + 1).map(it => it.outerHTML.slice(0, 200))"
        self.assertEqual(self.browser.value(outside), [], (picture, view))
        self.assertEqual(self.browser.errors, [])
        self.picture(picture)

    def test_a_late_rank(self):
        """The picture is the first thing on the page: the time of a step, and each link against its rate."""
        links = {f"n{i}": 64 for i in range(4)}
        for name, view in VIEWS.items():
            whys = [why_of("train", lost_ms=20.0, step_ms=232.0, without_ms=212.0, rank=5, of_node="n1", times=48, collectives=50, step_collectives=1, reports=reports_of(4, 50.0, link_mbits=links))]
            self.server.whys.update(jobs=whys, steps=[STEPS])
            self.server.status = status_of(4, [job_of("train")], link_mbits=64)
            self.open(**view)
            self.next_turn(links=links, **status_of(4, [job_of("train")], uptime_s=101.0, link_mbits=64))
            self.assertEqual(
                self.text("[data-key=why]"),
                "Slowest rank: 5 (node n1), 20 ms behind in 48 of 50 steps. Without it a step would take 212 ms instead of 232.",
            )
            top = {part: self.browser.value(f"document.querySelector({json.dumps(part)}).getBoundingClientRect().top") for part in (".chart", "[data-key=why]", "#links", "#tiles")}
            self.assertEqual(sorted(top, key=top.get), list(top), "the chart, the sentence, the links, then the rest")
            self.assertLess(top[".chart"], 200)
            self.of_one_view(f"late-{name}", **view)

    def test_the_chart_has_all_parts_of_a_step(self):
        """The chart is as high as the times and as wide as the minutes; a gap stays empty."""
        self.server.whys["steps"] = [{"job": "other", "points": [[0, 9999, 0, 0]]}, {**STEPS, "points": points(gap=True)}]
        self.server.status = status_of(1, [job_of("train")])
        self.open(width=1280)
        self.assertEqual([self.text(f".row [data-key={key}]") for key in ("computing", "network", "waiting")], ["180 ms", "32 ms", "20 ms"])
        label = "Step time over the last 5 min, now 232 ms: Computing 180 ms, Network 32 ms, Waiting for the slowest rank 20 ms"
        self.assertEqual(self.browser.value("document.querySelector('.chart').getAttribute('aria-label')"), label)
        self.assertEqual(self.browser.value("[...document.querySelectorAll('.chart text')].map(it => it.textContent).join()"), "0 ms,150 ms,300 ms,5 min ago,now")
        box = lambda key: self.browser.value(f"(({{x, y, width, height}}) => [x, y, width, height])(document.querySelector('.chart .{key}').getBBox())")
        last = lambda key: self.browser.value(f"document.querySelector('.chart .{key}').getAttribute('d').split('M').at(-1).split(/[MVHz ]/).slice(0, 4).map(Number)")
        (x, bottom, first_top, _), (_, middle, second_top, _), (_, upper, third_top, end) = map(last, ("computing", "network", "waiting"))
        per_ms = (190 - 10 - 22) / 300
        self.assertAlmostEqual(bottom - first_top, 180 * per_ms, delta=0.3)
        self.assertAlmostEqual(middle - second_top, 32 * per_ms, delta=0.3)
        self.assertAlmostEqual(upper - third_top, 20 * per_ms, delta=0.3)
        self.assertEqual((first_top, second_top), (middle, upper))
        width = self.browser.value("document.querySelector('.chart').viewBox.baseVal.width")
        self.assertAlmostEqual(end, width - 4, delta=0.3)
        self.assertAlmostEqual(box("computing")[2], (width - 62) * 298 / 300, delta=1)
        pieces = "document.querySelector('.chart .computing').getAttribute('d').split('M').slice(1).map(it => it.match(/[\\d.]+/g).map(Number))"
        widest = self.browser.value(f"Math.max(...{pieces}.map(it => it[3] - it[0]))")
        self.assertLess(widest, (width - 62) * 3 / 300)  # though there is no point for a minute
        colours = "['computing', 'network', 'waiting'].map(it => getComputedStyle(document.querySelector('.chart .' + it)).fill)"
        self.assertEqual(len(set(self.browser.value(colours))), 3)
        self.assertEqual(self.browser.errors, [])

    def test_a_job_that_has_no_step_yet(self):
        self.server.whys["steps"] = [{"job": "train", "points": []}]
        self.server.status = status_of(1, [job_of("train"), job_of("new", state="gathering", joined=3, ranks_missing=[4, 5])])
        self.open()
        self.assertIn("No step was measured yet", self.text("#jobs .empty"))
        self.assertIn("3 of 8 ranks have joined.", self.text("#jobs"))
        self.assertIn("2 ranks not here: 4, 5", self.text("#jobs"))
        self.assertEqual(self.browser.errors, [])

    def test_a_job_whose_steps_are_not_known(self):
        """A collective is not called a step where nothing repeats."""
        job = job_of("train")
        job["waits"]["step_collectives"] = 0
        self.server.whys.update(jobs=[why_of("train", step_collectives=1)], steps=[{**STEPS, "step_collectives": 0}])
        self.server.status = status_of(1, [job])
        self.open()
        self.assertEqual(self.text("h4"), "Time of a collective")
        self.assertIn("90 of 800 collectives. Without it a collective would take 28 ms", self.text("[data-key=why]"))
        self.assertIn("200 collectives/s", self.browser.value("document.querySelector('article').innerText"))
        self.assertEqual(self.browser.errors, [])

    def test_who_is_slowest(self):
        """One sentence for each kind of verdict, with the same figures."""
        more = {"step_collectives": 8, "collectives": 400, "times": 400, "lost_ms": 20.0, "step_ms": 232.4, "without_ms": 212.4}
        without = ". Without it a step would take 212 ms instead of 232."
        for kind, words in {
            "rank late": "Slowest rank: 3 (node n0), 20 ms behind in 400 of 400 collectives" + without,
            "rank drains slowly": "Slowest rank: 3 (node n0), 20 ms late with its data in 400 of 400 collectives" + without,
            "node late": "Slowest node: n0, all of its ranks are 20 ms behind in 400 of 400 collectives" + without,
            "link slow": "Slowest link: from node n0 to node n2, it costs 20 ms a step" + without,
            "receiver slow": "Slowest receiver: node n0, it costs 20 ms a step" + without,
            "server slow": "Slowest daemon: node n0, it sums slowly or gets too little CPU, which costs 20 ms a step" + without,
            "nobody": "No rank, node or link is slower than the others.",
            "unknown": "Not measured yet: there was too little to measure in the last seconds.",
        }.items():
            nobody = {"of_node": None} if kind in ("nobody", "unknown") else {"to_node": "n2" if kind == "link slow" else None}
            why = why_of("train", kind=kind, **more, **nobody)
            self.assertEqual(self.browser.value(f"sentence({json.dumps(why)}, 'step')") if self.server.status else self.first(why), words)
        self.assertIn("take about 212 ms", self.browser.value(f"sentence({json.dumps(why_of('train', sure=False, **more))}, 'step')"))

    def first(self, why):
        self.server.whys["jobs"] = [why]
        self.server.status = status_of(3, [job_of("train")])
        self.open()
        return self.text("[data-key=why]")

    def test_figures(self):
        self.server.whys["jobs"] = [why_of("train")]
        self.server.status = status_of(1, [job_of("train")])
        self.open()
        shown = {key: self.text(f"[data-key={key}]") for key in ("collectives", "speed", "step", "generation", "hidden", "world_size", "bytes")}
        wanted = {"collectives": "98,765", "speed": "25.0", "step": "40", "generation": "2", "hidden": "30 %", "world_size": "8", "bytes": "118 MiB"}
        self.assertEqual(shown, wanted)
        self.assertIn("300 MiB in use of 1.0 GiB; 400 MiB promised to jobs", self.text("#memory-text"))
        self.assertTrue(self.browser.value("document.getElementById('links-part').hidden && document.getElementById('ended-part').hidden"))

    def test_a_lost_node(self):
        """A lost node stands above all else, and the job that it took says why it failed."""
        status = status_of(4, [job_of("train", state="failed", error="node n1 (ranks 2-3) is gone: connection reset by peer")])
        status["peers"][0].update(state="down", fabric="down", last_error="connection reset by peer")
        status["peers"][2].update(away_ms=2500)
        for name, view in VIEWS.items():
            self.server.status = status
            self.open(**view)
            alerts = self.text("#alerts")
            self.assertIn("Node n1 is not connected: connection reset by peer", alerts)
            self.assertIn("Node n3 has been away for 3 s: it is silent. Jobs wait for it to come back.", alerts)
            self.assertIn("node n1 (ranks 2-3) is gone", self.text("#jobs article"))
            self.assertEqual(self.text("#jobs .pill"), "failed")
            self.assertIn("down", self.browser.value("document.getElementById('node-1').className"))
            self.assertIn("4 nodes, 1 not connected (dashed)", self.text("#legend"))
            self.of_one_view(f"lost-{name}", **view)

    def test_nothing_runs(self):
        """A job that has ended stays, with how it ended."""
        ended = [{"name": "train", "state": "failed", "uid": 0, "world_size": 8, "ran_s": 754.2, "ended_ms": 65000, "error": "rank 5 on node n1 is gone: its process 4711 was killed by signal 9"}]
        ended.append({"name": "digits", "state": "completed", "uid": 0, "world_size": 1, "ran_s": 12.1, "ended_ms": 240000, "error": None})
        for name, view in VIEWS.items():
            self.server.status = {**status_of(1, []), "ended": ended, "warnings": []}
            self.open(**view)
            self.assertEqual(self.text("[data-key=none]"), "No job is running on this node.")
            self.assertEqual(self.text("#ended > :first-child"), "trainfailed65 s ago, after 13 min, 8 ranks" + ended[0]["error"])
            self.assertEqual(self.text("#ended > :last-child"), "digitscompleted4 min ago, after 12 s, 1 rank")
            self.assertEqual(self.text("#legend"), "This daemon knows of no other node.")
            self.of_one_view(f"nothing-{name}", **view)

    def test_the_language_is_that_of_dashboards(self):
        """No word of the daemon's own language for people comes to the page."""
        page = PAGE.read_text()
        for words in ("what a link can carry", "the fuller way", "is what it can carry", "Waits for:", "summed here", "exposed", "it tells", "came back once, at last"):
            self.assertNotIn(words, page)
        for words in ("Step time", "Computing", "Network bandwidth", "Waiting for the slowest rank", "s/s", "ms per ", "Finished jobs", "Failures and recoveries", "Recent warnings"):
            self.assertIn(words, page)

    def test_a_thousand_nodes(self):
        self.server.whys["jobs"] = [why_of("train", kind="node late", of_node="n500", reports=reports_of(1000, 50.0, False))]
        self.server.status = status_of(1000, [job_of("train")])
        self.open()
        self.next_turn(**status_of(1000, [job_of("train")], uptime_s=101.0))
        self.assertEqual(self.browser.value("document.querySelectorAll('#tiles > span').length"), 1000)
        self.assertEqual(self.browser.value("document.querySelectorAll('#tiles > .down').length"), 11)
        self.assertIn("waited", self.browser.value("document.getElementById('node-500').className"))
        self.assertIn("1000 nodes, 11 not connected", self.text("#legend"))
        self.assertEqual(self.browser.value("document.querySelectorAll('#memories > meter').length"), 12)
        self.assertIn("99.0 MiB of 100 MiB", self.text("#memories"))
        self.assertIn("and 987 nodes with less", self.text("#memories"))
        self.assertEqual(self.text("#alerts"), "11 nodes are not connected: n13, n110, n207, n304, n401, n498, n595, n692, …")
        self.assertIn("u4", self.browser.value("document.getElementById('node-999').className"))
        self.assertIn("u0", self.browser.value("document.getElementById('node-20').className"))
        self.assertLess(self.browser.value("document.getElementById('tiles').getBoundingClientRect().height"), 600)
        self.assertEqual(self.browser.errors, [])
        self.picture("thousand")

    def test_links_and_memory_of_all_nodes(self):
        peers = status_of(4, [])["peers"]
        peers[0].update(away_ms=1500, recovered=0, recovered_ms=0)
        peers[2].update(away_ms=None, recovered=2, recovered_ms=340)
        for name, view in {"links": {}, "links-dark": {"dark": True}}.items():
            self.server.whys["jobs"] = [why_of("train", reports=reports_of(4, 50.0)), why_of("other", reports=reports_of(4, 50.0))]
            lost = {"since_ms": 3000, "ranks": [2, 5], "nodes": ["n2"], "awaited": [1], "least_ranks": 8}
            recovered = {"server": {"times": 2, "last_ms": 120, "total_ms": 300}, "daemon": {"times": 0}}
            jobs = [job_of("train", recovered=recovered), job_of("other", generation=1)]
            jobs.append(job_of("third", state="waiting", lost=lost))
            self.server.status = {**status_of(4, jobs), "peers": peers}
            self.open(**view)
            self.next_turn(uptime_s=101.0)
            # Of six links the fastest is 2-3 with 2 MB/s, and 1-2 and 1-3 have half of it; those of n0 have no traffic.
            self.assertEqual(self.links(), [("n2 ↔ n3", "100%", "16 Mbit/s"), ("n1 ↔ n2", "50%", "8 Mbit/s"), ("n1 ↔ n3", "50%", "8 Mbit/s")])
            self.assertIn("where its rate is not known, it is against the fastest link seen", self.text("#links-note"))
            self.assertIn("n3: connected, receives 12 Mbit/s, sends 24 Mbit/s", self.browser.value("document.getElementById('node-3').title"))
            self.assertEqual(self.text("#memories > [data-node=n3]"), "3.0 MiB of 100 MiB")
            self.assertEqual(self.browser.value("document.querySelectorAll('#memories > meter').length"), 3)
            told = self.text("#recoveries")
            for words in ("Node n1 has been away for 2 s", "Node n3 was away and came back 2 times, the last time after 340 ms",
                          "Job train recovered 2 times after losing a CPU server: 120 ms the last time, 300 ms in all",
                          "Job third failed 3 s ago and can go on; lost ranks: 2, 5; lost nodes: n2; waiting for ranks: 1; waiting for new ranks until there are 8",
                          "Node n2 says: 1 node away now, nodes came back 3 times"):
                self.assertIn(words, told)
            self.assertNotIn("other", told)
            self.assertEqual(self.browser.errors, [])
            self.picture(name)

    def links(self):
        """Name, width of the bar and figures of each link that has traffic."""
        rows = "(all => all.map((it, i) => i % 3 ? null : [it.textContent, all[i + 1].firstChild.style.width, all[i + 2].textContent]).filter(it => it))([...document.getElementById('links').children])"
        return [tuple(row) for row in self.browser.value(rows) if row[1] != "0%"]

    def test_links_against_their_rates(self):
        """64 Mbit/s are 8 MB/s, and of a link the slower end counts."""
        known = {"n0": 640, "n1": 64, "n2": 32, "n3": 640}
        every = [("n2 ↔ n3", "50%", "16 Mbit/s of 32 Mbit/s (50 %)"), ("n1 ↔ n2", "25%", "8 Mbit/s of 32 Mbit/s (25 %)"), ("n1 ↔ n3", "12.5%", "8 Mbit/s of 64 Mbit/s (13 %)")]
        one = [("n2 ↔ n3", "50%", "16 Mbit/s of 32 Mbit/s (50 %)"), ("n1 ↔ n3", "50%", "8 Mbit/s"), ("n1 ↔ n2", "25%", "8 Mbit/s of 32 Mbit/s (25 %)")]
        for known, rows, note in (known, every, "busier direction of a link."), ({"n2": 32}, one, "where its rate is not known"):
            self.server.whys["jobs"] = [why_of("train", reports=reports_of(4, 50.0, link_mbits=known))]
            self.server.status = status_of(4, [job_of("train")], link_mbits=known.get("n0", 0))
            self.open()
            self.next_turn(links=known, uptime_s=101.0)
            self.assertEqual(self.links(), rows)
            self.assertIn(note, self.text("#links-note"))
            self.assertIn("n2: connected, receives 8 Mbit/s, sends 16 Mbit/s (50 % of its link)", self.browser.value("document.getElementById('node-2').title"))
            self.assertEqual(self.browser.errors, [])

    def test_names_are_text(self):
        daemon = {"recovered": 1, "memory": HOSTILE, "links": [{"node": HOSTILE}, 7]}
        reports = [{"node": HOSTILE + "2", "daemon": daemon}, {"node": 5, "daemon": daemon}, {"node": "__proto__", "daemon": HOSTILE}]
        peer = {"node": 1, "recovered": 1, "name": HOSTILE, "state": HOSTILE, "fabric": "up", "bytes_in": 0, "bytes_out": 0}
        status = status_of(2, [job_of(HOSTILE, error=HOSTILE), job_of("__proto__", state="failed", error=HOSTILE, lost={"nodes": [HOSTILE], "ranks": [HOSTILE]}, recovered=HOSTILE)], name=HOSTILE)
        status["ended"] = [{"name": HOSTILE, "state": HOSTILE, "error": HOSTILE, "ran_s": HOSTILE, "world_size": HOSTILE}, {}]
        self.server.whys["steps"] = [{"job": HOSTILE, "points": [[0, 5, 1, 1], HOSTILE, [HOSTILE, HOSTILE], [1, HOSTILE]]}, {}, 7]
        self.server.status = {**status, "peers": [peer, {}], "software": HOSTILE, "warnings": [{"text": HOSTILE}]}
        self.server.whys["jobs"] = [why_of(HOSTILE, of_node=HOSTILE, reports=reports), why_of("__proto__", kind="toString")]
        self.open()
        self.assertEqual(self.text("#node"), HOSTILE)
        self.assertEqual(self.text("[data-key=name]"), HOSTILE)
        self.assertIn(HOSTILE, self.text("[data-key=why]"))
        self.assertIn(HOSTILE, self.text("#log"))
        self.assertIn(HOSTILE, self.text("#ended"))
        self.assertIn(HOSTILE, self.text("#memories"))
        self.assertIn(HOSTILE, self.text("#recoveries"))
        self.assertEqual(self.browser.value("document.querySelectorAll('img, body script').length"), 1)  # its own
        self.assertEqual(self.browser.value("document.title"), f"{HOSTILE} – shoal")
        self.assertEqual(self.browser.errors, [])

    def test_a_document_without_sense_is_shown_as_what_it_has(self):
        for status in ({"node": 5, "jobs": 7, "peers": "x", "memory": None, "ended": "x", "state": "running"}, {"state": "running", "jobs": [{}], "ended": [{}]}):
            self.server.status = status
            self.open()
            self.assertEqual(self.browser.errors, [])

    def test_a_daemon_that_is_gone_is_seen_and_one_that_is_back(self):
        self.server.status = good = status_of(3, [job_of("train")])
        self.open()
        self.server.status = None
        self.browser.wait("document.body.classList.contains('lost')")
        self.assertEqual(self.text("#state"), "no answer")
        self.assertRegex(self.text("#gone"), "^No answer from the daemon of node n0 for [0-9]+ s: it has ended, or cannot be reached. The page shows what it said last.$")
        self.assertEqual(self.browser.value("document.title"), "no answer – shoal")
        self.picture("gone")
        self.server.status = good
        self.shown()
        self.assertEqual(self.text("#gone"), "")

    def test_keys_and_a_screen_reader(self):
        self.server.status = status_of(40, [job_of("train")])
        self.server.whys.update(jobs=[why_of("train")], steps=[STEPS])
        self.open()
        self.next_turn(**status_of(40, [job_of("train")], uptime_s=101.0))
        self.browser.press("Tab")
        self.assertEqual(self.browser.value("document.activeElement.id"), "tiles")
        for key, chosen in (("ArrowRight", "n1"), ("End", "n39"), ("ArrowDown", "n39"), ("ArrowLeft", "n38"), ("Home", "n0")):
            self.browser.press(key)
            self.assertTrue(self.text("#told").startswith(f"{chosen}: "), f"{key}: {self.text('#told')}")
        tree = self.browser.command("Accessibility.getFullAXTree")["nodes"]
        names = {(it.get("role", {}).get("value"), it.get("name", {}).get("value")) for it in tree}
        for wanted in (("listbox", "Nodes; the arrow keys go from one to the next"), ("meter", "Memory of the daemons"), ("heading", "Jobs"), ("heading", "Network bandwidth")):
            self.assertIn(wanted, names)
        options = [name for role, name in names if role == "option"]
        self.assertEqual(len(options), 40)
        self.assertTrue(all(options))
        labels = [name or "" for role, name in names if role in ("image", "img")]
        self.assertTrue(any(label.startswith("Step time over the last 5 min, now 232 ms: ") for label in labels), labels)
        self.assertTrue(any(re.match("n0 to n[0-9]+ [0-9.]+ .bit/s, back ", label) for label in labels), labels)


class Daemon(Case):
    """What the page shows is what shoalctl prints."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="shoal-page-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.socket = self.folder / "s"
        for _ in range(10):  # somebody else may take a port before the daemon does
            if self.begin():
                return
        self.fail((self.folder / "log").read_text())

    def begin(self):
        with socket.socket() as control, socket.socket() as page:
            control.bind(("127.0.0.1", 0))
            page.bind(("127.0.0.1", 0))
            ports = [it.getsockname()[1] for it in (control, page)]
        config = {"node": "n0", "servers": [{"name": "n0", "address": f"127.0.0.1:{ports[0]}"}]}
        config.update(socket={"path": str(self.socket)}, metrics={"address": "127.0.0.1", "port": ports[1]}, fabric={"link_mbits": 1000})
        (self.folder / "config.json").write_text(json.dumps(config))
        self.address = f"http://127.0.0.1:{ports[1]}/"
        self.daemon = daemon = self.start([BUILD / "bin" / "shoald", "--config", self.folder / "config.json"], self.folder / "log")
        log = self.folder / "log"
        # The socket is there before the ports are tried.
        self.poll(lambda: " on node n0: " in log.read_text() or daemon.poll() is not None)
        return daemon.poll() is None

    def start(self, words, output, **more):
        with open(output, "wb") as out:
            process = subprocess.Popen(
                [str(word) for word in words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **more},
            )
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)
        return process

    def poll(self, condition):
        for _ in range(1200):
            if condition():
                return
            self.browser.value("new Promise(done => setTimeout(done, 100))")
        self.fail(f"{condition}: {(self.folder / 'log').read_text()}")

    def status(self):
        words = [BUILD / "bin" / "shoalctl", "--socket", self.socket, "status", "--json"]
        return json.loads(subprocess.run([str(it) for it in words], check=True, stdout=subprocess.PIPE, timeout=60).stdout)

    def test_numbers_are_those_of_shoalctl(self):
        ranks = []
        for rank in range(2):
            own = {"RANK": str(rank), "WORLD_SIZE": "2", "SHOAL_JOB": "train", "SHOAL_SOCKET": str(self.socket)}
            words = [BUILD / "tests" / "helper_worker", "lag", self.folder / "stop", "1000", "1", "20"]
            ranks.append(self.start(words, self.folder / f"rank{rank}", **own))
        self.poll(lambda: [job["state"] for job in self.status()["jobs"]] == ["running"])
        # Nobody has looked at the page so far, and yet it begins with a picture of what was before.
        self.poll(lambda: self.status()["jobs"][0]["collectives"] > 400)
        self.browser.open(self.address)
        self.shown()
        self.assertGreater(self.browser.value("fetch('why.json').then(it => it.json()).then(it => it.steps[0].points.length)"), 1)
        self.browser.wait("document.querySelector('.chart .waiting')")
        self.browser.wait("document.querySelector('[data-key=why]')?.textContent.startsWith('Slowest rank: 1 (node n0), ')")
        self.browser.wait("parseFloat(document.querySelector('.row [data-key=waiting]').textContent) > 0")
        self.picture("daemon")
        before, shown, after = self.status(), {}, None
        for key in ("name", "world_size", "collectives"):
            shown[key] = self.text(f"[data-key={key}]")
        memory = {key: self.browser.value(f"document.getElementById('memory-text').dataset.{key}") for key in ("used", "limit")}
        after = self.status()
        self.assertEqual(shown["name"], before["jobs"][0]["name"])
        self.assertEqual(int(shown["world_size"]), before["jobs"][0]["world_size"])
        # The page is two seconds old at most: of about 30 collectives a second.
        self.assertLessEqual(before["jobs"][0]["collectives"] - 3000, int(shown["collectives"].replace(",", "")))
        self.assertLessEqual(int(shown["collectives"].replace(",", "")), after["jobs"][0]["collectives"])
        self.assertEqual(int(memory["limit"]), before["memory"]["limit_bytes"])
        self.assertEqual(before["traffic"]["link_mbits"], 1000)
        self.browser.wait("/^n0: this node, receives .* sends .* of its link/.test(document.getElementById('told').textContent)")
        (self.folder / "stop").touch()
        for rank in ranks:
            self.assertEqual(rank.wait(60), 0, (self.folder / "rank0").read_text())
        self.browser.wait("document.querySelector('[data-key=none]')")
        self.browser.wait("document.getElementById('ended').textContent.startsWith('traincompleted')")
        self.browser.wait(f"document.getElementById('memory-text').dataset.used === '{self.status()['memory']['used_bytes']}'")
        self.assertEqual(self.browser.errors, [])

    def test_how_the_last_job_ended_is_heard_when_the_daemon_ends(self):
        """A launcher ends its daemon with the job, and the page stays open."""
        own = {"RANK": "0", "WORLD_SIZE": "1", "SHOAL_JOB": "train", "SHOAL_SOCKET": str(self.socket)}
        rank = self.start([BUILD / "tests" / "helper_worker", "lag", self.folder / "stop", "1000", "0", "20"], self.folder / "rank0", **own)
        self.browser.open(self.address)
        self.shown()
        self.browser.wait("document.querySelector('article .pill')?.textContent === 'running'")
        (self.folder / "stop").touch()
        self.assertEqual(rank.wait(60), 0, (self.folder / "rank0").read_text())
        self.daemon.terminate()
        self.browser.wait("document.body.classList.contains('lost')")
        self.assertEqual(self.text("#gone"), "The daemon of node n0 has ended. The page shows what it said last.")
        self.assertTrue(self.text("#ended").startswith("traincompleted"), self.text("#ended"))
        self.assertEqual(self.daemon.wait(60), 0)


def main():
    name = pathlib.Path(sys.argv[0]).stem
    reason = None if browser.program() else "there is no chromium (package chromium)"
    if re.search(r"asan|tsan", BUILD.name):
        reason = "the page is the same in a sanitized build"
    if reason:
        print(f"SKIP {name}: {reason}")
        return 0
    result = unittest.main(module="__main__", exit=False, verbosity=2).result
    bad = (len(result.failures), len(result.errors))
    good = result.testsRun - sum(bad)
    print(f"{100 * good // max(1, result.testsRun)}%: Checks: {result.testsRun}, Failures: {bad[0]}, Errors: {bad[1]}")
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
