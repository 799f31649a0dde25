"""``torch.cuda.set_per_process_memory_fraction`` bounds what the program lets itself have of its device's memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

FRACTION = 0.01


@pytest.fixture(autouse=True)
def the_whole_device_again() -> Iterator[None]:
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


def room() -> int:
    """Bytes that the fraction leaves."""
    return int(FRACTION * torch.cuda.get_device_properties(0).total_memory) - torch.cuda.memory_allocated()


def test_the_last_byte_within_the_fraction_is_given_and_the_next_one_is_not() -> None:
    torch.cuda.set_per_process_memory_fraction(FRACTION)
    assert torch.cuda.get_per_process_memory_fraction() == FRACTION
    with pytest.raises(torch.OutOfMemoryError, match=r"CUDA out of memory.* fraction 0\.01 of .*set_per_process_memory_fraction\(\)"):
        torch.empty(room() + 1, dtype=torch.uint8, device="cuda")
    whole = torch.empty(room(), dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError, match=r"0 bytes available"):
        torch.empty(1, dtype=torch.uint8, device="cuda")
    torch.empty(0, device="cuda")
    del whole
    assert torch.empty(room(), dtype=torch.uint8, device="cuda").numel() > 0


def test_results_of_operators_are_bound_also_once_their_calls_are_known() -> None:
    x = torch.ones(room() // 2 - 4096, dtype=torch.uint8, device="cuda")
    for _ in range(3):  # from the second one on the call comes from the cache
        assert (x + x).numel() == x.numel()
    torch.cuda.set_per_process_memory_fraction(FRACTION)
    y = x + x
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError, match="fraction"):
            x + x
    assert y[-1].item() == 2, "what was there stays right"
    del y
    assert (x + x)[0].item() == 2
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert [(x + x)[0].item() for _ in range(3)] == [2, 2, 2]


def test_a_tensor_that_grows_is_bound_and_keeps_its_content() -> None:
    torch.cuda.set_per_process_memory_fraction(FRACTION)
    x = torch.full((16,), 7, dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError, match="fraction"):
        x.untyped_storage().resize_(room() + 17)
    assert x.tolist() == [7] * 16


def test_a_smaller_fraction_than_what_is_held_takes_nothing_away() -> None:
    x = torch.ones(1 << 20, device="cuda")
    torch.cuda.set_per_process_memory_fraction(0.0)
    with pytest.raises(torch.OutOfMemoryError, match=r"the fraction 0 of"):
        torch.ones(1, device="cuda")
    x.mul_(3)
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert x.sum().item() == 3 * (1 << 20)


@pytest.mark.parametrize(("wrong", "error"), [(1, TypeError), (-0.1, ValueError), (1.1, ValueError)])
def test_what_is_no_fraction_is_refused_as_by_pytorch(wrong: float, error: type[Exception]) -> None:
    with pytest.raises(error):
        torch.cuda.set_per_process_memory_fraction(wrong)
    assert torch.cuda.get_per_process_memory_fraction() == 1.0


def test_no_number_is_no_fraction() -> None:
    """PyTorch's own check lets it pass."""
    with pytest.raises(RuntimeError, match="from 0 to 1, not nan"):
        torch.cuda.set_per_process_memory_fraction(float("nan"))
    assert torch.ones(2, device="cuda").sum().item() == 2
