"""No call is divided by a rule that its values could break: degenerate and ordinary values, on several devices against the CPU."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fork_server
import pytest
import torch
from standalone import standalone_worker
from torch.nn import functional
from value_sequences import alike, filled

SEARCH = Path(__file__).resolve().parent / "division_search.py"
ROWS, COLUMNS = 12, 6
FOUND_WITHIN = 200
"""Sequences in which a wrong rule must show."""
Parts = list[torch.Tensor]


def searched(folder: Path, devices: int, count: int, seed: int) -> Any:
    several = [option for _ in range(devices) for option in ("--device", "cpu:0")]
    environment = {name: value for name, value in os.environ.items() if name != "FOREBAY_URL"}
    with standalone_worker(folder, "--threads", "1", *several, memory_bytes=1 << 30) as reached:
        command = [fork_server.databases(), str(SEARCH), *reached, str(count), str(seed)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=7200, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])  # libraries of linear algebra print, too


@pytest.mark.parametrize("devices", [pytest.param(2, marks=pytest.mark.full_sweep), 3])
def test_no_rule_by_which_calls_are_divided_depends_on_values(tmp_path: Path, devices: int, full_sweep: bool) -> None:
    count = 50_000 if full_sweep else 400
    found = searched(tmp_path, devices, count, seed=random.randrange(1 << 30) if full_sweep else devices)
    assert found["differences"] == []
    assert found["sequences"] > 0.9 * count
    assert len(found["divided"]) > (200 if full_sweep else 100), "operators whose calls were divided"


def rows_of(x: torch.Tensor, parts: int) -> Parts:
    return list(x.chunk(parts))


WRONG: dict[str, tuple[Callable[..., torch.Tensor], Callable[[list[Parts]], torch.Tensor]]] = {
    "a maximum by columns as a mean of the parts'": (lambda x: x.amax(0), lambda parts: torch.stack([x.amax(0) for (x,) in parts]).mean(0)),
    "a minimum as a sum of the parts'": (lambda x: x.min(), lambda parts: torch.stack([x.min() for (x,) in parts]).sum()),
    "a scaling by the part's own maximum": (lambda x: x / x.abs().max(), lambda parts: torch.cat([x / x.abs().max() for (x,) in parts])),
    "a roll of each part": (lambda x: x.roll(1, 0), lambda parts: torch.cat([x.roll(1, 0) for (x,) in parts])),
    "a flip of each part": (lambda x: x.flip(0), lambda parts: torch.cat([x.flip(0) for (x,) in parts])),
    "the place of a maximum in the first part": (lambda x: x.argmax(0), lambda parts: parts[0][0].argmax(0)),
    "a norm as a sum of the parts'": (lambda x: x.norm(2), lambda parts: torch.stack([x.norm(2) for (x,) in parts]).sum()),
    "a deviation as a mean of the parts'": (lambda x: x.std(0), lambda parts: torch.stack([x.std(0) for (x,) in parts]).mean(0)),
    "a softmax over each part's rows": (lambda x: x.softmax(0), lambda parts: torch.cat([x.softmax(0) for (x,) in parts])),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("parts", [2, 3])
def test_a_wrong_rule_is_found(name: str, parts: int) -> None:
    whole, divided = WRONG[name]
    like = torch.randn(ROWS, COLUMNS, dtype=torch.float64)
    assert any(differs(like, whole, divided, parts, random.Random(seed)) for seed in range(FOUND_WITHIN))


def differs(like: torch.Tensor, whole: Any, divided: Any, parts: int, chance: random.Random) -> bool:
    x = filled(like, chance, ordinary=chance.random() < 0.4)
    return not alike(divided([[part] for part in rows_of(x, parts)]), whole(x))


def test_a_mean_of_means_of_unequally_many_labels_is_found() -> None:
    scores, labels = torch.randn(ROWS, COLUMNS, dtype=torch.float64), torch.arange(ROWS) % COLUMNS

    def found(chance: random.Random) -> bool:
        x, y = filled(scores, chance, ordinary=True), filled(labels, chance, ordinary=True, classes=True)
        halves = [functional.cross_entropy(one, other) for one, other in zip(rows_of(x, 2), rows_of(y, 2), strict=True)]
        return not alike(torch.stack(halves).mean(), functional.cross_entropy(x, y))

    assert any(found(random.Random(seed)) for seed in range(FOUND_WITHIN))
