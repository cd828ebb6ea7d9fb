"""Shows that each rule of file-graph.py catches what it is there for: `file-graph.py --self-test`.

A small good tree with tables of its own is compiled, and each violation is put into a copy of it.
"""
import contextlib
import io
import os
import shutil
import subprocess
import tempfile

FLOORS = """
common/base/*       0
common/format/*     1
server/exchange/*   3 pure
server/engine/*     4
server/control/*    4
worker/*            4
"""
LAYERS = """
server/exchange  model < slot
                 < slot_pair chunk < exchange
server           exchange < engine < control
"""
TREE = {
    "common/base/log.c": "void log_say(void) {}",
    "common/format/wire.c": "int wire_version; void log_say(void); void wire_read(void) { log_say(); }",
    "server/exchange/model.h": "void model_make(void);",
    "server/exchange/model.c": '#include "server/exchange/model.h"\nvoid model_make(void) {}',
    # Files of one layer may call each other, and whoever calls through a pointer needs no symbol.
    "server/exchange/slot.c": "void model_make(void); void slot_twin(void);\n"
                              "void slot_fill(void (*done)(void)) { model_make(); slot_twin(); done(); }",
    "server/exchange/slot_local.c": "void slot_fill(void (*)(void)); void slot_twin(void) { slot_fill(slot_twin); }",
    "server/exchange/chunk.c": "void slot_fill(void (*)(void)); static void full(void) {}\n"
                               "void chunk_send(void) { slot_fill(full); }",
    "server/exchange/slot_pair.h": "void slot_pair(void);",
    "server/exchange/exchange.h": "void exchange_pump(void);",
    "server/engine/engine.c": "void chunk_send(void); void job_find(void);\n"
                              "void engine_run(void) { chunk_send(); job_find(); }",
    "server/control/control.c": "void engine_run(void); void control_run(void) { engine_run(); }",
    # The two sides may use one name, and each calls its own.
    "server/engine/job.c": "void job_find(void) {}",
    "worker/job/job.c": "void job_find(void) {}",
    "worker/job/client.c": "void job_find(void); void client_open(void) { job_find(); }",
}


def calls(name, symbol):
    return f"void {symbol}(void); void {name}(void) {{ {symbol}(); }}\n"


# Title, file, what is added to it, and what must be said of it, a violation each; none: all is well.
CASES = (
    ("good tree", "common/base/log.c", "", []),
    ("call up the floors", "common/base/clock.c", calls("clock_now", "wire_read"),
     ["common/base/clock.c: wire_read of common/format/wire.c: floor 0 calls floor 1"]),
    ("data up the floors", "common/base/clock.c", "extern int wire_version; int *clock_now(void) { return &wire_version; }",
     ["common/base/clock.c: wire_version of common/format/wire.c: floor 0 calls floor 1"]),
    ("call up the layers", "server/exchange/slot_map.c", calls("slot_find", "chunk_send"),
     ["server/exchange/slot_map.c: chunk_send of server/exchange/chunk.c: server/exchange's layer slot is below"]),
    ("longest word of a layer", "server/exchange/slot_pair.c", calls("slot_find", "chunk_send"), []),
    ("call up the rooms", "server/engine/late.c", calls("late_run", "control_run"),
     ["server/engine/late.c: control_run of server/control/control.c: server's layer engine is below"]),
    ("include up the layers", "server/exchange/model.h", '#include "server/exchange/exchange.h"\n',
     ["server/exchange/model.h: includes server/exchange/exchange.h: server/exchange's layer model is below"]),
    ("layer not known", "server/exchange/gadget.c", "void gadget(void) {}",
     ["server/exchange/gadget.c: no layer of server/exchange is known"]),
    ("layer of no file", "server/control/control.c", None,
     ["scripts/file-graph.py: LAYERS: server: control fits no file"]),
    ("circle through rooms", "worker/job/client.c",
     calls("client_close", "open_end") + "void api_open(void); void client_more(void) { api_open(); }",
     ["a circle of calls of 2 files: worker/api/open.c worker/job/client.c\n"
      "    worker/api/open.c: client_open of worker/job/client.c\n"
      "    worker/job/client.c: api_open of worker/api/open.c\n"
      "    worker/job/client.c: open_end of worker/api/open.c"]),
    ("circle of includes", "server/exchange/exchange.h", '#include "server/exchange/exchange.h"\n', []),
    ("circle of includes", "server/exchange/model.h", '#include "server/exchange/model_more.h"\n',
     ["a circle of includes of 2 files: server/exchange/model.h server/exchange/model_more.h\n"
      "    server/exchange/model.h: #include of server/exchange/model_more.h\n"
      "    server/exchange/model_more.h: #include of server/exchange/model.h"]),
    ("server to worker", "server/engine/late.c", calls("late_run", "client_open"),
     ["server/engine/late.c: client_open of worker/job/client.c: server/ never calls worker/"]),
    ("worker to server", "worker/job/late.c", calls("late_run", "chunk_send"),
     ["worker/job/late.c: chunk_send of server/exchange/chunk.c: worker/ never calls server/"]),
    ("common to server", "common/format/late.c", calls("late_run", "control_run"),
     ["common/format/late.c: control_run of server/control/control.c: common/ never calls server/"]),
    ("source without object", "worker/job/absent.c", None, ["worker/job/absent.c: not built"]),
    ("source newer than its object", "worker/job/stale.c", "void stale(void) {}",
     ["worker/job/stale.c: newer than its object"]),
)
# Files that a case needs besides its own.
MORE = {
    "circle through rooms": {"worker/api/open.c": calls("api_open", "client_open") + "void open_end(void) {}"},
    "circle of includes": {"server/exchange/model_more.h": '#include "server/exchange/model.h"\n'},
}


