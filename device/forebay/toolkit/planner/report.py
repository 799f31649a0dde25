"""A plan as text for people, and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from forebay.toolkit import table
from forebay.toolkit.planner.choice import Candidate, Plan
from forebay.toolkit.planner.cost import WORKSPACE_BYTES, Cost
from forebay.toolkit.planner.layout import MIB, NAMES, Layout, Sharding
from forebay.toolkit.planner.machine import BANDWIDTH_SHARE, CALL_SECONDS, GIB, MEMORY_SHARE, Machine
from forebay.toolkit.planner.profile import StepProfile
from forebay.toolkit.planner.step import Domain, Part

BAR_CHARACTERS = 40
REJECTED_SHOWN = 12
TODAY = """\
What the product does of it today: it divides the rows, sums gradients where they are used, has each optimizer state kept and each
weight updated by one device (as ZeRO-1 does), and where memory is short leaves weights to one device each and copies them when a
layer needs them (as ZeRO-3 does). It also divides weights by rows among all devices (tensor parallelism). It decides so by itself, and
reads no plan. On paper alone, since no session does that: stages of layers, tensor groups beside other parts of the batch, positions in
parts between products, parts among some devices alone with copies among others, collectives beside computing, micro-batches, and what is
computed again. `forebay profile` tells what it did."""
PREDICTED = "Everything here is predicted from the recorded calls; nothing was computed, and nothing measured."


def text(profile: StepProfile, plan: Plan) -> str:
    """The whole plan."""
    chosen = plan.chosen
    parts = [
        f"Plan for {devices_of(plan.machine)}: {chosen.layout.name}",
        f"  why: {plan.why}",
        f"  mesh: {' x '.join(f'{name} {size}' for name, size in chosen.layout.axes)}; {_collectives(chosen)}",
        "",
        *(f"  {line}" for line in step_lines(profile)),
        "",
        *_memory(plan),
        "",
        *_time(plan),
        "",
        "Rejected",
        *(f"  {one.layout.name}: {one.why}" for one in plan.rejected[:REJECTED_SHOWN]),
        *_more(len(plan.rejected) - REJECTED_SHOWN),
        "",
        *(f"  {line}" for line in assumptions(plan.machine)),
        "",
        PREDICTED,
        TODAY,
    ]
    return "\n".join(parts) + "\n"


def devices_of(machine: Machine) -> str:
    hosts = -(-machine.devices // machine.per_host)
    several = f"{machine.devices} x {machine.model.name}" if machine.devices > 1 else f"one {machine.model.name}"
    return f"{several} of {machine.memory_bytes / GIB:.0f} GiB on {hosts} host{'s' if hosts > 1 else ''}"


def _collectives(one: Candidate) -> str:
    if one.layout.devices == 1:
        return "no collectives"
    if one.layout.data == 1:
        return "the devices gather inputs of layers and sum their results"
    bucket = f"in buckets of {one.layout.bucket_bytes // MIB} MiB" if one.layout.bucket_bytes else "each by itself"
    if one.layout.sharding < Sharding.WEIGHTS:
        return f"gradients are summed {bucket}"
    kept = one.layout.kept_tenths
    again = (
        "kept gathered for it"
        if kept == 10
        else f"gathered again, but for the last {kept * 10} % of the layers"
        if kept
        else "gathered again"
    )
    return f"gradients are summed {bucket}; for the backward pass weights are {again}"


def step_lines(profile: StepProfile) -> list[str]:
    """What was found in the recording."""
    step = profile.step
    weights = sum(step.blocks[number].bytes for number in step.trained)
    rows = sum(call.domain is Domain.ROWS for call in step.calls)
    stacks = [stack for stack in profile.stacks if stack.layers > 1] if profile.accumulated == 1 else []
    layers = ", ".join(f"{stack.layers} x {table.counted(stack.calls, 'call')}" for stack in stacks) or "none found"
    calls, batch = table.counted(len(step.calls), "call"), table.counted(step.rows, "row")
    own = f"the program divides its batch into {profile.accumulated} micro-batches itself; " if profile.accumulated > 1 else ""
    return [
        f"step: {calls}, {rows:,} of them on the {batch} of the batch; {_teraflop(step.flops)}",
        f"weights: {_size(step.total(Part.WEIGHT))}, {_size(weights)} of them trained; optimizer states: {_size(step.total(Part.STATE))}; "
        f"gradients: {_size(step.gradient_bytes)}",
        f"{own}repeated layers: {layers}; uploads: {', '.join(_size(size) for size in step.uploads)}",
    ]


def _teraflop(flops: float) -> str:
    """To three digits, and never in powers of ten."""
    count = flops / 1e12
    return f"{count:,.0f} TFLOP" if count >= 100 else f"{count:.3g} TFLOP"


def _size(size: float) -> str:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (1024, "KiB")):
        if size >= unit:
            return f"{size / unit:,.1f} {name}"
    return f"{size:.0f} B"


def _memory(plan: Plan) -> list[str]:
    memory, limit = plan.chosen.cost.memory, plan.machine.memory_bytes
    rows = [
        [name, _size(size), "#" * round(BAR_CHARACTERS * size / limit)]
        for name, size in sorted(memory.__dict__.items(), key=lambda item: -item[1])
        if size
    ]
    rows.append(["in all", _size(memory.total), f"{memory.total / limit:.0%} of {_size(limit)}; at most {MEMORY_SHARE:.0%}"])
    whose = "Memory of each device" if plan.chosen.layout.stages == 1 else "Memory of the largest stage"
    return [table.render([whose, "At its peak", ""], rows)]


def time_rows(one: Candidate) -> list[tuple[str, float]]:
    time = one.cost.time
    parts = [("forward and backward", time.compute), ("what layers wait for", time.exchanged)]
    parts += [("stages without work", time.idle), ("update", time.update), ("waiting for other collectives", time.exposed)]
    return [(name, seconds) for name, seconds in parts if seconds]


def _time(plan: Plan) -> list[str]:
    time, traffic = plan.chosen.cost.time, plan.chosen.cost.traffic
    rows = [[name, _seconds(spent), "#" * round(BAR_CHARACTERS * spent / time.total)] for name, spent in time_rows(plan.chosen)]
    rows.append(["in all", _seconds(time.total), f"collectives beside computing: {_seconds(time.hidden)}"])
    sent = ", ".join(f"{_size(size)} {AXES[axis]}" for axis, size in traffic.items() if size) or "nothing"
    return [table.render(["Time of a step", "Predicted", ""], rows), f"Each device sends in a step: {sent}"]


AXES = {"host": "within its host", "switch": "between hosts"}


def _seconds(seconds: float) -> str:
    return f"{seconds:,.3f} s" if seconds >= 1 else f"{seconds * 1e3:,.3f} ms"


def _more(count: int) -> list[str]:
    return [f"  and {count} more; --json has them all"] if count > 0 else []


def assumptions(machine: Machine) -> list[str]:
    """What the figures rest on."""
    model = machine.model
    return [
        f"{model.name}: {model.half_flops / 1e12:g} TFLOP/s in bfloat16, {model.single_flops / 1e12:g} in float32, "
        f"{model.bytes_per_second / 1e12:g} TB/s ({model.source}); {model.flops_share:.0%} and {BANDWIDTH_SHARE:.0%} of that are assumed, "
        f"and {CALL_SECONDS * 1e6:g} µs a call",
        f"network: {machine.network.source}; {machine.per_host} devices a host; workspace: up to {_size(WORKSPACE_BYTES)}, assumed",
        f"a plan may take {MEMORY_SHARE:.0%} of a device's memory",
    ]


def as_json(profile: StepProfile, plan: Plan) -> dict[str, Any]:
    """All of it; bytes, seconds and bytes a second."""
    step = profile.step
    return {
        "machine": asdict(plan.machine),
        "step": {
            "rows": step.rows,
            "calls": len(step.calls),
            "flops": step.flops,
            "weight_bytes": step.total(Part.WEIGHT),
            "state_bytes": step.total(Part.STATE),
            "gradient_bytes": step.gradient_bytes,
            "stacks": [asdict(stack) for stack in profile.stacks],
        },
        "chosen": candidate_json(plan.chosen),
        "why": plan.why,
        "rejected": [{**_layout_json(one.layout), **(_cost_json(one.cost) if one.cost else {}), "why": one.why} for one in plan.rejected],
        "assumptions": assumptions(plan.machine),
        "predicted": PREDICTED,
    }


def candidate_json(one: Candidate) -> dict[str, Any]:
    return {**_layout_json(one.layout), **_cost_json(one.cost)}


def _layout_json(layout: Layout) -> dict[str, Any]:
    return {
        "name": layout.name,
        "mesh": layout.mesh,
        "sharding": NAMES[layout.sharding],
        "bucket_bytes": layout.bucket_bytes,
        "kept_gathered": layout.kept_tenths / 10,
        "micro_batches": layout.micro_batches,
        "chunks": layout.chunks,
        "computed_again": layout.recomputation.name.lower(),
    }


def _cost_json(cost: Cost) -> dict[str, Any]:
    return {
        "memory_bytes": {**asdict(cost.memory), "total": cost.memory.total},
        "seconds": {**asdict(cost.time), "total": cost.time.total},
        "traffic_bytes": cost.traffic,
    }
