"""What fails on the virtual device says which operator and which line."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection

import pytest
import torch

MISTAKES: dict[str, Callable[[str], object]] = {
    "mm": lambda device: torch.ones(2, 3, device=device) @ torch.ones(2, 3, device=device),
    "broadcast": lambda device: torch.ones(2, device=device) + torch.ones(3, device=device),
    "in place": lambda device: torch.ones(3, 1, device=device).atan2_(torch.ones(3, 5, device=device)),
    "comparison in place": lambda device: torch.ones(1, device=device).eq_(torch.ones(5, device=device)),
    "logic in place": lambda device: torch.ones(1, device=device).logical_and_(torch.ones(5, device=device)),
    "linear": lambda device: torch.nn.functional.linear(torch.ones(2, 4, device=device), torch.ones(2, 3, device=device)),
    "view": lambda device: torch.ones(2, device=device).view(3),
    "cat": lambda device: torch.cat([torch.ones(2, 3, device=device), torch.ones(3, 2, device=device)]),
    "select": lambda device: torch.ones(2, device=device)[5],
    "conv2d": lambda device: torch.nn.functional.conv2d(torch.ones(1, 3, 4, 4, device=device), torch.ones(2, 2, 3, 3, device=device)),
    "dot": lambda device: torch.ones(2, device=device).long() @ torch.ones(2, device=device),
    "sum": lambda device: torch.ones(3, device=device).sum(4),
    "layer_norm": lambda device: torch.nn.functional.layer_norm(torch.ones(2, 3, device=device), (4,)),
    "mean": lambda device: torch.zeros(2, dtype=torch.long, device=device).mean(),
    "inv": lambda device: torch.linalg.inv(torch.ones(2, 3, device=device)),
    "gather": lambda device: torch.gather(torch.ones(3, device=device), 1, torch.zeros(2, device=device).long()),
    "einsum": lambda device: torch.einsum("ij,jk", torch.ones(2, 3, device=device), torch.ones(2, 3, device=device)),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_shape_error_raises_at_once_with_the_words_of_the_native_operator(mistake: Callable[[str], object]) -> None:
    with pytest.raises(Exception) as native:
        mistake("cpu")
    with pytest.raises(native.type) as recorded:
        mistake("cuda")
    assert type(recorded.value) is native.type
    assert str(recorded.value).splitlines()[0] == str(native.value).splitlines()[0]


@pytest.mark.parametrize("mistake", ["in place", "comparison in place", "logic in place"])
def test_what_is_refused_in_place_is_not_warned_of_as_if_it_had_grown(mistake: str) -> None:
    with warnings.catch_warnings(record=True) as caught, pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        warnings.simplefilter("always")
        MISTAKES[mistake]("cuda")
    assert not caught


EXPANDED: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "index_fill_": lambda x, first: x.index_fill_(0, first, 1.0),
    "index_put_": lambda x, first: x.index_put_((first,), torch.ones((), device=x.device)),
    "setitem": lambda x, first: x.__setitem__(first, 2.0),
    "masked_fill_": lambda x, first: x.masked_fill_(x == 0, 1.0),
    "fill_": lambda x, first: x.fill_(1.0),
    "of one element": lambda x, first: x[:1].index_fill_(0, first, 1.0),
}


@pytest.mark.parametrize("write", EXPANDED.values(), ids=EXPANDED)
def test_writing_to_an_expanded_tensor_is_warned_of_at_each_call_as_natively(write: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
    told: dict[str, list[str]] = {}
    for device in ("cpu", "cuda"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                write(torch.zeros(1, 3, device=device).expand(4, 3), torch.tensor([0], device=device))
        told[device] = [str(warning.message).split(" (Triggered")[0] for warning in caught]
    assert told["cuda"] == told["cpu"]


def test_the_loss_of_one_sample_without_a_batch_is_a_number_from_its_first_call_on() -> None:
    scores, label = torch.randn(4), torch.tensor(1)
    for reduction in ("none", "mean", "sum"):
        here, there = scores.clone().requires_grad_(), scores.cuda().requires_grad_()
        expected = torch.nn.functional.multi_margin_loss(here, label, reduction=reduction)
        actual = torch.nn.functional.multi_margin_loss(there, label.cuda(), reduction=reduction)
        (expected.backward(), actual.backward())
        torch.testing.assert_close((actual.detach().cpu(), there.grad.cpu()), (expected.detach(), here.grad))
    assert torch.nn.functional.multi_margin_loss(scores.cuda()[None], label.cuda()[None], reduction="none").shape == (1,)


@pytest.mark.parametrize(
    "fill",
    [
        "bernoulli_(2.0)",
        "cauchy_(0, -1)",
        "exponential_(-1)",
        "geometric_(2)",
        "log_normal_(0, -1)",
        "normal_(0, -1)",
        "random_(3, 2)",
        "uniform_(2, 1)",
    ],
)
def test_numbers_that_a_distribution_does_not_take_are_refused_at_each_call(fill: str) -> None:
    name, numbers = fill.rstrip(")").split("(")
    arguments = [float(number) for number in numbers.split(",")] if name != "random_" else [3, 2]
    with pytest.raises(RuntimeError) as native:
        getattr(torch.empty(3), name)(*arguments)
    there = torch.ones(3, device="cuda")
    getattr(there, name)(
        *{"bernoulli_": [0.5], "geometric_": [0.5], "exponential_": [1.0], "random_": [2, 3]}.get(name, [0.5, 1.0])
    )  # a kind that is known
    before = there.tolist()
    with pytest.raises(RuntimeError) as recorded:
        getattr(there, name)(*arguments)
    assert str(recorded.value).splitlines()[0] == str(native.value).splitlines()[0]
    assert there.tolist() == before


@pytest.mark.parametrize(
    "make", [lambda: torch.ones(3, device="cuda:1"), lambda: torch.ones(3).to("cuda:3"), lambda: torch.randn(2, device="cuda:1")]
)
def test_a_device_that_does_not_exist_is_refused(make: Callable[[], torch.Tensor]) -> None:
    with pytest.raises(RuntimeError, match=r"invalid device ordinal.*cuda:[13] does not exist"):
        make()


def test_a_failure_on_the_device_names_the_operator_and_the_users_line() -> None:
    table = torch.ones(3, 2, device="cuda")
    there = torch.tensor([7], device="cuda")
    torch.index_select(table, 0, there - 7)  # the first call of its kind waits
    line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    bad = torch.index_select(table, 0, there)
    with pytest.raises(RuntimeError, match=r"aten::index_select.*(?s:.)*test_failures\.py, line " + str(line)) as told:
        torch.cuda.synchronize()
    assert "with self: float32[3, 2], dim: 0, index: int64[1]" in str(told.value)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"aten::index_select.*(?s:.)*line " + str(line)):
            (bad + 1).cpu()
    assert (table + 1).sum().item() == 12.0


def index(number: int) -> torch.Tensor:
    return torch.tensor([number], device="cuda")


FAILURES: dict[str, tuple[type[Exception], Callable[[], torch.Tensor]]] = {
    "asked": (IndexError, lambda: torch.ones(2, device="cuda").unique(dim=5)),
    "late": (RuntimeError, lambda: [torch.ones(3, device="cuda")[index(number)] for number in (1, 7)][1]),
    "linalg": (torch.linalg.LinAlgError, lambda: torch.linalg.inv(torch.zeros(2, 2, device="cuda"))),
    "range": (RuntimeError, lambda: [torch.ones(3, device="cuda").gather(0, index(number)) for number in (1, 7)][1]),
}


@pytest.mark.parametrize(("kind", "fail"), FAILURES.values(), ids=FAILURES)
def test_a_failure_that_is_heard_of_later_is_of_the_type_that_it_has_on_a_gpu(
    kind: type[Exception], fail: Callable[[], torch.Tensor]
) -> None:
    with pytest.raises(kind) as told:
        fail().cpu()
    assert type(told.value) is kind
    torch.cuda.synchronize()


def test_an_operator_whose_results_were_predicted_wrongly_fails_once_and_is_asked_then() -> None:
    """A kernel for meta tensors that tells wrong sizes, as any version of PyTorch may bring one."""
    library = torch.library.Library("aten", "IMPL", "Meta")
    library.impl("trace", lambda self: self.new_empty(5), allow_override=True)
    try:
        with pytest.raises(RuntimeError, match=r"aten::trace: .*not what the client predicted.*(?s:.)*asks the device.*run this again"):
            torch.ones(3, 3, device="cuda").trace().cpu()
        for size in (3, 4):
            assert torch.ones(size, size, device="cuda").trace().item() == size
    finally:
        library._destroy()


def test_an_interrupt_while_a_kernel_for_meta_tensors_runs_ends_the_call() -> None:
    def interrupted(self: torch.Tensor, diagonal: int = 0) -> torch.Tensor:
        raise KeyboardInterrupt

    library = torch.library.Library("aten", "IMPL", "Meta")
    library.impl("tril", interrupted, allow_override=True)
    try:
        with pytest.raises(KeyboardInterrupt):
            torch.ones(7, 7, device="cuda").tril()
    finally:
        library._destroy()
    assert torch.ones(7, 7, device="cuda").diagonal().sum().item() == 7.0


def test_more_dimensions_than_pytorch_has_are_refused_and_the_session_lives() -> None:
    kept = torch.ones(2, device="cuda")
    with pytest.raises(RuntimeError, match="dim"):
        (torch.ones((1,) * 65, device="cuda") + 1).cpu()
    assert kept.sum().item() == 2.0


@pytest.mark.parametrize(
    "use",
    [
        lambda: torch.empty(2**50, 0, device="cuda") + 1,
        lambda: torch.empty(2**50, 0, device="cuda").nonzero(),
        lambda: torch.nonzero_static(torch.tensor(1.0, device="cuda"), size=2**62),
        lambda: torch.ones(1, device="cuda").as_strided((1,), (2**60,)) + 1,
        lambda: torch.ones(1, device="cuda").expand(2**30, 2, 2**20).sum(),
    ],
    ids=["sizes", "sizes in a question", "sizes of a result", "strides", "elements"],
)
def test_sizes_that_the_stream_cannot_carry_are_refused_and_the_session_lives(use: Callable[[], torch.Tensor]) -> None:
    kept = torch.ones(2, device="cuda")
    with pytest.raises(RuntimeError, match=r"the virtual device takes numbers from 0 to \d+ there"):
        use()
    assert (kept + 1).tolist() == [2.0, 2.0]


def test_too_little_memory_says_what_was_asked_for_and_what_there_is() -> None:
    kept = torch.ones(4, device="cuda")
    with pytest.raises(torch.cuda.OutOfMemoryError, match=r"%flavor NAME"):
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda").sum().item()
    assert kept.sum().item() == 4.0


@pytest.mark.parametrize(
    "use",
    [
        lambda kept: torch.empty(2**45, device="cuda"),
        lambda kept: torch.empty(2**62, dtype=torch.uint8, device="cuda"),
        lambda kept: torch.arange(2**46, device="cuda"),
        lambda kept: kept[:1].expand(2**45) * 2,
        lambda kept: torch.outer(kept[:1].expand(2**23), kept[:1].expand(2**23)),
        lambda kept: kept[:1].expand(2**43).to(torch.complex128),
        lambda kept: kept.clone().resize_(2**46),
        lambda kept: kept.clone().untyped_storage().resize_(2**48),
    ],
    ids=["empty", "bytes", "arange", "product", "outer", "cast", "resize", "storage"],
)
def test_more_memory_than_any_device_has_is_too_much_at_once_and_the_session_lives(use: Callable[[torch.Tensor], object]) -> None:
    kept = torch.ones(4, device="cuda")
    with pytest.raises(torch.cuda.OutOfMemoryError, match="TiB requested"):
        use(kept)
    assert kept.sum().item() == 4.0
    assert torch.cuda.memory_allocated() < 2**30, "what was not made is counted"


def test_a_tensor_without_elements_has_sizes_as_it_likes_and_the_session_lives() -> None:
    assert (torch.empty(2**29, 2**29, 0, device="cuda") + 1).shape == (2**29, 2**29, 0)
    assert torch.ones(3, device="cuda").sum().item() == 3.0


def test_what_the_device_cannot_hold_is_refused_by_name() -> None:
    with pytest.raises(NotImplementedError, match="quantize_per_tensor is not available on the virtual device"):
        torch.quantize_per_tensor(torch.ones(2, 2, device="cuda"), 0.1, 0, torch.qint8)


def _use_in_child(connection: Connection, x: torch.Tensor) -> None:
    try:
        (x + 1).sum().item()
        connection.send("worked")
    except Exception as error:
        connection.send(str(error))
    connection.close()
    os._exit(0)


def test_a_forked_child_that_can_have_no_copy_is_told_to_spawn_and_why() -> None:
    x, index = torch.ones(2, device="cuda"), torch.tensor([9], device="cuda")
    torch.cuda.synchronize()
    failed = x.gather(0, index)  # nobody hears of it before the fork
    mine, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_use_in_child, args=(theirs, x))
    child.start()
    with pytest.raises(RuntimeError, match="index 9 is out of bounds"):
        failed.tolist()
    assert mine.poll(30), "the child hangs"
    said = mine.recv()
    assert "spawn" in said and "a call before the checkpoint failed" in said
    child.join()
    assert x.sum().item() == 2.0


def test_an_operator_of_a_package_without_a_kernel_for_the_device_is_refused_as_the_package_s() -> None:
    library = torch.library.Library("forebay_test_package", "DEF")
    try:
        library.define("squeeze_bits(Tensor x) -> Tensor")
        with pytest.raises(NotImplementedError, match=r"::squeeze_bits .* the package that it comes from .* torch\.optim"):
            torch.ops.forebay_test_package.squeeze_bits(torch.ones(2, device="cuda"))
    finally:
        library._destroy()
