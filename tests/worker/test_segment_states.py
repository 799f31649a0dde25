"""The states of a segment: one table, which the worker obeys and the page shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "worker" / "csrc" / "tier2" / "segment_state.h"
PAGE = ROOT / "docs" / "reference" / "compiled.md"
Transition = tuple[str, str, str]


def words(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


def enumerators(name: str) -> list[str]:
    found = re.search(rf"enum class {name} : uint8_t {{(.*?)}};", SOURCE.read_text(), re.DOTALL)
    assert found
    return [words(one) for one in re.findall(r"^\s*k(\w+),", found.group(1), re.MULTILINE)]


@pytest.fixture(scope="module")
def table() -> list[Transition]:
    rows = re.findall(r"SegmentTransition{k(\w+), k(\w+), k(\w+)}", SOURCE.read_text())
    return [(words(one), words(event), words(other)) for one, event, other in rows]


def test_the_page_shows_the_table_that_the_worker_obeys(table: list[Transition]) -> None:
    section = PAGE.read_text().split("## States of a segment")[1].split("\n## ")[0]
    shown = re.findall(r"^\| ([a-z ]+) \| ([a-z ]+) \| ([a-z ]+) \|$", section, re.MULTILINE)
    assert shown[0] == ("state", "event", "next state")
    assert shown[1:] == table


def test_an_event_leads_from_a_state_to_one_other(table: list[Transition]) -> None:
    pairs = [(one, event) for one, event, _ in table]
    assert len(pairs) == len(set(pairs)) > 20
    assert {one for one, _, _ in table} | {other for _, _, other in table} | {"staying"} == set(enumerators("SegmentState"))
    assert {event for _, event, _ in table} | {"given up"} == set(enumerators("SegmentEvent"))


def test_every_state_is_reached_and_only_staying_is_the_last(table: list[Transition]) -> None:
    reached, before = {"describing"}, set[str]()
    while reached != before:
        before = set(reached)
        reached |= {other for one, _, other in table if one in reached}
    assert reached == set(enumerators("SegmentState")) - {"staying"}
    assert {one for one, _, _ in table} == reached, "staying has a way out, or another state has none"


def test_nothing_serves_that_was_not_verified_since_it_was_made(table: list[Transition]) -> None:
    """Without the state of verifying, no way leads to one in which tier 2 carries a segment out."""
    reached, before = {"describing", "awaiting", "arrived"}, set[str]()
    while reached != before:
        before = set(reached)
        reached |= {other for one, _, other in table if one in reached and other != "verifying"}
    assert not reached & {"weighing", "timing", "serving"}


def test_only_verifying_admits_results_of_graphs_and_libraries_alike(table: list[Transition]) -> None:
    into = {other: {one for one, _, to in table if to == other} for other in ("weighing", "timing", "serving")}
    assert into == {"weighing": {"verifying"}, "timing": {"verifying", "weighing"}, "serving": {"verifying", "timing"}}
