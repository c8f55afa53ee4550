"""A profile as a page of HTML: pictures are inline SVG, a few lines of script sort the tables, nothing is loaded from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from tilewright.runtime.roofline import LEVELS, NAMES

if TYPE_CHECKING:
    from tilewright.runtime.profile import KernelProfile, Profile

WIDTH, HEIGHT = 960, 420
LEFT, RIGHT, TOP, BOTTOM = 64, 130, 16, 44
COLOURS = {"compute": "#d9480f", "l1": "#2b8a3e", "l2": "#1971c2", "l3": "#6741d9", "memory": "#a61e4d"}
NARROWEST = 0.4  # pixels of a bar in the timeline

STYLE = """
:root { color-scheme: light dark; --line: #8886; --dim: #888; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
svg { width: 100%; height: auto; display: block; } svg text { fill: currentColor; font-size: 12px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; cursor: pointer; border-bottom: 2px solid var(--line); position: sticky; top: 0; background: Canvas; }
td { border-bottom: 1px solid var(--line); vertical-align: top; } td, th { padding: .25rem .6rem .25rem 0; }
.n { text-align: right; white-space: nowrap; } .dim { color: var(--dim); } .facts { margin: .3rem 0 0; }
.bar { display: inline-block; height: .6em; background: #1971c2; opacity: .7; }
circle:hover, rect.k:hover { stroke: currentColor; stroke-width: 2; }
"""

SCRIPT = """
for (const table of document.querySelectorAll("table")) table.querySelectorAll("th").forEach((head, column) => {
  head.onclick = () => {
    const body = table.tBodies[0], down = head.dataset.down !== "1";
    const value = row => { const cell = row.cells[column]; return cell.dataset.v === undefined ? cell.textContent : +cell.dataset.v; };
    const order = (a, b) => typeof a === "number" ? a - b : a.localeCompare(b);
    [...body.rows].sort((a, b) => (down ? -1 : 1) * order(value(a), value(b))).forEach(row => body.append(row));
    head.dataset.down = down ? "1" : "0";
  };
});
"""


def page(profile: Profile) -> str:
    """The whole page as text."""
    roofs = profile.roofs
    source = "measured on this machine" if roofs.measured else "estimated; tilewright doctor --measure measures them"
    sizes = ", ".join(f"{name} = {value}" for name, value in profile.sizes.items())
    facts = (
        f"{time_text(profile.total)} per inference with {roofs.threads} threads on {profile.target}{', ' * bool(sizes)}{sizes}; "
        f"medians of {profile.repeat} runs."
    )
    more = (
        f"{time_text(profile.in_kernels)} in kernels, {profile.outside:.1%} outside of them; {time_text(profile.plain)} without clocks "
        f"around kernels; the call from Python adds {time_text(profile.python)}. The machine's limit for these kernels is "
        f"{time_text(profile.limit)}. Peaks: {source}."
    )
    parts = [
        f"<h1>{escape(profile.model)}</h1>",
        f'<p class="facts">{escape(facts)}</p>',
        f'<p class="facts dim">{escape(more)}</p>',
        "<h2>Roofline</h2>",
        roofline(profile),
        "<h2>Timeline</h2>",
        timeline(profile),
        "<h2>Layers</h2>",
        layers(profile),
        "<h2>Kernels</h2>",
        kernels(profile),
    ]
    head = f'<meta charset="utf-8"><title>{escape(profile.model)}: profile</title><style>{STYLE}</style>'
    return f"<!DOCTYPE html>\n<html><head>{head}</head><body>{''.join(parts)}<script>{SCRIPT}</script></body></html>\n"


# ---- pictures


def roofline(profile: Profile) -> str:
    """Operations per second over operations per byte, both on logarithmic scales: the roofs, and a circle for each kernel, whose area is
    its share of the time."""
    shown = [kernel for kernel in profile.kernels if kernel.cost.operations and kernel.cost.moved and kernel.median]
    if not shown:
        return '<p class="dim">No kernel computes anything.</p><svg viewBox="0 0 1 1"><circle r="0"/></svg>'
    peaks, bandwidth = profile.roofs.peaks, profile.roofs.bandwidth
    used = {kind for kernel in shown for kind in kernel.cost.multiply_adds} | {"f32"}
    highest = max(peaks[kind] for kind in used)
    top = max([highest, *(kernel.gflops for kernel in shown)]) * 1.6
    low = min([peaks["f32"] / 100, *(kernel.gflops for kernel in shown)]) / 1.6
    first = min([0.05, *(kernel.intensity for kernel in shown)]) / 1.3
    last = max([256.0, *(kernel.intensity for kernel in shown)]) * 1.3

    def x(intensity: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(intensity / first) / math.log(last / first)

    def y(gflops: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * math.log(top / gflops) / math.log(top / low)

    lines = [*axis(x, first, last, vertical=False), *axis(y, low, top, vertical=True)]
    for kind in sorted(used):
        lines.append(line(x(first), y(peaks[kind]), x(last), y(peaks[kind]), COLOURS["compute"]))
        lines.append(label(x(last) + 6, y(peaks[kind]) + 4, f"{kind} {peaks[kind]:.0f}"))
    for level in LEVELS:
        rate = bandwidth[level]
        begin, end = max(first, low / rate), min(last, highest / rate)
        if begin < end:
            lines.append(line(x(begin), y(begin * rate), x(end), y(end * rate), COLOURS[level]))
            slope = math.degrees(math.atan2(y(end * rate) - y(begin * rate), x(end) - x(begin)))
            turned = f'transform="translate({x(begin) + 8:.1f} {y(begin * rate) - 12:.1f}) rotate({slope:.1f})"'
            lines.append(f"<text {turned}>{NAMES[level]} {rate:.0f} GB/s</text>")
    total = profile.in_kernels or 1.0
    for kernel in sorted(shown, key=lambda k: -k.median):
        radius = max(2.5, 40 * math.sqrt(kernel.median / total))
        lines.append(
            f'<circle cx="{x(kernel.intensity):.1f}" cy="{y(kernel.gflops):.1f}" r="{radius:.1f}" fill="{COLOURS[kernel.binding]}" '
            f'fill-opacity="0.45"><title>{escape(summary(kernel))}</title></circle>'
        )
    lines.append(label((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "operations per byte", "middle"))
    lines.append(label(8, TOP + 4, "GFLOP/s"))
    return svg(HEIGHT, lines)


def timeline(profile: Profile) -> str:
    """One bar for each launch, from left to right, coloured by what binds it."""
    by_number = {kernel.number: kernel for kernel in profile.kernels}
    end = max([profile.total, *(end for _, _, end in profile.timeline)]) or 1.0
    bars = []
    for number, begin, stop in profile.timeline:
        kernel = by_number[number]
        width = max(NARROWEST, (stop - begin) / end * WIDTH)
        bars.append(
            f'<rect class="k" x="{begin / end * WIDTH:.2f}" y="4" width="{width:.2f}" height="40" fill="{COLOURS[kernel.binding]}" '
            f'fill-opacity="{0.35 + 0.6 * min(1.0, kernel.share):.2f}"><title>{escape(summary(kernel))}</title></rect>'
        )
    for part in range(5):
        anchor = "start" if part == 0 else "end" if part == 4 else "middle"
        bars.append(label(part * WIDTH / 4, 62, time_text(part * end / 4), anchor))
    keys = "".join(f'<span style="color:{COLOURS[name]}">&#9632;</span> {title} ' for name, title in NAMES.items())
    return svg(70, bars) + f'<p class="dim">Bound by {keys}; the stronger the colour, the nearer to that limit.</p>'


def axis(place: Callable[[float], float], first: float, last: float, vertical: bool) -> list[str]:
    """Lines at powers of ten, with their labels."""
    marks = []
    for exponent in range(math.ceil(math.log10(first)), math.floor(math.log10(last)) + 1):
        value, position = f"{10.0**exponent:g}", place(10.0**exponent)
        if vertical:
            marks += [line(LEFT, position, WIDTH - RIGHT, position, "var(--line)"), label(LEFT - 6, position + 4, value, "end")]
        else:
            marks += [line(position, TOP, position, HEIGHT - BOTTOM, "var(--line)"), label(position, HEIGHT - 26, value, "middle")]
    return marks


def line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="1.5"/>'


def label(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def svg(height: float, parts: Iterable[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img">{"".join(parts)}</svg>'


# ---- tables


def kernels(profile: Profile) -> str:
    total = profile.in_kernels or 1.0
    rows = (
        (
            figure(kernel.number, str(kernel.number)),
            figure(kernel.median, time_text(kernel.median)),
            figure(kernel.minimum, time_text(kernel.minimum)),
            share_cell(kernel.median / total),
            figure(kernel.share, f"{kernel.share:.0%}"),
            f"<td>{NAMES[kernel.binding]}</td>",
            figure(kernel.gflops, f"{kernel.gflops:.1f}"),
            figure(kernel.intensity, f"{kernel.intensity:.3g}"),
            figure(kernel.cost.operations, count_text(kernel.cost.operations)),
            figure(kernel.cost.moved, count_text(kernel.cost.moved) + "B"),
            f'<td>{escape(", ".join(kernel.origins))}<br><span class="dim">{escape(kernel.symbol)}</span></td>',
        )
        for kernel in profile.slowest()
    )
    head = ("#", "median", "min", "of time", "of limit", "bound by", "GFLOP/s", "op/byte", "operations", "bytes", "nodes")
    return table(head, rows)


def layers(profile: Profile) -> str:
    total = profile.in_kernels or 1.0
    rows = (
        (
            f"<td>{escape(name)}</td>",
            figure(layer.kernels, str(layer.kernels)),
            figure(layer.seconds, time_text(layer.seconds)),
            share_cell(layer.seconds / total),
            figure(layer.limit / (layer.seconds or 1.0), f"{layer.limit / (layer.seconds or 1.0):.0%}"),
            figure(layer.operations, count_text(layer.operations)),
        )
        for name, layer in profile.layers().items()
    )
    return table(("layer", "kernels", "time", "of time", "of limit", "operations"), rows)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    lines = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table>"


def figure(value: float, text: str) -> str:
    """A cell that sorts by a number."""
    return f'<td class="n" data-v="{value:.9g}">{escape(text)}</td>'


def share_cell(share: float) -> str:
    return f'<td class="n" data-v="{share:.6g}">{share:.1%} <span class="bar" style="width:{share * 80:.1f}px"></span></td>'


def summary(kernel: KernelProfile) -> str:
    """One kernel in words, for the tip under the pointer."""
    nodes = ", ".join(kernel.origins) or kernel.name
    return (
        f"{nodes}\n{time_text(kernel.median)}, {kernel.gflops:.1f} GFLOP/s, {kernel.intensity:.3g} operations per byte\n"
        f"{kernel.share:.0%} of the limit by {NAMES[kernel.binding]}"
    )


def time_text(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.3f} ms" if seconds < 1 else f"{seconds:.3f} s"


def count_text(count: float) -> str:
    for prefix in ("", "k", "M", "G"):
        if count < 1000:
            return f"{count:.3g} {prefix}"
        count /= 1000
    return f"{count:.3g} T"
