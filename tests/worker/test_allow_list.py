"""The allow-list holds what the worker will run, and nothing that it bans."""

from __future__ import annotations

from pathlib import Path

import forebay_wire
from forebay_worker import _executor


def listed() -> list[str]:
    lines = (Path(forebay_wire.include_dir()) / "forebay" / "operators.inc").read_text().splitlines()
    return [line.strip('",') for line in lines if line.startswith('"')]


def test_the_list_is_sorted_and_names_each_operator_once() -> None:
    assert listed() == sorted(set(listed())), "it is searched by halving"


def test_what_is_listed_is_allowed_and_nothing_else() -> None:
    allowed = {name.removeprefix("aten::") for name, _ in _executor.allowed_operators()}
    assert allowed == set(listed())


def test_every_operator_off_the_list_is_denied_with_a_reason() -> None:
    reasons = dict(_executor.denied_operators())
    assert "files" in reasons["aten::from_file"]
    assert "allow-list" in reasons["aten::_fused_sdp_choice"]
    assert all(reasons.values())
