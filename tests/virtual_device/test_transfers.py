"""Uploads and downloads: every size and path, what need not wait, and what need not be sent again."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import pytest
import torch
from forebay import _C

MIB = 1 << 20
KNOWN_BYTES = 512 << 10
"""Of an upload that is worth remembering."""


def numbers(count: int) -> torch.Tensor:
    return torch.randint(0, 256, (count,), dtype=torch.uint8)


def known_bytes(step: Callable[[], object]) -> int:
    """How many bytes a step did not send, because the worker held them."""
    before = _C.statistics()["bytes_known"]
    step()
    return _C.statistics()["bytes_known"] - before


def keep_the_worker_busy() -> None:
    """Records work of a few tenths of a second."""
    matrix = torch.rand(700, 700, device="cuda")
    for _ in range(60):
        matrix = (matrix @ matrix).clamp(0, 1)


@pytest.mark.parametrize("count", [1, 65_535, 65_536, 262_143, 262_145, 1_048_576, 5 * MIB + 3, 40 * MIB + 1])
@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("non_blocking", [False, True])
def test_bytes_come_back_as_they_went(count: int, pinned: bool, non_blocking: bool) -> None:
    data = numbers(count)
    source = data.pin_memory() if pinned else data
    there = source.to("cuda", non_blocking=non_blocking)
    back = torch.zeros_like(data)
    back = back.pin_memory() if pinned else back
    back.copy_(there, non_blocking=non_blocking)
    torch.cuda.synchronize()
    assert torch.equal(back, data)


def test_a_part_of_a_tensor_is_written_and_read_without_the_rest() -> None:
    data = numbers(3 * MIB)
    there = torch.zeros(4 * MIB, dtype=torch.uint8, device="cuda")
    there[MIB // 2 : MIB // 2 + data.numel()] = data
    back = there.cpu()
    assert torch.equal(back[MIB // 2 : MIB // 2 + data.numel()], data)
    assert not back[: MIB // 2].any() and not back[MIB // 2 + data.numel() :].any()
    assert torch.equal(there[MIB : 2 * MIB].cpu(), data[MIB // 2 : 3 * MIB // 2])


@pytest.mark.parametrize("count", [70_001, 5 * MIB + 3, 40 * MIB + 1])
def test_bytes_at_odd_places_come_back_as_they_went(count: int) -> None:
    data = numbers(count)
    there = torch.zeros(count + 8, dtype=torch.uint8, device="cuda")
    there[3 : 3 + count] = data
    back = torch.zeros(count + 8, dtype=torch.uint8)
    back[5 : 5 + count].copy_(there[3 : 3 + count])
    assert torch.equal(back[5 : 5 + count], data)
    assert not back[:5].any() and not back[5 + count :].any()
    assert not there[:3].any() and not there[3 + count :].any()


def test_an_upload_from_pinned_memory_does_not_wait_for_the_worker() -> None:
    data = numbers(64 * MIB).pin_memory()
    torch.empty(64 * MIB, dtype=torch.uint8, device="cuda").copy_(data)
    data.add_(1)
    data.to("cuda").sum(dtype=torch.int64)  # the first call of a kind waits
    data.add_(1)
    keep_the_worker_busy()
    torch.cuda.synchronize()
    keep_the_worker_busy()
    start = perf_counter()
    there = data.to("cuda", non_blocking=True)
    total = there.sum(dtype=torch.int64)
    recorded = perf_counter() - start
    torch.cuda.synchronize()
    waited = perf_counter() - start
    assert recorded < waited / 2, f"recording took {recorded:.3f} s of {waited:.3f} s"
    assert total.item() == data.sum(dtype=torch.int64).item()


def test_uploads_that_nobody_waits_for_keep_their_place_among_the_commands() -> None:
    target = torch.zeros(8 * MIB, dtype=torch.uint8, device="cuda")
    sums, wanted = [], []
    for value in range(1, 9):
        data = torch.full((8 * MIB,), value, dtype=torch.uint8).pin_memory()
        target.copy_(data, non_blocking=True)
        del data
        sums.append(target.sum(dtype=torch.int64))
        target.add_(1)
        wanted.append(value * 8 * MIB)
    assert [total.item() for total in sums] == wanted


def test_the_source_of_a_plain_upload_may_change_at_once() -> None:
    data = numbers(48 * MIB)
    wanted = data.clone()
    keep_the_worker_busy()
    there = data.to("cuda", non_blocking=True)
    data.zero_()
    assert torch.equal(there.cpu(), wanted)


def test_a_download_to_pinned_memory_is_there_after_a_synchronisation() -> None:
    data = numbers(8 * MIB)
    there = data.to("cuda")
    back = torch.zeros_like(data).pin_memory()
    back.copy_(there, non_blocking=True)
    assert not back.any(), "the bytes came without a synchronisation"
    there.zero_()
    event = torch.cuda.Event()
    event.record()
    event.synchronize()
    assert torch.equal(back, data)


def test_what_comes_down_and_goes_up_again_needs_no_synchronisation_between() -> None:
    data = numbers(2 * MIB)
    back = torch.zeros_like(data).pin_memory()
    back.copy_(data.to("cuda"), non_blocking=True)
    assert torch.equal(back.to("cuda", non_blocking=True).cpu(), data)


def test_downloads_beyond_the_shared_memory_come_all_the_same() -> None:
    data = numbers(24 * MIB)
    there = data.to("cuda")
    backs = [torch.zeros_like(data).pin_memory() for _ in range(5)]
    for back in backs:
        back.copy_(there, non_blocking=True)
        there.add_(1)
    torch.cuda.synchronize()
    for step, back in enumerate(backs):
        assert torch.equal(back, data + step)


def test_a_download_to_plain_memory_is_there_at_once() -> None:
    data = numbers(8 * MIB)
    back = torch.zeros_like(data)
    back.copy_(data.to("cuda"), non_blocking=True)
    assert torch.equal(back, data)


def test_a_failed_download_that_nobody_waits_for_is_told_by_the_next_synchronisation() -> None:
    table = torch.zeros(4, MIB, device="cuda")
    rows = torch.index_select(table, 0, torch.tensor([9], device="cuda"))
    back = torch.zeros(1, MIB).pin_memory()
    back.copy_(rows, non_blocking=True)
    with pytest.raises(RuntimeError, match="index"):
        torch.cuda.synchronize()
    torch.cuda.synchronize()


def test_the_same_bytes_are_not_sent_again() -> None:
    data = numbers(KNOWN_BYTES)
    first = data.to("cuda")
    again: list[torch.Tensor] = []
    assert known_bytes(lambda: again.append(data.clone().to("cuda"))) == KNOWN_BYTES
    first.zero_()
    assert torch.equal(again[0].cpu(), data)
    assert known_bytes(lambda: again.append(data.to("cuda"))) == KNOWN_BYTES, "the copy holds them as well"
    assert torch.equal(again[1].cpu(), data)


def test_bytes_that_lie_where_they_are_written_are_not_even_copied() -> None:
    data = numbers(KNOWN_BYTES)
    there = data.to("cuda")
    assert known_bytes(lambda: there.copy_(data)) == KNOWN_BYTES
    assert torch.equal(there.cpu(), data)


def test_a_model_that_is_moved_again_is_not_sent_again() -> None:
    model = torch.nn.Linear(1024, 1024, bias=False)
    weight = model.weight.detach().clone()
    moved = torch.nn.Linear(1024, 1024, bias=False)
    moved.load_state_dict(model.state_dict())
    model.to("cuda")
    assert known_bytes(lambda: moved.to("cuda")) == weight.nbytes
    assert torch.equal(moved.weight.detach().cpu(), weight)


def _add(there: torch.Tensor) -> None:
    there.add_(1)


def _write_a_slice(there: torch.Tensor) -> None:
    there[3] = 7


def _write_as_out(there: torch.Tensor) -> None:
    torch.add(there, 1, out=there)


def _write_in_a_list(there: torch.Tensor) -> None:
    torch._foreach_add_([there], 1)


def _write_through_another_view(there: torch.Tensor) -> None:
    there.view(2, -1)[1].fill_(5)


def _upload_elsewhere(there: torch.Tensor) -> None:
    there[:16] = torch.arange(16, dtype=torch.uint8)


def _resize(there: torch.Tensor) -> None:
    there.untyped_storage().resize_(16)
    there.untyped_storage().resize_(KNOWN_BYTES)


CHANGES = [_add, _write_a_slice, _write_as_out, _write_in_a_list, _write_through_another_view, _upload_elsewhere, _resize]


@pytest.mark.parametrize("change", CHANGES, ids=[change.__name__.strip("_") for change in CHANGES])
def test_what_was_changed_on_the_device_is_sent_again(change: Callable[[torch.Tensor], None]) -> None:
    data = numbers(KNOWN_BYTES)
    there = data.to("cuda")
    change(there)
    again: list[torch.Tensor] = []
    assert known_bytes(lambda: again.append(data.to("cuda"))) == 0
    assert torch.equal(again[0].cpu(), data)


def test_running_statistics_count_as_changed() -> None:
    mean, variance = torch.zeros(1 << 18), torch.ones(1 << 18)
    there = [mean.to("cuda"), variance.to("cuda")]
    torch.nn.functional.batch_norm(torch.rand(2, 1 << 18, device="cuda"), *there, training=True)
    again: list[torch.Tensor] = []
    assert known_bytes(lambda: again.extend([mean.to("cuda"), variance.to("cuda")])) == 0
    assert torch.equal(again[0].cpu(), mean) and torch.equal(again[1].cpu(), variance)


def test_what_was_freed_is_sent_again() -> None:
    data = numbers(KNOWN_BYTES)
    there = data.to("cuda")
    del there
    again: list[torch.Tensor] = []
    assert known_bytes(lambda: again.append(data.to("cuda"))) == 0
    assert torch.equal(again[0].cpu(), data)


@pytest.mark.parametrize("place", [0, 1, KNOWN_BYTES // 3, KNOWN_BYTES - 1])
def test_one_different_byte_makes_other_contents(place: int) -> None:
    data = numbers(KNOWN_BYTES)
    other = data.clone()
    other[place] ^= 1
    first = data.to("cuda")
    again: list[torch.Tensor] = []
    assert known_bytes(lambda: again.append(other.to("cuda"))) == 0
    assert torch.equal(again[0].cpu(), other) and torch.equal(first.cpu(), data)
