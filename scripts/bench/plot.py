"""Draws panels of bandwidth against size as SVG, both axes logarithmic. Panels are
{"title", "curves": {name: {bytes: GB/s}}}."""
import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 460, 356  # of a panel
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 34, 108
STYLES = {
    "shoal, arena": ("#0b6e4f", ""),
    "shoal, private buffers": ("#1aa179", ""),
    "shoal in torch": ("#8a6d1f", ""),
    "Gloo in torch": ("#c44536", ""),
    "Open MPI": ("#3d5a98", ""),
    "bound: raw streams": ("#777777", "5,4"),
}


def size_text(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def text(x, y, words, anchor="middle", extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{escape(words)}</text>'


class Axes:
    """From sizes and bandwidths to places in a panel."""

    def __init__(self, curves):
        sizes = sorted({int(size) for curve in curves.values() for size in curve})
        values = [value for curve in curves.values() for value in curve.values()]
        self.sizes = sizes
        self.low, self.high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        self.high = max(self.high, self.low + 1)

    def x(self, size):
        least, most = math.log2(self.sizes[0]), math.log2(self.sizes[-1])
        place = (math.log2(size) - least) / ((most - least) or 1)
        return LEFT + place * (WIDTH - LEFT - RIGHT)

    def y(self, value):
        place = (math.log10(value) - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - place * (HEIGHT - TOP - BOTTOM)


def grid(axes):
    lines = []
    for decade in range(axes.low, axes.high + 1):
        y = axes.y(10.0**decade)
        lines.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" class="grid"/>')
        lines.append(text(LEFT - 6, y + 4, f"{10.0**decade:g}", "end"))
    for size in axes.sizes:
        x = axes.x(size)
        lines.append(f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" class="grid"/>')
        lines.append(text(x, HEIGHT - BOTTOM + 16, size_text(size), "end",
                          f' transform="rotate(-35 {x:.1f} {HEIGHT - BOTTOM + 16})"'))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    lines.append(text(14, middle, "GB/s of the buffer", extra=f' transform="rotate(-90 14 {middle})"'))
    return lines


def curve_lines(axes, name, curve, index):
    color, dashes = STYLES.get(name, ("#000000", ""))
    points = [(axes.x(int(size)), axes.y(value))
              for size, value in sorted(curve.items(), key=lambda item: int(item[0]))]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    lines = [f'<path d="{path}" fill="none" stroke="{color}" stroke-width="2" '
             f'stroke-dasharray="{dashes}"/>']
    if not dashes:
        lines += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.8" fill="{color}"/>' for x, y in points]
    x, y = LEFT + (index % 2) * 190, HEIGHT - 42 + (index // 2) * 16
    lines.append(f'<path d="M{x} {y - 4}h20" stroke="{color}" stroke-width="3" '
                 f'stroke-dasharray="{dashes}"/>')
    lines.append(text(x + 26, y, name, "start"))
    return lines


def panel_lines(panel):
    axes = Axes(panel["curves"])
    lines = [text(WIDTH / 2, 20, panel["title"], extra=' class="title"'), *grid(axes)]
    for index, (name, curve) in enumerate(panel["curves"].items()):
        lines += curve_lines(axes, name, curve, index)
    return lines


def svg(panels):
    """The document."""
    width = WIDTH * len(panels)
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT}" '
             f'viewBox="0 0 {width} {HEIGHT}">',
             "<style>text{font:12px sans-serif;fill:#222}.title{font-weight:bold}"
             ".grid{stroke:#ddd;fill:none}</style>",
             '<rect width="100%" height="100%" fill="white"/>']
    for index, panel in enumerate(panels):
        lines += [f'<g transform="translate({index * WIDTH} 0)">', *panel_lines(panel), "</g>"]
    return "\n".join([*lines, "</svg>", ""])
