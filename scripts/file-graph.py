#!/usr/bin/env python3
"""The graph of the files: who calls whom, by the symbols of the object files, and who includes whom.

    file-graph.py [--build DIR] [ROOT]  refuses what points the wrong way; a line per violation
    file-graph.py --report              says the same and the circles inside a layer, and ends well
    file-graph.py --arrows              room -> room, and how many symbols of it are used
    file-graph.py --files ROOM          the same between the files of a room: server/exchange
    file-graph.py --dot                 the picture of the house for Graphviz; with --files that of a room
    file-graph.py --draw                draws PICTURES, which lie in doc/
    file-graph.py --drawn               says which of them are not what the code gives
    file-graph.py --self-test           shows that each rule catches what it is there for

Refused are:
  * a call from a floor to a higher one (the floors' table is in check-floors.sh),
  * a call up the layers of a folder (the table LAYERS below), and an include up them,
  * a circle of calls through files of different rooms or layers, and a circle of includes,
  * a call between server/ and worker/, and from common/ to either,
  * a file of a folder with layers that has none, and a word of the table that fits no file,
  * an object that is missing or older than its source, since it tells nothing about it.

A room is a folder with sources. An arrow goes from the file that needs a symbol to the one that
defines it, functions and data alike. Two kinds of calls have no symbol and are not seen: those of
static inline functions in headers, which are the caller's own code, and those through a pointer,
which is how a lower layer tells a higher one that something has happened.
"""
import argparse
import collections
import fnmatch
import os
import re
import subprocess
import sys

import file_graph_picture as picture
import file_graph_test

# The layers of a folder, lowest first, "<" between them. A word is a folder, or a file by its name
# up to an underscore ("slot" is slot.c, slot_local.h); of several words that fit the longest counts.
LAYERS = """
common           base text < log < memory reduce format auth config < transport
worker           shoal request meeting fusion launch < progress < device < job < drive < api < mpi programs examples
worker/mpi       abi types process absent < communicator < product < collective transfer
worker/drive     drive_core drive_tell < drive_device drive_meet < drive_step < drive_socket < drive_sleep < drive_resume < drive
server/exchange         model < ground < owner < node < exchange_group exchange_trace
                 < exchange_job exchange_link < exchange
server/exchange/model   port model < share < roster < ask disagreement < order
server/exchange/ground  archive segments session < recorder delivery waiting < post submission
server/exchange/owner   slots < slot
server/exchange/node    replay < any_receive agreement chunk < stability probe issue < collective < transfer
server           waits < commands jobs sandbox page < exchange < coordinator engine < status < control < shoald shoalctl
server/waits     finding overlap waits < court < court_links < verdict
server/commands  trace < engine_event < engine_command
server/engine    threads < engine_private engine_status engine_share engine_release
                 < engine_protect < engine_send < engine_peer < engine_io < engine_rings
                 < engine_dispatch < engine_loop < engine
server/engine/threads   engine_queue reducer run_delay
server/coordinator coordinator_internal coordinator_io < coordinator_ground < coordinator_late coordinator_newcomers coordinator_return coordinator_unable
                 < coordinator_home coordinator_wish
                 < coordinator_succession coordinator_segment < coordinator_worker coordinator_group_home
                 < coordinator_group < coordinator_job
                 < coordinator_member < coordinator_drain < coordinator
server/control          ground < stream < users peers < control_why < control_adapter < control_dialogue < control
server/control/ground   control_internal control_options < control_ground control_engine control_turn control_watch
server/control/stream   control_listener control_segment control_closer control_wire
                 control_descriptors < control_account < control_stream_out < control_stream
server/control/users    control_visitor control_worker < control_http < admin admin_trace
server/control/peers    control_source control_peer < control_handshake < control_connect
"""

# The SVG, and the room whose files it shows; None: all rooms.
PICTURES = {"doc/house.svg": None, "doc/exchange.svg": "server/exchange"}

TOPS = ("server", "worker", "common")
SIDES = ("server", "worker")

Arrow = collections.namedtuple("Arrow", "caller symbol callee")


class House:
    """The two tables: where a file is."""

    def __init__(self, floors, layers=LAYERS):
        self.floors = [line.split()[:2] for line in floors.splitlines() if line.strip()]
        self.layers, folder = {}, None
        for line in layers.splitlines():
            if not line.strip():
                continue
            if not line[0].isspace():
                folder, line = line.split(None, 1)
                self.layers[folder] = []
            self.layers[folder] += line.split()

    def floor(self, path):
        """None for a file that the table does not know: check-floors.sh says so."""
        for glob, floor in self.floors:
            if fnmatch.fnmatchcase(path, glob):
                return int(floor)
        return None

    def layer(self, folder, path):
        """Number and word of the layer of a file within a folder of the table; None: not known."""
        entry = path[len(folder) + 1:].split("/")[0].split(".")[0]
        number, best = 0, None
        for word in self.layers[folder]:
            if word == "<":
                number += 1
            elif (entry == word or entry.startswith(word + "_")) and (not best or len(word) > len(best[1])):
                best = number, word
        return best

    def folders(self, path):
        """The folders of the table that a file is in, outermost first."""
        return [folder for folder in self.layers if path.startswith(folder + "/")]

    def layers_of(self, path):
        """Return what makes files of one room differ: the layer in each folder of the table."""
        found = (self.layer(folder, path) for folder in self.folders(path))
        return tuple(layer[0] if layer else None for layer in found)

    def upwards(self, caller, callee):
        """Words for an arrow that goes up the layers of a folder that both are in, or None."""
        for folder in self.folders(caller):
            if folder not in self.folders(callee):
                continue
            low, high = self.layer(folder, caller), self.layer(folder, callee)
            if low and high and low[0] < high[0]:
                return f"{folder}'s layer {low[1]} is below its layer {high[1]}"
        return None


