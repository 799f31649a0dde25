"""How the devices of a session divide a step, as text: what was chosen, why nothing else was, what was measured."""

from __future__ import annotations

from dataclasses import replace

from forebay.gang_work import GangWork, Work
from forebay.toolkit.planner import executed
from forebay_wire.gang_work import Considered, GangPlan, Layout, Pipeline, Weights

MIB = 1 << 20
WHOLE, DATA = Considered(Layout.WHOLE, 30_000_000, 90 * MIB), Considered(Layout.DATA, 20_000_000, 80 * MIB)
TENSOR, ROWS = Considered(Layout.TENSOR, 16_000_000, 40 * MIB), Considered(Layout.ROWS, 15_000_000, 120 * MIB)
WEIGHTS = (Weights("aten::addmm", (256, 1024), 4, 4 * MIB, 2), Weights("aten::embedding", (64, 256), 1, MIB // 8, 0))
PLAN = GangPlan(Layout.TENSOR, 100 * MIB, WEIGHTS, (WHOLE, DATA, TENSOR, ROWS), 3, 17_000_000, (39 * MIB, 38 * MIB))


def text(plan: GangPlan | None) -> str:
    return executed.text(GangWork(0, 2, Work(1, 1), Work(0, 0), (), plan))


def test_a_plan_is_told_with_what_was_chosen_and_measured() -> None:
    told = text(PLAN)
    assert told.startswith("The plan of the 2 devices of cuda:0: batches whole, weights in rows (tensor parallelism)\n")
    assert "| aten::addmm     | 256 x 1,024 | 4     | 4.0 MiB      | rows of dimension 1 |" in told
    assert "| aten::embedding | 64 x 256    | 1     | 0.1 MiB      | a copy              |" in told
    assert told.endswith("Measured in 3 steps: 17.00 ms a step; at most 39.0 MiB, 38.0 MiB on the devices.\n")
    assert max(map(len, told.splitlines())) < 140


def test_each_layout_that_was_not_chosen_has_its_reason() -> None:
    quicker = Considered(Layout.DATA, 15_900_000, MIB)
    assert executed.verdict(WHOLE, PLAN) == "takes longer"
    assert executed.verdict(TENSOR, PLAN) == "chosen"
    assert executed.verdict(ROWS, PLAN) == "a device has room for 100.0 MiB"
    assert executed.verdict(quicker, PLAN) == "saves less than a tenth of the time"


def test_a_program_without_a_plan_is_told_when_there_is_one() -> None:
    assert text(None) == f"{executed.NO_PLAN}\n"


def test_stages_are_told_with_what_was_predicted() -> None:
    staged = Pipeline(True, 8, 9_000_000, 45 * MIB, (20 * MIB, 24 * MIB))
    told = text(replace(PLAN, pipeline=staged))
    first, *rest = told.splitlines()
    assert first.endswith("layers in 2 stages (pipeline parallelism), batches in 8 parts, weights of 20.0 MiB, 24.0 MiB")
    assert [line for line in rest if "8 parts" in line and "9.00 ms" in line and "chosen" in line]
    assert executed.verdict(TENSOR, replace(PLAN, pipeline=staged)) == "takes longer"
    assert executed.verdict(ROWS, replace(PLAN, pipeline=staged)) == "a device has room for 100.0 MiB"
    several = text(replace(PLAN, pipeline=replace(staged, rows=2))).splitlines()[0]
    assert "layers in 2 stages of 2 devices each (data and pipeline parallelism), batches in 8 parts" in several
    other = text(replace(PLAN, pipeline=replace(staged, serves=False)))
    assert "tensor parallelism" in other.splitlines()[0] and "gains too little, or is not proved yet" in other
