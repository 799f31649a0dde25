"""What reaches below a tensor, to its storage: pickles, saved files, resizing."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import nn


def pickled(value: Any) -> Any:
    """The value after a way through pickle."""
    return pickle.loads(pickle.dumps(value))  # noqa: S301 our own bytes


def test_a_pickled_tensor_comes_back_on_the_device() -> None:
    there = torch.randn(3, 4, device="cuda")
    back = pickled(there.t())
    assert back.is_cuda and back.stride() == (1, 4)
    assert torch.equal(back.cpu(), there.t().cpu())


def test_a_module_is_pickled_copied_and_loaded_by_weights() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to("cuda")
    for other in (pickled(model), copy.deepcopy(model)):
        assert other[0].weight.is_cuda and other[0].weight.data_ptr() != model[0].weight.data_ptr()
        assert torch.equal(other[0].weight.cpu(), model[0].weight.cpu())
    file = io.BytesIO()
    torch.save(model.state_dict(), file, _use_new_zipfile_serialization=False)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=True)["0.weight"].cpu(), model[0].weight.cpu())


def test_a_storage_is_emptied_and_filled_again() -> None:
    x = torch.arange(3.0, device="cuda")
    storage, before = x.untyped_storage(), torch.cuda.memory_allocated()
    storage.resize_(0)
    assert storage.nbytes() == 0 and torch.cuda.memory_allocated() == before - 12
    storage.resize_(12)
    x.copy_(torch.ones(3))
    assert x.tolist() == [1.0, 1.0, 1.0]


def test_channels_last_stays_through_convolutions() -> None:
    layer = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    expected, actual = layer(x), copy.deepcopy(layer).to("cuda")(x.to("cuda"))
    assert actual.stride() == expected.stride()
    torch.testing.assert_close(actual.cpu(), expected)


def test_other_libraries_are_not_given_an_address_that_is_none() -> None:
    x = torch.arange(3.0, device="cuda")
    with pytest.raises(RuntimeError, match=r"tensor\.cpu\(\)"):
        torch.from_dlpack(x)
    assert not hasattr(x, "__cuda_array_interface__")
    assert torch.equal(torch.from_dlpack(x.cpu()), torch.arange(3.0))