def room(path):
    return os.path.dirname(path)


class Graph:
    """The arrows between files, read from the sources and objects of a tree. Problems are lines of text, found while
    reading."""

    def __init__(self, root, build):
        self.root, self.problems = root, []
        self.sources = sorted(
            os.path.relpath(os.path.join(folder, name), root)
            for top in TOPS for folder, _, names in os.walk(os.path.join(root, top))
            for name in names if name.endswith((".c", ".h")))
        if not self.sources:
            self.problems.append(f"no sources under {root}")
        self.objects = self._objects(build)
        self.arrows = self._arrows()
        self.includes = self._includes()

    def _objects(self, build):
        """Source by object, of those whose object is there and young enough to tell."""
        objects = {}
        for source in self.sources:
            if not source.endswith(".c"):
                continue
            path = os.path.join(self.root, build, "obj", source[:-2] + ".o")
            if not os.path.exists(path):
                self.problems.append(f"{source}: not built: its calls are not known")
            elif os.path.getmtime(path) < os.path.getmtime(os.path.join(self.root, source)):
                self.problems.append(f"{source}: newer than its object: its calls are not known")
            else:
                objects[path] = source
        return objects

    def _arrows(self):
        """Sorted, each symbol of each pair of files once."""
        if not self.objects:
            return []
        needs, homes = set(), collections.defaultdict(set)
        # One path before each symbol, so that lines need no context.
        listed = subprocess.run(["nm", "-A", "-g", "-P", *self.objects], check=True, text=True,
                                stdout=subprocess.PIPE).stdout
        for line in listed.splitlines():
            path, rest = line.split(": ", 1)
            symbol, kind = rest.split()[:2]
            if kind in "Uwv":
                needs.add((self.objects[path], symbol))
            else:
                homes[symbol].add(self.objects[path])
        return sorted(Arrow(caller, symbol, callee) for caller, symbol in needs
                      for callee in nearest(caller, homes.get(symbol, ())))

    def _includes(self):
        arrows = set()
        known = set(self.sources)
        for source in self.sources:
            with open(os.path.join(self.root, source), encoding="utf-8") as file:
                for name in re.findall(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', file.read(), re.M):
                    if name in known:
                        arrows.add(Arrow(source, "#include", name))
        return sorted(arrows)


def nearest(caller, homes):
    """Return those files, out of all that define a symbol, that the caller is linked with: two sides, or two programs,
    may use one name. The nearest in the tree are taken, common/ before the other side."""
    def distance(home):
        shared = len(os.path.commonprefix([caller.split("/")[:-1], home.split("/")[:-1]]))
        return -shared, not home.startswith("common/")
    closest = min(map(distance, homes), default=None)
    return [home for home in homes if distance(home) == closest]


def circles(arrows):
    """The strongly connected components of more than one file, each a sorted list (Tarjan's)."""
    follows = collections.defaultdict(list)
    for arrow in arrows:
        follows[arrow.caller].append(arrow.callee)
    index, low, stack, on_stack, found = {}, {}, [], set(), []

    def visit(file):
        index[file] = low[file] = len(index)
        stack.append(file)
        on_stack.add(file)
        for other in follows[file]:
            if other not in index:
                visit(other)
                low[file] = min(low[file], low[other])
            elif other in on_stack:
                low[file] = min(low[file], index[other])
        if low[file] == index[file]:
            members = []
            while not members or members[-1] != file:
                members.append(stack.pop())
                on_stack.discard(members[-1])
            if len(members) > 1:
                found.append(sorted(members))

    for file in sorted(follows):
        if file not in index:
            visit(file)
    return sorted(found)


def arrow_text(arrow):
    return f"{arrow.caller}: {arrow.symbol} of {arrow.callee}"


def circle_problem(title, members, arrows):
    inside = [arrow for arrow in arrows if arrow.caller in members and arrow.callee in members]
    return "\n".join([f"{title} of {len(members)} files: {' '.join(members)}",
                      *("    " + arrow_text(arrow) for arrow in inside)])


def one_layer(house, members):
    """Whether the files of a circle are of one room and one layer, where a circle is allowed."""
    return len({(room(file), house.layers_of(file)) for file in members}) == 1


def check(house, graph):
    """The lines to print, a violation each; a circle's lines are one violation."""
    problems = list(graph.problems)
    for folder in house.layers:
        inside = [source for source in graph.sources if source.startswith(folder + "/")]
        found = {source: house.layer(folder, source) for source in inside}
        problems += [f"{source}: no layer of {folder} is known for it: add it to LAYERS in scripts/file-graph.py"
                     for source in inside if not found[source]]
        used = {layer[1] for layer in found.values() if layer}
        problems += [f"scripts/file-graph.py: LAYERS: {folder}: {word} fits no file: drop it"
                     for word in house.layers[folder] if word != "<" and word not in used]
    for arrow in graph.arrows:
        tops = arrow.caller.split("/")[0], arrow.callee.split("/")[0]
        floors = house.floor(arrow.caller), house.floor(arrow.callee)
        upwards = house.upwards(arrow.caller, arrow.callee)
        if tops[0] != tops[1] and tops[1] in SIDES:
            problems.append(f"{arrow_text(arrow)}: {tops[0]}/ never calls {tops[1]}/")
        elif None not in floors and floors[0] < floors[1]:
            problems.append(f"{arrow_text(arrow)}: floor {floors[0]} calls floor {floors[1]}: calls point down")
        elif upwards:
            problems.append(f"{arrow_text(arrow)}: {upwards}: calls point down")
    for arrow in graph.includes:
        upwards = house.upwards(arrow.caller, arrow.callee)
        if upwards:
            problems.append(f"{arrow.caller}: includes {arrow.callee}: {upwards}")
    for members in circles(graph.arrows):
        if not one_layer(house, members):
            problems.append(circle_problem("a circle of calls", members, graph.arrows))
    problems += [circle_problem("a circle of includes", members, graph.includes)
                 for members in circles(graph.includes)]
    return problems


def allowed_circles(house, graph):
    return [circle_problem("allowed, in one layer: a circle of calls", members, graph.arrows)
            for members in circles(graph.arrows) if one_layer(house, members)]


def counted(arrows, name):
    """Lines "from -> to count" of the arrows between different names."""
    counts = collections.Counter((name(arrow.caller), name(arrow.callee)) for arrow in arrows)
    return [f"{start} -> {end} {count}" for (start, end), count in sorted(counts.items()) if start != end]


def dot_text(house, graph, folder):
    return picture.room_dot(house, graph, folder) if folder else picture.house_dot(house, graph)


def draw(house, graph):
    for path, folder in PICTURES.items():
        try:
            picture.draw(dot_text(house, graph, folder), os.path.join(graph.root, path))
        except FileNotFoundError as missing:
            sys.exit(f"file-graph: {missing}: Debian has Graphviz in the package graphviz")


def not_drawn(house, graph):
    """A line for each picture that is not what the code gives."""
    return graph.problems + [
        f"{path}: the code gives another picture: make picture" for path, folder in PICTURES.items()
        if not picture.is_current(dot_text(house, graph, folder), os.path.join(graph.root, path))]


def floors_read():
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "check-floors.sh")
    return subprocess.run([script, "--floors"], check=True, text=True, stdout=subprocess.PIPE).stdout


