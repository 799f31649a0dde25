"""Variables of cells that go to a process beside a device, and come back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from forebay_wire.remote import values

VALUES = {
    "whole": 3,
    "large": 2**70,
    "text": "ä\0",
    "deep": [{"a": [None, True, -0.0]}, []],
    "array": np.arange(6, dtype=np.int16).reshape(2, 3)[:, ::2],
    "scalar": np.float32(0.1),
    "empty": torch.empty(0, 3, dtype=torch.bfloat16),
    "truths": torch.tensor([True, False]),
    "complex": torch.tensor([1 + 2j]).conj(),
    "turned": torch.arange(12.0).reshape(3, 4).T[1:],
}

REFUSED = [(1, 2), {1: 2}, object(), {"a": {1}}, np.array(["text"]), torch.eye(2).to_sparse(), 1j, print]


def test_values_come_back_as_they_went(tmp_path: Path) -> None:
    shared = torch.rand(4)
    values.write(tmp_path / "values", {**VALUES, "one": shared, "other": shared[1:], "trained": torch.nn.Parameter(shared)})
    found = values.read(tmp_path / "values")
    assert found.keys() == {*VALUES, "one", "other", "trained"}
    for name, value in VALUES.items():
        assert type(found[name]) is type(value), name
        if isinstance(value, torch.Tensor):
            assert found[name].dtype == value.dtype and torch.equal(found[name], value), name
        elif isinstance(value, np.ndarray):
            assert found[name].dtype == value.dtype and np.array_equal(found[name], value), name
        else:
            assert found[name] == value, name
    assert torch.equal(found["other"], shared[1:]) and torch.equal(found["trained"], shared)


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: type(value).__name__)
def test_what_would_not_come_back_as_it_is_is_refused_by_name(tmp_path: Path, value: object) -> None:
    with pytest.raises(values.ValueRefused, match=r"^mine is"):
        values.write(tmp_path / "values", {"mine": value})
    assert not (tmp_path / "values").exists()


def test_files_that_are_none_of_ours_are_refused(tmp_path: Path) -> None:
    values.write(tmp_path / "values", {"a": torch.ones(3)})
    (tmp_path / "values" / values.TENSORS).write_bytes(b"\x08\0\0\0\0\0\0\0{}      more")
    with pytest.raises(ValueError, match="cannot be read"):
        values.read(tmp_path / "values")
