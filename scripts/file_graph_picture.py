"""Pictures of file-graph.py's arrows, drawn by Graphviz: the house by rooms, a room by its files.

Boxes stand in rows by floor, or by layer, and arrows point down. An arrow is left out where a way
over other boxes says the same, so that a picture shows who stands on whom and stays readable. What
is drawn depends on the arrows alone, not on how many calls make one: the picture of a change that
calls nobody new stays as it is.

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
    """Without the arrows that a longer way replaces. Those of a circle stay."""
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
        "digraph {",
        '    graph [bgcolor="transparent" newrank=true ranksep=0.35 nodesep=0.22 fontname="Helvetica"'
        f' fontsize=13 fontcolor="{GREY}" color="{GREY}"];',
        '    node [shape=box style="filled,rounded" fontname="Helvetica" fontsize=13 height=0.34 margin="0.12,0.05"'
        f' color="{GREY}" fontcolor="#202428"];',
        f'    edge [color="{GREY}" arrowsize=0.6];',
    ]
    for group in sorted({box.group for box in boxes}):
        inside = [f'"{box.name}" [label="{box.label}" fillcolor="{FILLS[group]}"];'
                  for box in boxes if box.group == group]
        frame = [f'label="{group}/"; style="rounded,dashed"; labeljust=l;'] if row_labels else ["peripheries=0;"]
        lines += [f"    subgraph cluster_{group} {{", *("        " + line for line in frame + inside), "    }"]
    rows = sorted({box.row for box in boxes})
    for row in rows:
        lines.append(f'    row{row} [shape=plaintext style="" label="{row_labels.get(row, "")}" fontcolor="{GREY}"];')
        names = " ".join(f'"{box.name}";' for box in boxes if box.row == row)
        lines.append(f"    {{ rank=same; row{row}; {names} }}")
    lines.append("    " + " -> ".join(f"row{row}" for row in rows) + " [style=invis];")
    lines += [f'    "{start}" -> "{end}";' for start, end in arrows]
    return "\n".join(lines + ["}", ""])


def house_dot(house, graph, room):
    """Rooms by floor."""
    arrows = {(room(arrow.caller), room(arrow.callee)) for arrow in graph.arrows}
    arrows = {(start, end) for start, end in arrows if start != end}
    names = {room(source) for source in graph.sources if source.endswith(".c")}
    floors = {name: max(house.floor(source) or 0 for source in graph.sources if room(source) == name) for name in names}
    rows = rows_by_depth(names, arrows, floors.get)
    labels = {}
    for name in sorted(names):
        labels.setdefault(rows[name], f"floor {floors[name]}")
    first = {}
    for row in sorted(labels):
        first.setdefault(labels[row], row)
    row_labels = {row: text for text, row in first.items()}
    # Files at the top of a side are its program's.
    boxes = [Box(name, os.path.basename(name) if "/" in name else "shoald", name.split("/")[0], rows[name]) for name in sorted(names)]
    return dot(boxes, reduced(arrows), row_labels)


def room_dot(house, graph, folder):
    """The files of a room by layer."""
    noun = lambda source: os.path.basename(source).split(".")[0]
    inside = [arrow for arrow in graph.arrows
              if os.path.dirname(arrow.caller) == folder == os.path.dirname(arrow.callee)]
    arrows = {(noun(arrow.caller), noun(arrow.callee)) for arrow in inside if arrow.caller != arrow.callee}
    sources = {noun(source): source for source in graph.sources if os.path.dirname(source) == folder}
    layers = {name: (house.layer(folder, source) or (0,))[0] for name, source in sources.items()}
    rows = rows_by_depth(sources, arrows, layers.get)
    group = folder.split("/")[0]
    boxes = [Box(name, name, group, rows[name]) for name in sorted(sources)]
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