def main(words, house=None):
    """house: for the self-test; otherwise that of the tables."""
    parser = argparse.ArgumentParser(prog="file-graph.py", description=__doc__.splitlines()[0])
    parser.add_argument("root", nargs="?", default=os.path.join(os.path.dirname(__file__), ".."))
    parser.add_argument("--build", default="build", help="under ROOT, with the objects in obj/ (default: build)")
    parser.add_argument("--report", action="store_true", help="say what is wrong, and exit with status 0")
    parser.add_argument("--arrows", action="store_true", help="room -> room, and the number of symbols")
    parser.add_argument("--files", metavar="ROOM", help="file -> file within a room")
    parser.add_argument("--self-test", action="store_true", help="show that each rule catches what it is for")
    parser.add_argument("--dot", action="store_true", help="what Graphviz draws the house from, or the room of --files")
    parser.add_argument("--draw", action="store_true", help="draw the pictures in doc/")
    parser.add_argument("--drawn", action="store_true", help="say which picture is not what the code gives")
    options = parser.parse_args(words)
    if options.self_test:
        return file_graph_test.run(sys.modules[__name__])
    graph = Graph(options.root, options.build)
    house = house or House(floors_read())
    problems = []
    if options.dot:
        print(dot_text(house, graph, options.files), end="")
    elif options.arrows:
        print("\n".join(counted(graph.arrows, room)))
    elif options.files:
        inside = [arrow for arrow in graph.arrows if room(arrow.caller) == room(arrow.callee) == options.files]
        print("\n".join(counted(inside, os.path.basename)))
    elif options.draw:
        draw(house, graph)
    elif options.drawn:
        problems = not_drawn(house, graph)
    else:
        problems = check(house, graph)
    if options.report:
        print("\n".join(allowed_circles(house, graph)))
    if problems:
        print("\n".join(problems))
        print(f"file-graph: {len(problems)} problem(s)")
    return int(bool(problems) and not options.report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
