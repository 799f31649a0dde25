"""Tensors on the virtual device behave as tensors do."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable

import pytest
import torch
from torch.testing import assert_close

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a transpose": lambda x: x.t(),
    "a slice with a step": lambda x: x[1:, ::2],
    "a row": lambda x: x[2],
    "an expanded row": lambda x: x[1].expand(5, -1),
    "a diagonal": lambda x: x.diagonal(),
    "a permutation of a reshape": lambda x: x.reshape(2, 2, 3, 2).permute(3, 1, 0, 2),
    "windows": lambda x: x.unfold(1, 3, 1),
    "another type's bits": lambda x: x.view(torch.int32),
    "a chunk": lambda x: x.chunk(2, 1)[1],
}


def test_the_device_is_cuda_zero_of_a_stock_build() -> None:
    x = torch.ones(2, device="cuda:0")
    assert x.is_cuda and str(x.device) == "cuda:0" and "device='cuda:0'" in repr(x)
    assert torch.cuda.get_device_name(x.device).endswith("(virtual)")


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_reads_and_writes_the_same_elements_as_on_the_cpu(name: str) -> None:
    host = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    there = host.to("cuda")
    assert_close(VIEWS[name](there).cpu(), VIEWS[name](host), rtol=0, atol=0)
    if name != "an expanded row":
        VIEWS[name](there).add_(1)
        VIEWS[name](host).add_(1)
        assert_close(there.cpu(), host, rtol=0, atol=0)


def test_views_and_metadata_send_nothing() -> None:
    from forebay import _C

    x = torch.ones(4, 6, device="cuda")
    before = _C.statistics()["commands"]
    x.t()[1:, ::2].unsqueeze(0).expand(3, -1, -1).permute(2, 0, 1)
    assert _C.statistics()["commands"] == before


def test_copies_between_host_and_device_keep_every_layout_and_type() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64):
        host = torch.randint(0, 2, (5, 7, 3)).to(dtype)
        for make in (lambda x: x, lambda x: x.permute(2, 0, 1), lambda x: x[::2, 1:], lambda x: x.unsqueeze(1).expand(-1, 2, -1, -1)):
            view = make(host)
            there = view.to("cuda")
            assert there.dtype == dtype and there.shape == view.shape
            assert torch.equal(there.cpu(), view)
            assert torch.equal(make(host.to("cuda")).cpu(), view)


def test_a_copy_into_part_of_a_tensor_touches_that_part_only() -> None:
    there, host = torch.zeros(6, 6, device="cuda"), torch.zeros(6, 6)
    source = torch.randn(3, 2)
    there[1:4, ::3] = source
    host[1:4, ::3] = source
    there[5] = torch.arange(6)
    host[5] = torch.arange(6)
    assert torch.equal(there.cpu(), host)


def test_results_whose_size_depends_on_data_are_right() -> None:
    host = torch.tensor([[1.0, 0.0, 3.0], [0.0, 5.0, 3.0]])
    there = host.to("cuda")
    assert torch.equal(there.nonzero().cpu(), host.nonzero())
    assert torch.equal(there[there > 1].cpu(), host[host > 1])
    assert torch.equal(there.unique().cpu(), host.unique())
    assert torch.equal(torch.repeat_interleave(torch.tensor([2, 3], device="cuda")).cpu(), torch.tensor([0, 0, 1, 1, 1]))


def test_indexing_takes_indices_from_the_host_as_cuda_does() -> None:
    there = torch.arange(10.0, device="cuda")
    assert there[torch.tensor([3, 1])].tolist() == [3.0, 1.0]
    there[torch.tensor([0])] = 7.0
    assert there[0].item() == 7.0


def in_channels_last(function: Callable[[torch.Tensor], torch.Tensor], device: str) -> tuple[int, ...]:
    return function(torch.ones(2, 3, 4, 4, device=device).contiguous(memory_format=torch.channels_last)).stride()


@pytest.mark.parametrize(
    "function",
    [
        torch.abs,
        torch.logical_not,
        lambda x: torch.logical_and(x, x),
        lambda x: torch.add(x, x[:1], out=torch.empty(0, device=x.device)),
        lambda x: torch.eq(x, 1, out=torch.empty(0, device=x.device, dtype=torch.bool)),
    ],
    ids=["abs", "not", "and", "sum", "comparison"],
)
def test_elementwise_results_lie_as_their_inputs(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert in_channels_last(function, "cuda") == in_channels_last(function, "cpu") == (48, 1, 12, 3)


def test_numbers_beyond_int64_fill_tensors_of_uint64() -> None:
    assert torch.full((2,), 2**64 - 1, dtype=torch.uint64, device="cuda").tolist() == [2**64 - 1] * 2


def test_new_memory_is_filled_where_programs_ask_for_determinism() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        made, bytes_ = torch.empty(2, device="cuda"), torch.empty_strided((2,), (1,), device="cuda", dtype=torch.uint8)
        grown = torch.ones(1, device="cuda").resize_(3)
    finally:
        torch.use_deterministic_algorithms(False)
    assert made.isnan().all() and bytes_.tolist() == [255, 255] and grown.isnan().tolist() == [False, True, True]


def test_draws_fill_tensors_of_whole_numbers() -> None:
    drawn = torch.empty(100, dtype=torch.int64, device="cuda").bernoulli_(0.5)
    assert set(drawn.tolist()) == {0, 1}


def test_a_mask_of_bytes_is_warned_of_at_each_call() -> None:
    there, mask = torch.arange(4.0, device="cuda"), torch.tensor([1, 0, 0, 1], dtype=torch.uint8, device="cuda")
    for _ in range(2):
        with pytest.warns(UserWarning, match="indexing with dtype torch.uint8 is now deprecated"):
            assert there[mask].tolist() == [0.0, 3.0]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_strided_nested_tensor_is_refused_where_it_is_used() -> None:
    rows = [torch.ones(2, device="cuda", requires_grad=True), torch.ones(3, device="cuda")]
    nested = torch.nested.as_nested_tensor(rows)
    assert nested.requires_grad
    with pytest.raises(NotImplementedError, match=r"mul\.Tensor is not available for strided nested tensors .* layout=torch\.jagged"):
        nested * 2


def test_complex_numbers_keep_their_conjugate_and_negative_bits() -> None:
    host = torch.randn(3, 4, dtype=torch.complex64)
    there = host.to("cuda")
    assert_close((there.conj() @ there.mT).cpu(), host.conj() @ host.mT)
    assert_close(there.conj().imag.cpu(), host.conj().imag)
    assert there.conj()[0, 0].item() == host.conj()[0, 0].item()


def test_mixing_devices_is_refused_in_the_words_of_pytorch() -> None:
    with pytest.raises(RuntimeError, match="same device, but found at least two devices, cuda:0 and cpu"):
        torch.ones(2, device="cuda") + torch.ones(2)


def test_a_tensor_is_saved_and_loaded_across_devices() -> None:
    there = torch.randn(4, 3, device="cuda")
    file = io.BytesIO()
    torch.save({"x": there, "view": there.t()}, file)
    file.seek(0)
    on_host = torch.load(file, map_location="cpu")
    file.seek(0)
    back = torch.load(file)
    assert on_host["x"].device.type == "cpu" and torch.equal(on_host["x"], there.cpu())
    assert back["view"].is_cuda and torch.equal(back["view"].cpu(), there.t().cpu())


def test_memory_is_accounted_as_it_is_allocated_and_freed() -> None:
    before = torch.cuda.memory_allocated()
    x = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() == before + (1 << 20)
    assert torch.cuda.max_memory_allocated() >= before + (1 << 20)
    del x
    assert torch.cuda.memory_allocated() == before


def test_threads_may_use_the_device_at_the_same_time() -> None:
    results: list[float] = []

    def work(seed: int) -> None:
        x = torch.full((64, 64), float(seed), device="cuda")
        for _ in range(20):
            x = (x @ torch.eye(64, device="cuda")).clone()
        results.append(x.sum().item() / seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [4096.0] * 4


def test_the_same_seed_draws_the_same_numbers() -> None:
    def draw() -> list[torch.Tensor]:
        return [
            torch.randn(5, device="cuda"),
            torch.rand(5, device="cuda"),
            torch.randperm(9, device="cuda"),
            torch.randint(0, 9, (4,), device="cuda"),
            torch.nn.functional.dropout(torch.ones(50, device="cuda")),
            torch.ones(50, device="cuda").bernoulli_(0.5),
            torch.multinomial(torch.ones(6, device="cuda"), 4),
        ]

    torch.manual_seed(3)
    first = draw()
    torch.cuda.manual_seed(3)
    second = draw()
    third = draw()
    assert all(torch.equal(one.cpu(), other.cpu()) for one, other in zip(first, second, strict=True))
    assert not all(torch.equal(one.cpu(), other.cpu()) for one, other in zip(second, third, strict=True))


def test_the_state_of_the_generator_goes_round() -> None:
    state = torch.cuda.get_rng_state()
    first = torch.randn(4, device="cuda").cpu()
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.randn(4, device="cuda").cpu(), first)
    own = torch.Generator("cuda").manual_seed(11)
    again = torch.Generator("cuda").manual_seed(11)
    assert torch.equal(torch.randn(4, device="cuda", generator=own).cpu(), torch.randn(4, device="cuda", generator=again).cpu())


def test_out_arguments_are_resized_and_written() -> None:
    out = torch.empty(0, device="cuda")
    torch.add(torch.ones(3, device="cuda"), 1, out=out)
    assert out.tolist() == [2.0, 2.0, 2.0]


def test_storages_can_grow_and_keep_their_bytes() -> None:
    x = torch.arange(4.0, device="cuda")
    x.resize_(6)
    assert x[:4].tolist() == [0.0, 1.0, 2.0, 3.0] and x.shape == (6,)


@pytest.mark.parametrize("name", ["maximum", "add", "copysign", "logical_xor"])
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_an_out_that_shares_memory_with_what_is_read_and_must_grow_gets_the_result(name: str) -> None:
    """Natively elements are read after others were written there."""
    operator = getattr(torch, name)
    for _ in range(2):
        for other in (torch.tensor([1.0, -2.0, 3.0]), torch.tensor([7.0]), torch.tensor(-9.0)):
            x = torch.tensor(1.5, device="cuda")
            out = x.detach()
            expected = operator(torch.tensor(1.5), other)
            assert operator(x, other.to("cuda"), out=out) is out
            assert out.shape == expected.shape and out.cpu().tolist() == expected.float().tolist()
            assert x.item() == out.flatten()[0].item()


def test_results_of_permuted_tensors_beside_small_ones_lie_as_the_cpu_s() -> None:
    def strides(device: str) -> list[tuple[int, ...]]:
        x = torch.arange(1.0, 61.0, device=device).reshape(3, 4, 5).permute(2, 0, 1)
        found = []
        for other in (torch.tensor(-2.0, device=device), torch.full((1,), -2.0, device=device), torch.full((4,), 3.0, device=device), -2.0):
            for name in ("copysign", "floor_divide", "xlogy", "pow", "true_divide", "where"):
                arguments = (x > 5, x, other) if name == "where" else (x, other)
                found.append(getattr(torch, name)(*arguments).stride())
        return [*found, torch.pow(2.0, x).stride(), torch.complex(x, x).stride(), torch.angle(torch.complex(x, x)).stride()]

    assert strides("cuda") == strides("cpu")
