"""The default dtype is part of a call: what PyTorch makes of whole numbers under it has its precision, whatever was computed before."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
FLIPS = (torch.float32, torch.float64, torch.float32, torch.float16, torch.float64, torch.bfloat16, torch.float32)
PROGRAMS: dict[str, Callable[[str], torch.Tensor]] = {
    "quotients": lambda device: torch.arange(1, 8, device=device) / 3,
    "quotients in place": lambda device: torch.ones(7, device=device).div_(torch.arange(1, 8, device=device)),
    "reciprocals": lambda device: torch.arange(1, 8, device=device).reciprocal(),
    "roots": lambda device: torch.arange(8, device=device).sqrt(),
    "sines": lambda device: torch.arange(8, device=device).sin(),
    "sigmoids of truth": lambda device: torch.tensor([True, False], device=device).sigmoid(),
    "products with a fraction": lambda device: torch.arange(8, device=device) * 0.1,
    "sums with a trifle": lambda device: torch.arange(8, device=device) + 1e-9,
    "sums of a fraction and bytes": lambda device: 1 / 3 + torch.arange(8, dtype=torch.uint8, device=device),
    "powers": lambda device: torch.arange(1, 8, device=device) ** -1.5,
    "angles": lambda device: torch.atan2(torch.arange(1, 8, device=device), torch.arange(2, 9, device=device)),
    "products with i": lambda device: 1j * torch.arange(8, device=device) * 0.1,
    "sums in lists": lambda device: torch.stack(torch._foreach_add([torch.arange(4, device=device)] * 2, 1 / 3)),
    "a logarithm of a sum": lambda device: torch.arange(8, device=device).logsumexp(0),
    "a choice of fractions": lambda device: torch.where(torch.tensor([True, False], device=device), 1 / 3, 2 / 3),
    "evenly spaced": lambda device: torch.linspace(0, 1, 7, device=device),
    "steps of a tenth": lambda device: torch.arange(0, 1, 0.1, device=device),
    "filled": lambda device: torch.full((3,), 1 / 3, device=device),
    "a mean of quotients": lambda device: (torch.arange(1, 8, device=device) / 3).mean(),
    "a result that grows": lambda device: torch.div(torch.arange(1, 8, device=device), 3, out=torch.empty(0, device=device)),
    "a wider number beside a narrow tensor": lambda device: torch.ones(3, dtype=torch.bfloat16, device=device) * (1 / 3),
}


@pytest.fixture(autouse=True)
def float32_afterwards() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)


def same(there: torch.Tensor, host: torch.Tensor) -> bool:
    bits = [torch.view_as_real(one) if one.is_complex() else one for one in (there.cpu(), host)]
    return there.dtype == host.dtype and torch.equal(*bits)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_call_has_the_cpu_s_bits_under_each_default_dtype_whichever_came_before(name: str) -> None:
    for dtype in FLIPS:
        torch.set_default_dtype(dtype)
        host = PROGRAMS[name]("cpu")
        for _ in range(3):
            there = PROGRAMS[name]("cuda")
            assert same(there, host), f"under {dtype}: {there.cpu()}, not {host}"


def test_what_a_default_dtype_refuses_is_refused_where_another_one_took_it() -> None:
    whole = torch.arange(4, device="cuda")
    assert torch.special.bessel_j0(whole).dtype == torch.float32
    torch.set_default_dtype(torch.float16)
    with pytest.raises(RuntimeError, match="not implemented for 'Half'"):
        torch.special.bessel_j0(whole)
    torch.set_default_dtype(torch.float64)
    assert same(torch.special.bessel_j0(whole), torch.special.bessel_j0(whole.cpu()))


def steps(device: str) -> list[torch.Tensor]:
    """A loop that is followed as a trace, whose default dtype changes while nobody waits."""
    whole, kept = torch.arange(1, 64, device=device), []
    for step in range(60):
        torch.set_default_dtype(torch.float64 if 20 <= step < 25 or step >= 40 else torch.float32)
        kept.append(((whole / 3).sqrt() + 1e-9).sum())
    return kept


def test_a_loop_that_repeats_goes_on_under_another_default_dtype_without_a_wait() -> None:
    for there, host in zip(steps("cuda"), steps("cpu"), strict=True):
        assert there.dtype == host.dtype
        torch.testing.assert_close(there.cpu(), host, rtol=1e-7 if host.dtype == torch.float32 else 1e-15, atol=0)


def test_gradients_are_of_the_default_dtype_s_precision() -> None:
    def gradient(device: str) -> torch.Tensor:
        weight = torch.full((7,), 1 / 3, device=device, requires_grad=True)
        (torch.arange(1, 8, device=device).sqrt() * weight.sin()).sum().backward()
        assert weight.grad is not None
        return weight.grad

    assert same(gradient("cuda"), gradient("cpu"))
    torch.set_default_dtype(torch.float64)
    assert same(gradient("cuda"), gradient("cpu"))


def test_questions_of_a_worker_are_answered_under_the_default_dtype() -> None:
    for dtype in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        sparse = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.tensor([1, 2]), (3,), check_invariants=True)
        assert same((sparse.to("cuda") / 3).to_dense(), (sparse / 3).to_dense())
        assert same(torch.arange(8, device="cuda").histc(3, 0, 7), torch.arange(8).double().histc(3, 0, 7).long())
        assert same(torch.bucketize(torch.arange(3, device="cuda") / 3, torch.tensor([1 / 3], device="cuda")), torch.tensor([0, 0, 1]))


def test_a_module_in_double_precision_by_default_trains_as_on_the_cpu() -> None:
    torch.set_default_dtype(torch.float64)

    def losses(device: str) -> list[float]:
        torch.manual_seed(3)
        layer = torch.nn.Linear(5, 1).to(device)
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
        inputs = (torch.arange(20, device=device) / 7).reshape(4, 5)
        found = []
        for _ in range(12):
            loss = (layer(inputs) - torch.arange(4, device=device)[:, None]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.detach())
        return [float(one) for one in found]

    assert losses("cuda") == pytest.approx(losses("cpu"), rel=1e-12)
