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


def test_a_slice_of_a_storage_is_refused_by_name_and_its_bytes_can_be_swapped() -> None:
    """Both took a worker's memory for this process's; the second one ended it."""
    x = torch.arange(3, dtype=torch.int32, device="cuda")
    storage: Any = x.untyped_storage()
    with pytest.raises(RuntimeError, match=r"slice of a storage is not available .* storage\.cpu\(\)"):
        storage[4:8]
    assert storage[4] == 1 and list(storage.cpu()[4:8]) == [1, 0, 0, 0]
    storage.byteswap(torch.int32)
    assert x.tolist() == [0, 1 << 24, 2 << 24]


@pytest.mark.parametrize("sizes", [(3, 4, 4, 4), (3, 4, 2, 6), (1, 4, 4, 4), (3, 2, 2, 2)])
def test_a_pool_of_a_volume_without_a_batch_lies_as_the_volume(sizes: tuple[int, ...]) -> None:
    volume = torch.randn(1, *sizes).to(memory_format=torch.channels_last_3d)[0]
    for given in (volume, volume.contiguous()):
        expected = nn.functional.max_pool3d(given, 2, return_indices=True)
        actual = nn.functional.max_pool3d(given.cuda(), 2, return_indices=True)
        for here, there in zip(expected, actual, strict=True):
            assert there.stride() == here.stride() and torch.equal(there.cpu(), here)
