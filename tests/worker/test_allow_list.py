"""The allow-list holds what the worker will run, and nothing that it bans."""

from __future__ import annotations

from pathlib import Path

import forebay_wire
import pytest
from forebay_worker import _executor

LISTS = ("operators.inc", "sparse_operators.inc")


def listed(name: str) -> list[str]:
    lines = (Path(forebay_wire.include_dir()) / "forebay" / name).read_text().splitlines()
    return [line.strip('",') for line in lines if line.startswith('"')]


@pytest.mark.parametrize("name", LISTS)
def test_a_list_is_sorted_and_names_each_operator_once(name: str) -> None:
    assert listed(name) == sorted(set(listed(name))), "it is searched by halving"


def test_what_is_listed_is_allowed_and_nothing_else() -> None:
    allowed = {name.removeprefix("aten::") for name, _ in _executor.allowed_operators()}
    own = {f"forebay::{name}" for name in ("recurrent_layer", "recurrent_layer_backward")}
    assert allowed == own | {one for name in LISTS for one in listed(name)}


def test_every_operator_off_the_list_is_denied_with_a_reason() -> None:
    reasons = dict(_executor.denied_operators())
    assert "files" in reasons["aten::from_file"]
    assert "allow-list" in reasons["aten::_scaled_dot_product_cudnn_attention"]
    assert reasons["aten::_stack"] and reasons["aten::_stack.out"]
    assert all(reasons.values())
