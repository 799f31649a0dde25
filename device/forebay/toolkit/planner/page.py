"""A plan as a page of its own: one HTML file without anything from elsewhere, for narrow and wide windows, light and dark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from forebay.toolkit.planner.choice import Plan
from forebay.toolkit.planner.layout import MIB
from forebay.toolkit.planner.machine import GIB
from forebay.toolkit.planner.profile import StepProfile
from forebay.toolkit.planner.report import PREDICTED, TODAY, assumptions, devices_of, step_lines, time_rows

DEVICES_SHOWN = 64
STYLE = """
:root { color-scheme: light dark; --ink: #1c2733; --paper: #ffffff; --soft: #eef2f6; --line: #c6d0da; --dim: #51606f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4ebf2; --paper: #14191f; --soft: #202832; --line: #3b4754; --dim: #a3b1bf; } }
body { margin: 0 auto; padding: 1rem; max-width: 72rem; font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); }
h1 { font-size: 1.4rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { margin: .25rem 0; overflow-wrap: anywhere; }
.dim { color: var(--dim); }
.mesh { display: grid; grid-template-columns: repeat(auto-fill, minmax(4.5rem, 1fr)); gap: .5rem; padding: 0; margin: 0; list-style: none; }
.mesh li { border: 1px solid var(--line); border-radius: .3rem; padding: .25rem .4rem; font-size: .8rem; }
.bar { display: flex; height: 1.1rem; background: var(--soft); border: 1px solid var(--line); border-radius: .2rem; overflow: hidden; }
.mesh .bar { height: .6rem; }
.bar span { display: block; height: 100%; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; padding: .25rem .5rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.number { text-align: right; white-space: nowrap; }
.key { display: inline-block; width: .8rem; height: .8rem; border-radius: .15rem; margin-right: .4rem; }
"""
Colored = tuple[str, float, str]
"""A part's name, its size, and its colour."""
COLOURS = ("#2f6db5", "#c2571a", "#2e8b57", "#8a4fa3", "#b8860b", "#b03a48", "#3a8fa0", "#6b8e23", "#7a7a7a")


def html(profile: StepProfile, plan: Plan, program: str) -> str:
    """The page's text."""
    chosen = plan.chosen
    mesh = " x ".join(f"{name} {size}" for name, size in chosen.layout.axes)
    body = [
        f"<h1>{escape(chosen.layout.name)}</h1>",
        f"<p>{escape(devices_of(plan.machine))}, for <code>{escape(program)}</code>: {escape(plan.why)}.</p>",
        f'<p class="dim">{escape(PREDICTED)}</p>',
        f"<h2>The mesh: {escape(mesh)}</h2>",
        _mesh(plan),
        f"<h2>Memory of {'each device' if chosen.layout.stages == 1 else 'a device of the largest stage'} at its peak</h2>",
        _bars(plan),
        "<h2>Time of a step</h2>",
        _times(plan),
        "<h2>Rejected</h2>",
        _table(("Layout", "Why"), [(one.layout.name, one.why) for one in plan.rejected]) if plan.rejected else "<p>Nothing.</p>",
        "<h2>What was recorded</h2>",
        *(f"<p>{escape(line)}</p>" for line in step_lines(profile)),
        "<h2>What the figures rest on</h2>",
        *(f"<p>{escape(line)}</p>" for line in assumptions(plan.machine)),
        f"<p>{escape(TODAY)}</p>",
    ]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>{escape(program)}</title>'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}<style>{STYLE}</style></head>\n<body>\n' + "\n".join(body) + "\n</body></html>\n"


def _memory_parts(plan: Plan) -> list[Colored]:
    parts = enumerate(plan.chosen.cost.memory.__dict__.items())
    return [(name, size, COLOURS[place]) for place, (name, size) in parts if size]


def _memory(size: float) -> str:
    return f"{size / GIB:,.2f} GiB" if size >= GIB else f"{size / MIB:,.2f} MiB"


def _bar(parts: Sequence[Colored], whole: float, said: str) -> str:
    spans = "".join(f'<span style="width:{100 * size / whole:.3f}%;background:{colour}"></span>' for _, size, colour in parts)
    return f'<div class="bar" role="img" aria-label="{escape(said)}">{spans}</div>'


def _key(parts: Sequence[Colored], told: Callable[[float], str], total: str) -> str:
    """The table beside a bar; ``told`` writes a part's size."""
    rows = "".join(
        f'<tr><td><span class="key" style="background:{colour}"></span>{escape(name)}</td><td class="number">{told(size)}</td></tr>'
        for name, size, colour in parts
    )
    return f'<table>{rows}<tr><th>in all</th><td class="number">{total}</td></tr></table>'


def _mesh(plan: Plan) -> str:
    """Each device with its place along the axes, and its memory: the same on all, or at most so much."""
    sizes, devices = [size for _, size in plan.chosen.layout.axes], plan.machine.devices
    bar = _memory_bar(plan)
    items = [f"<li>{number}: {_place(number, sizes)}{bar}</li>" for number in range(min(devices, DEVICES_SHOWN))]
    more = f'<p class="dim">and {devices - DEVICES_SHOWN} more, alike</p>' if devices > DEVICES_SHOWN else ""
    return f'<ul class="mesh">{"".join(items)}</ul>{more}'


def _place(number: int, sizes: Sequence[int]) -> str:
    places: list[str] = []
    for size in reversed(sizes):
        places.insert(0, str(number % size))
        number //= size
    return ", ".join(places)


def _memory_bar(plan: Plan) -> str:
    limit = plan.machine.memory_bytes
    return _bar(_memory_parts(plan), limit, f"{plan.chosen.cost.memory.total / limit:.0%} of a device's memory")


def _bars(plan: Plan) -> str:
    total, limit = plan.chosen.cost.memory.total, plan.machine.memory_bytes
    return _memory_bar(plan) + _key(_memory_parts(plan), _memory, f"{_memory(total)} of {limit / GIB:,.0f} GiB")


def _times(plan: Plan) -> str:
    total = plan.chosen.cost.time.total
    parts = [(name, spent, colour) for (name, spent), colour in zip(time_rows(plan.chosen), COLOURS, strict=False)]
    return _bar(parts, total, "time by part") + _key(parts, lambda spent: f"{spent * 1e3:,.2f} ms", f"{total * 1e3:,.2f} ms")


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in headers)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"