def take(root, source):
    os.remove(os.path.join(root, source))
    os.remove(os.path.join(root, "build/obj", source[:-2] + ".o"))


def put(root, source, text):
    """Adds text to a source and compiles it; None: an empty source without an object."""
    path = os.path.join(root, source)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.write("\n" + (text or ""))
    if text is None or not source.endswith(".c"):
        return
    made = os.path.join(root, "build/obj", source[:-2] + ".o")
    os.makedirs(os.path.dirname(made), exist_ok=True)
    subprocess.run(["cc", "-fPIC", "-I", root, "-c", path, "-o", made], check=True)
    os.utime(path, (os.path.getmtime(made) - 60,) * 2)
    if "stale" in source:
        os.utime(made, (os.path.getmtime(path) - 60,) * 2)


def said(module, root):
    """Return what the check of a tree prints, and its exit status."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        status = module.main([root], module.House(FLOORS, LAYERS))
    return output.getvalue(), status


def fits(output, status, expected):
    """Whether what is said is the violations that are expected, and no others."""
    if not expected:
        return output == "" and status == 0
    return status == 1 and all(text in output for text in expected) and f"{len(expected)} problem(s)" in output


def parts(module, root):
    """Return what is wrong with the parts that need no tree each, and with the good tree's pictures."""
    picture, graph, house = module.picture, module.Graph(root, "build"), module.House(FLOORS, LAYERS)
    found = []

    def expect(title, condition):
        if not condition:
            found.append(f"file-graph self-test: {title}")

    # Two circles, one reached from the other, and a third that is found after what it calls.
    pairs = "ab bc ca cd de ed ad fd fg gf hf".split()
    expect("circles of several files", module.circles([module.Arrow(start, "", end) for start, end in pairs])
           == [["a", "b", "c"], ["d", "e"], ["f", "g"]])
    expect("a longer way replaces an arrow",
           picture.reduced({("a", "b"), ("b", "c"), ("a", "c")}) == [("a", "b"), ("b", "c")])
    expect("a circle stays", len(picture.reduced({("a", "b"), ("b", "a"), ("a", "c"), ("b", "c")})) == 4)
    whole = module.dot_text(house, graph, None)
    expect("an arrow between rooms", '"server/engine" -> "server/exchange";' in whole)
    expect("none within a room", '"server/exchange" -> "server/exchange"' not in whole)
    expect("floors in their order", whole.index('label="floor 4"') < whole.index('label="floor 3"'))
    inside = module.dot_text(house, graph, "server/exchange")
    expect("an arrow between files", '"chunk" -> "slot";' in inside)
    expect("no other room", "engine" not in inside)
    drawn = os.path.join(root, "drawn.svg")
    with open(drawn, "w", encoding="utf-8") as file:
        file.write(f"<!-- {picture.hash_of(whole)} -->")
    expect("a picture of this code", picture.is_current(whole, drawn))
    expect("one of other code", not picture.is_current(inside, drawn))
    expect("one that is not there", not picture.is_current(whole, drawn + ".absent"))
    return found


def run(module):
    """module: file-graph.py. Exit status."""
    with tempfile.TemporaryDirectory() as scratch:
        good = os.path.join(scratch, "good")
        for source, text in TREE.items():
            put(good, source, text)
        wrong = parts(module, good)
        for line in wrong:
            print(line)
        failed = len(wrong)
        for number, (title, source, text, expected) in enumerate(CASES):
            root = os.path.join(scratch, str(number))
            shutil.copytree(good, root)
            for other, content in MORE.get(title, {}).items():
                put(root, other, content)
            if title == "layer of no file":
                take(root, source)
            else:
                put(root, source, text)
            output, status = said(module, root)
            if not fits(output, status, expected):
                failed += 1
                print(f"file-graph self-test: {title}: exit {status}, expected {expected}, got:\n{output}")
    if failed:
        print(f"file-graph self-test: {failed} failed")
        return 1
    print(f"file-graph self-test: {len(CASES)} cases")
    return 0
