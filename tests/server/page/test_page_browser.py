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
        self.status, self.whys = {}, {"type": "whys", "jobs": [], "left_out": 0}
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

    def test_figures_light_dark_and_on_a_phone(self):
        self.server.whys["jobs"] = [why_of("train"), why_of("other", kind="link slow", of_node="n1", to_node="n2", sure=False)]
        jobs = [job_of("train"), job_of("other", generation=1)]
        for name, view in {"light": {}, "dark": {"dark": True}, "phone": {"width": 360, "height": 740}}.items():
            self.server.status = status_of(4, jobs)
            self.open(**view)
            self.next_turn(**status_of(4, jobs, uptime_s=101.0))
            self.assertEqual(self.text("[data-key=collectives]"), "98765")
            self.assertEqual(self.text("[data-key=speed]"), "25.0 steps/s")
            self.assertEqual(self.text("[data-key=generation]"), "3")
            self.assertIn("rank 3 on node n0 starts late (last in 90 of 800)", self.text("[data-key=why]"))
            self.assertIn("would take 28.0 ms without", self.text("[data-key=why]"))
            self.assertIn("would take about 28.0 ms without", self.text("article:nth-of-type(2) [data-key=why]"))
            self.assertIn("300 MiB used of 1.0 GiB", self.text("#memory-text"))
            self.assertIn("2.9 MiB/s there, 1.4 MiB/s back, 100 %", self.browser.value("document.getElementById('node-3').title"))
            self.assertFalse(self.browser.value("document.documentElement.scrollWidth > innerWidth"))
            self.assertEqual(self.browser.errors, [])
            self.picture(name)

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
        self.assertIn("and 987 with less", self.text("#memories"))
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
            lines = "[...document.querySelectorAll('#picture line')].map(it => it.getAttribute('class')).sort().join()"
            # Of six links the fastest is 2-3 with 2 MB/s, and 1-2 and 1-3 have half of it; those of n0 have no traffic.
            self.assertEqual(self.browser.value(lines), "l0,l0,l0,l3,l3,l4")
            self.assertIn("n3: up, 1.4 MiB/s in, 2.9 MiB/s out, 100 % of the fastest node", self.browser.value("document.getElementById('node-3').title"))
            labels = "[...document.querySelectorAll('#picture .on-link')].map(it => it.textContent).sort().join()"
            self.assertEqual(self.browser.value(labels), "0 B/s · 0 %,0 B/s · 0 %,0 B/s · 0 %,1.9 MiB/s · 100 %,977 KiB/s · 50 %,977 KiB/s · 50 %")
            self.assertEqual(self.text("#links > li"), "n2 – n3: 1.9 MiB/s there, 1.9 MiB/s back, 100 % of the fastest link")
            self.assertIn("a node 2.9 MiB/s, a link 1.9 MiB/s", self.text("#legend"))
            self.assertEqual(self.text("#memories > [data-node=n3]"), "3.0 MiB of 100 MiB")
            self.assertEqual(self.browser.value("document.querySelectorAll('#memories > meter').length"), 3)
            told = self.text("#recoveries")
            for words in ("n1 is away for 2 s", "n3 was away and came back 2 times, at last after 340 ms",
                          "Job train goes on as generation 3",
                          "Job train recovered 2 times, server: at last in 120 ms, together 300 ms",
                          "Job third failed 3 s ago and may go on; gone: rank 2, 5; lost: node n2; waits for rank 1; waits for newcomers until it has 8 ranks",
                          "n2 tells: 1 node away now; nodes came back 3 times"):
                self.assertIn(words, told)
            self.assertNotIn("other", told)
            self.assertEqual(self.browser.errors, [])
            self.picture(name)

    def test_links_by_what_they_can_carry(self):
        """64 Mbit/s are 8 MB/s, and of a link the slower end counts."""
        for known, lines, first, legend in (
            ({"n0": 640, "n1": 64, "n2": 32, "n3": 640}, "l0,l0,l0,l1,l2,l3", "n1 – n2: 977 KiB/s there, 977 KiB/s back, 25 % of what it can carry", "over it, the fuller way. Ring"),
            ({"n2": 32}, "l0,l0,l0,l2,l3,l3", "n1 – n3: 977 KiB/s there, 977 KiB/s back, 50 % of the fastest link", "where that is not known, of the fastest"),
        ):
            self.server.whys["jobs"] = [why_of("train", reports=reports_of(4, 50.0, link_mbits=known))]
            self.server.status = status_of(4, [job_of("train")], link_mbits=known.get("n0", 0))
            self.open()
            self.next_turn(links=known, uptime_s=101.0)
            classes = "[...document.querySelectorAll('#picture line')].map(it => it.getAttribute('class')).sort().join()"
            self.assertEqual(self.browser.value(classes), lines)
            self.assertIn(first, self.text("#links"))
            self.assertIn(legend, self.text("#legend"))
            self.assertIn("n2: up, 977 KiB/s in, 1.9 MiB/s out, 50 % of what its link can carry", self.browser.value("document.getElementById('node-2').title"))
            self.assertEqual(self.browser.errors, [])

    def test_names_are_text(self):
        daemon = {"recovered": 1, "memory": HOSTILE, "links": [{"node": HOSTILE}, 7]}
        reports = [{"node": HOSTILE + "2", "daemon": daemon}, {"node": 5, "daemon": daemon}, {"node": "__proto__", "daemon": HOSTILE}]
        peer = {"node": 1, "recovered": 1, "name": HOSTILE, "state": HOSTILE, "fabric": "up", "bytes_in": 0, "bytes_out": 0}
        status = status_of(2, [job_of(HOSTILE, error=HOSTILE), job_of("__proto__", state="failed", error=HOSTILE, lost={"nodes": [HOSTILE], "ranks": [HOSTILE]}, recovered=HOSTILE)], name=HOSTILE)
        self.server.status = {**status, "peers": [peer, {}], "software": HOSTILE, "warnings": [{"text": HOSTILE}]}
        self.server.whys["jobs"] = [why_of(HOSTILE, of_node=HOSTILE, reports=reports), why_of("__proto__", kind="toString")]
        self.open()
        self.assertEqual(self.text("#node"), HOSTILE)
        self.assertEqual(self.text("[data-key=name]"), HOSTILE)
        self.assertIn(HOSTILE, self.text("[data-key=why]"))
        self.assertIn(HOSTILE, self.text("#log"))
        self.assertIn(HOSTILE, self.text("#memories"))
        self.assertIn(HOSTILE, self.text("#recoveries"))
        self.assertEqual(self.browser.value("document.querySelectorAll('img, body script').length"), 1)  # its own
        self.assertEqual(self.browser.value("document.title"), f"{HOSTILE} – shoal")
        self.assertEqual(self.browser.errors, [])

    def test_a_document_without_sense_is_shown_as_what_it_has(self):
        for status in ({"node": 5, "jobs": 7, "peers": "x", "memory": None, "state": "running"}, {"state": "running", "jobs": [{}]}):
            self.server.status = status
            self.open()
            self.assertEqual(self.browser.errors, [])

    def test_a_daemon_that_is_gone_is_seen_and_one_that_is_back(self):
        self.server.status = good = status_of(3, [job_of("train")])
        self.open()
        self.server.status = None
        self.browser.wait("document.body.classList.contains('lost')")
        self.assertEqual(self.text("#state"), "gone")
        self.assertRegex(self.text("#gone"), "The daemon of node n0 has not answered for .* old")
        self.assertEqual(self.browser.value("document.title"), "gone – shoal")
        self.picture("gone")
        self.server.status = good
        self.shown()
        self.assertEqual(self.text("#gone"), "")

    def test_keys_and_a_screen_reader(self):
        self.server.status = status_of(40, [job_of("train")])
        self.server.whys["jobs"] = [why_of("train")]
        self.open()
        self.browser.press("Tab")
        self.assertEqual(self.browser.value("document.activeElement.id"), "tiles")
        for key, chosen in (("ArrowRight", "n1"), ("End", "n39"), ("ArrowDown", "n39"), ("ArrowLeft", "n38"), ("Home", "n0")):
            self.browser.press(key)
            self.assertTrue(self.text("#told").startswith(f"{chosen}: "), f"{key}: {self.text('#told')}")
        tree = self.browser.command("Accessibility.getFullAXTree")["nodes"]
        names = {(it.get("role", {}).get("value"), it.get("name", {}).get("value")) for it in tree}
        for wanted in (("listbox", "Nodes; the arrow keys go from one to the next"), ("meter", "Memory"), ("heading", "Jobs")):
            self.assertIn(wanted, names)
        options = [name for role, name in names if role == "option"]
        self.assertEqual(len(options), 40)
        self.assertTrue(all(options))
        labels = [name or "" for role, name in names if role in ("image", "img")]
        time = "The time of this node: exposed communication 10 %, hidden communication 30 %, computing 60 %"
        waits = "Waited for on this node: a late rank of this node 30 %, other nodes and their data 15 %, sums 5 %, nobody 50 %"
        self.assertTrue({time, waits} <= set(labels), labels)
        self.assertTrue(any(label.startswith("Who was last: ") for label in labels), labels)


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
        daemon = self.start([BUILD / "bin" / "shoald", "--config", self.folder / "config.json"], self.folder / "log")
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
        self.browser.open(self.address)
        self.shown()
        self.browser.wait("document.querySelector('[data-key=why]')?.textContent.includes('rank 1 on node n0 starts late')")
        before, shown, after = self.status(), {}, None
        for key in ("name", "world_size", "collectives"):
            shown[key] = self.text(f"[data-key={key}]")
        memory = {key: self.browser.value(f"document.getElementById('memory-text').dataset.{key}") for key in ("used", "limit")}
        after = self.status()
        self.assertEqual(shown["name"], before["jobs"][0]["name"])
        self.assertEqual(int(shown["world_size"]), before["jobs"][0]["world_size"])
        # The page is two seconds old at most: of about 30 collectives a second.
        self.assertLessEqual(before["jobs"][0]["collectives"] - 3000, int(shown["collectives"]))
        self.assertLessEqual(int(shown["collectives"]), after["jobs"][0]["collectives"])
        self.assertEqual(int(memory["limit"]), before["memory"]["limit_bytes"])
        self.assertEqual(before["traffic"]["link_mbits"], 1000)
        self.assertRegex(self.text("#told"), "^n0: this node, running, .* of what its link can carry")
        (self.folder / "stop").touch()
        for rank in ranks:
            self.assertEqual(rank.wait(60), 0, (self.folder / "rank0").read_text())
        self.browser.wait("document.getElementById('jobs').textContent === 'No job on this node.'")
        self.browser.wait(f"document.getElementById('memory-text').dataset.used === '{self.status()['memory']['used_bytes']}'")
        self.assertEqual(self.browser.errors, [])


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
