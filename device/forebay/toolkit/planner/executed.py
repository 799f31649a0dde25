"""How the devices of a session divide a program's step, as text for people: what was chosen, and what it took."""

from __future__ import annotations

from forebay_wire.gang_work import Considered, GangPlan, Layout, Pipeline, Weights

from forebay.gang_work import GangWork
from forebay.toolkit import table

WEIGHTS_SHOWN = 12
LAYOUTS = {
    Layout.WHOLE: "each device computes all",
    Layout.DATA: "batches in rows, copies of weights (data parallelism)",
    Layout.TENSOR: "batches whole, weights in rows (tensor parallelism)",
    Layout.ROWS: "batches and weights in rows",
}
NO_PLAN = "There is no plan: it is made where a batch of one size comes for the third time, and a weight of 64 KiB or more is used."


def text(gang: GangWork) -> str:
    """One screen."""
    if gang.plan is None:
        return f"{NO_PLAN}\n"
    plan = gang.plan
    in_stages = plan.pipeline is not None and plan.pipeline.serves
    rows = [] if in_stages else [_weights(one) for one in plan.weights[:WEIGHTS_SHOWN]]
    chosen = _staged(plan.pipeline) if plan.pipeline is not None and in_stages else LAYOUTS[plan.layout]
    parts = [f"The plan of the {gang.devices} devices of cuda:{gang.device}: {chosen}"]
    if rows:
        parts.append(table.render(["Weights of", "Sizes", "Count", "All together", "On each device"], rows))
    if len(plan.weights) > WEIGHTS_SHOWN and not in_stages:
        left = plan.weights[WEIGHTS_SHOWN:]
        parts.append(f"{len(left):,} more kinds of weights, {_mebibytes(sum(one.bytes for one in left))}")
    considered = [[LAYOUTS[one.layout], _milliseconds(one.step_ns), _mebibytes(one.bytes), verdict(one, plan)] for one in plan.considered]
    if plan.pipeline is not None:
        staged = plan.pipeline
        standing = "chosen" if staged.serves else "gains too little, or is not proved yet"
        considered.append([_staged(staged), _milliseconds(staged.step_ns), _mebibytes(staged.bytes), standing])
    parts.append(table.render(["Layout", "Step, predicted", "Memory of a device", ""], considered))
    parts.append(_measured(plan))
    return "\n".join(parts) + "\n"


def verdict(one: Considered, plan: GangPlan) -> str:
    """Why a layout was chosen, or was not."""
    in_stages = plan.pipeline is not None and plan.pipeline.serves
    if one.layout == plan.layout and not in_stages:
        return "chosen"
    if one.bytes > plan.room_bytes:
        return f"a device has room for {_mebibytes(plan.room_bytes)}"
    if in_stages:
        return "takes longer"
    chosen = next((other for other in plan.considered if other.layout == plan.layout), None)
    if chosen is not None and one.step_ns < chosen.step_ns:
        return "saves less than a tenth of the time"
    return "takes longer"


def _staged(one: Pipeline) -> str:
    held = ", ".join(_mebibytes(count) for count in one.stages)
    each = f" of {one.rows} devices each (data and pipeline parallelism)" if one.rows > 1 else " (pipeline parallelism)"
    return f"layers in {len(one.stages)} stages{each}, batches in {one.parts} parts, weights of {held}"


def _weights(one: Weights) -> list[str]:
    sizes = " x ".join(f"{size:,}" for size in one.sizes)
    kept = f"rows of dimension {one.rows_of - 1}" if one.rows_of else "a copy"
    return [one.operator, sizes, f"{one.count:,}", _mebibytes(one.bytes), kept]


def _measured(plan: GangPlan) -> str:
    if not plan.steps:
        return "No step by this plan was measured yet."
    held = ", ".join(_mebibytes(count) for count in plan.bytes)
    return f"Measured in {table.counted(plan.steps, 'step')}: {_milliseconds(plan.step_ns)} a step; at most {held} on the devices."


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"


def _milliseconds(ns: int) -> str:
    return f"{ns / 1e6:,.2f} ms"
