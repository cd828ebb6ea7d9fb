"""Pictures of file-graph.py's arrows, drawn by Graphviz: the house by rooms, a room by its files.

Boxes stand in rows by floor, or by layer, and arrows point down. An arrow is left out where a way over other boxes says
the same, so that a picture shows who stands on whom and stays readable. The drawing depends on the arrows alone, not on
how many calls make one: the picture of a change that calls nobody new stays as it is.

An SVG carries the hash of the text that Graphviz was given. Whether it shows what the code gives is
known from that, and so does not depend on Graphviz, its version or its fonts.
"""
import collections
import hashlib
import os
import re
import subprocess

# Dark words on light boxes, and grey between them: on a white and on a black page.
FILLS = {"server": "#cfe3f7", "worker": "#d5efd6", "common": "#f6e5c3"}
OTHER_FILLS = ("#cfe3f7", "#d5efd6", "#f6e5c3", "#e7daf2", "#f7d6d3", "#d3eeee")
GREY = "#808890"

Box = collections.namedtuple("Box", "name label group row")


def rows_by_depth(names, arrows, height):
    """Row of each name, 0 the highest. height(name) decides, and among equals who is called by whom."""
    depth = {}

    def visit(name, above):
        if name not in depth:
            callers = {start for start, end in arrows
                       if end == name and start not in above and height(start) == height(name)}
            depth[name] = max((visit(caller, above | {name}) + 1 for caller in callers), default=0)
        return depth[name]

    for name in sorted(names):
        visit(name, {name})
    steps = sorted({(-height(name), depth[name]) for name in names})
    return {name: steps.index((-height(name), depth[name])) for name in names}


def reduced(arrows):
    """Return the arrows without those that a longer way replaces. The arrows of a circle stay."""
    follows = collections.defaultdict(set)
    for start, end in arrows:
        follows[start].add(end)

    def reached(start, without):
        seen, left = set(), [start]
        while left:
            for end in follows[left.pop()] - {without if not seen else None}:
                if end not in seen:
                    seen.add(end)
                    left.append(end)
        return seen

    kept = set()
    for start, end in arrows:
        others = follows[start] - {end}
        circle = start in reached(end, None)
        if circle or not any(end in reached(other, None) and start not in reached(other, None) for other in others):
            kept.add((start, end))
    return sorted(kept)


def dot(boxes, arrows, row_labels):
    """Graphviz's text. row_labels: words at the left of a row, by number."""
    lines = [
        'digraph "who calls whom" {',
        '    graph [bgcolor="transparent" newrank=true ranksep=0.28 nodesep=0.22 fontname="Helvetica"'
        f' fontsize=13 fontcolor="{GREY}" color="{GREY}"];',
        '    node [shape=box style="filled,rounded" fontname="Helvetica" fontsize=13 height=0.34 margin="0.12,0.05"'
        f' color="{GREY}" fontcolor="#202428"];',
        f'    edge [color="{GREY}" arrowsize=0.6];',
    ]
    groups = sorted({box.group for box in boxes})
    for number, group in enumerate(groups):
        fill = FILLS.get(group) or OTHER_FILLS[number % len(OTHER_FILLS)]
        inside = [f'"{box.name}" [label="{box.label}" fillcolor="{fill}"];' for box in boxes if box.group == group]
        frame = [f'label="{group}/"; style="rounded,dashed"; labeljust=l;'] if group else ["peripheries=0;"]
        lines += [f"    subgraph cluster_{number} {{", *("        " + line for line in frame + inside), "    }"]
    rows = sorted({box.row for box in boxes})
    for row in rows:
        lines.append(f'    row{row} [shape=plaintext style="" label="{row_labels.get(row, "")}" fontcolor="{GREY}"];')
        names = " ".join(f'"{box.name}";' for box in boxes if box.row == row)
        lines.append(f"    {{ rank=same; row{row}; {names} }}")
    lines.append("    " + " -> ".join(f"row{row}" for row in rows) + " [style=invis];")
    lines += [f'    "{start}" -> "{end}";' for start, end in arrows]
    return "\n".join(lines + ["}", ""])


def outer_room(sources):
    """From a file to its room in the picture of the house: a room within a room is part of it."""
    rooms = {os.path.dirname(source) for source in sources if source.endswith(".c")}

    def found(source):
        words = os.path.dirname(source).split("/")
        outer = ("/".join(words[:count]) for count in range(2, len(words)))
        return next((name for name in outer if name in rooms), "/".join(words))
    return found


def house_dot(house, graph):
    """Rooms by floor."""
    room = outer_room(graph.sources)
    arrows = {(room(arrow.caller), room(arrow.callee)) for arrow in graph.arrows}
    arrows = {(start, end) for start, end in arrows if start != end}
    names = {room(source) for source in graph.sources if source.endswith(".c")}
    floors = {name: max(house.floor(source) or 0 for source in graph.sources if room(source) == name) for name in names}
    rows = rows_by_depth(names, arrows, floors.get)
    labels = {}
    for name in sorted(names, key=rows.get):
        if f"floor {floors[name]}" not in labels.values():
            labels[rows[name]] = f"floor {floors[name]}"
    # Files at the top of a side are its program's.
    boxes = [Box(name, os.path.basename(name) if "/" in name else "shoald", name.split("/")[0], rows[name])
             for name in sorted(names)]
    return dot(boxes, reduced(arrows), labels)


def room_dot(house, graph, folder):
    """The files of a room by layer, those of a room within it in a frame."""
    def name(source):
        return source[len(folder) + 1:].split(".")[0]

    sources = {name(source): source for source in graph.sources if source.startswith(folder + "/")}
    arrows = {(name(arrow.caller), name(arrow.callee)) for arrow in graph.arrows
              if arrow.caller.startswith(folder + "/") and arrow.callee.startswith(folder + "/")}
    layers = {noun: [-1 if layer is None else layer for layer in house.layers_of(source)]
              for noun, source in sources.items()}
    heights = sorted(layers.values())
    rows = rows_by_depth(sources, arrows, lambda noun: heights.index(layers[noun]))
    boxes = [Box(noun, os.path.basename(noun), os.path.dirname(noun), rows[noun]) for noun in sorted(sources)]
    return dot(boxes, reduced(arrows), {})


def hash_of(text):
    return hashlib.sha256(text.encode()).hexdigest()


def draw(text, path):
    """Writes the SVG. FileNotFoundError: there is no Graphviz."""
    drawn = subprocess.run(["dot", "-Tsvg"], input=text, check=True, text=True, stdout=subprocess.PIPE).stdout
    note = f"<!-- Made by `make picture`, by Graphviz from a text with the hash {hash_of(text)} -->"
    with open(path, "w", encoding="utf-8") as file:
        file.write(re.sub(r"<!-- Generated by.*?-->", note, drawn, count=1, flags=re.S))


def is_current(text, path):
    try:
        with open(path, encoding="utf-8") as file:
            return hash_of(text) in file.read()
    except FileNotFoundError:
        return False
