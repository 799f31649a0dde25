"""A failure spoils nothing: what was there keeps its value, and nothing after it takes effect until the program has heard of it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path

import fork_server
import pytest
import torch
from forebay import _C
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

Step = Callable[[torch.Tensor, torch.Tensor], float]


@pytest.fixture
def training() -> tuple[torch.nn.Module, Step]:
    model = torch.nn.Linear(16, 4).cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x: torch.Tensor, y: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.item()

    return model, step


BAD_BATCHES: dict[str, Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "double": lambda x, y: (x.double(), y),
    "int32 target": lambda x, y: (x, y.int()),
    "target out of range": lambda x, y: (x, y + 100),
    "too large": lambda x, y: (x.repeat(1 << 28, 1), y.repeat(1 << 28)),
}


@pytest.mark.parametrize("kind", BAD_BATCHES)
def test_training_goes_on_after_a_step_that_failed(kind: str, training: tuple[torch.nn.Module, Step]) -> None:
    model, step = training
    x, y = torch.randn(8, 16).cuda(), torch.randint(0, 4, (8,)).cuda()
    first = step(x, y)
    before = [parameter.detach().cpu() for parameter in model.parameters()]
    with pytest.raises(RuntimeError):
        step(*BAD_BATCHES[kind](x, y))
    assert all(torch.equal(one, other.detach().cpu()) for one, other in zip(before, model.parameters(), strict=True))
    losses = [step(x, y) for _ in range(20)]
    assert losses[-1] < losses[0] < first


def fail() -> torch.Tensor:
    """Made by a command that fails on the device, and never made. The first of its kind goes well, so that nobody waits for it."""
    numbers = torch.ones(3, device="cuda")
    numbers.take(torch.tensor([1], device="cuda"))
    return numbers.take(torch.tensor([7], device="cuda"))


def hear() -> str:
    with pytest.raises(RuntimeError, match=r"out of range|out of bounds") as told:
        torch.cuda.synchronize()
    return str(told.value)


def test_what_was_made_after_it_was_never_made_and_says_why() -> None:
    kept = torch.ones(4, device="cuda")
    first = fail()
    try:
        late = kept * 2
    except RuntimeError:  # it was heard of at once
        return
    torch_text = hear()
    for lost in (first, late):
        for use in (lambda lost: lost.cpu(), lambda lost: (lost + 1).cpu(), lambda lost: lost.zero_().cpu()):
            with pytest.raises(RuntimeError) as again:
                use(lost)
            assert str(again.value) == torch_text
    assert (kept * 3).tolist() == [3.0] * 4


def quietly(step: Callable[[], object]) -> None:
    """Runs a step that may already say what failed before it."""
    try:
        step()
    except RuntimeError as error:
        assert "out of" in str(error)


AFTER: dict[str, Callable[[torch.Tensor], object]] = {
    "in place": lambda x: x.add_(1),
    "view": lambda x: x[1:3].mul_(5),
    "transposed view": lambda x: x.view(2, 2).t().zero_(),
    "out": lambda x: torch.add(x, 1, out=x),
    "copy": lambda x: x.copy_(torch.zeros(4, device="cuda")),
    "upload": lambda x: x.copy_(torch.zeros(4)),
    "random": lambda x: x.uniform_(),
    "foreach": lambda x: torch._foreach_add_([x], 1),
    "setitem": lambda x: x.__setitem__(0, 9.0),
}


@pytest.mark.parametrize("kind", AFTER)
def test_what_was_there_keeps_its_value_whatever_came_after(kind: str) -> None:
    x = torch.arange(4.0, device="cuda")
    torch.cuda.synchronize()
    fail()
    quietly(lambda: AFTER[kind](x))
    quietly(torch.cuda.synchronize)
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0]


SPOILED: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "index_add_": lambda x, i: x.index_add_(0, i, torch.ones(4, device="cuda")),
    "index_copy_": lambda x, i: x.index_copy_(0, i, torch.ones(4, device="cuda")),
    "index_fill_": lambda x, i: x.index_fill_(0, i, 5.0),
    "index_put_": lambda x, i: x.index_put_((i,), torch.full((4,), 7.0, device="cuda")),
    "setitem": lambda x, i: x.__setitem__(i, 7.0),
    "scatter_": lambda x, i: x.scatter_(0, i, 7.0),
    "scatter_add_": lambda x, i: x.scatter_add_(0, i, torch.full((4,), 7.0, device="cuda")),
    "put_": lambda x, i: x.put_(i, torch.full((4,), 7.0, device="cuda")),
    "gather out": lambda x, i: torch.gather(torch.ones(4, device="cuda"), 0, i, out=x),
    "take out": lambda x, i: torch.take(torch.ones(4, device="cuda"), i, out=x),
    "masked_scatter_": lambda x, i: x.masked_scatter_(i >= 0, torch.full((2,), 7.0, device="cuda")),
    "bernoulli_": lambda x, i: x.bernoulli_(torch.tensor([0.5, 0.5, 0.5, 3.0], device="cuda")),
}


@pytest.mark.parametrize("kind", SPOILED)
def test_an_operator_that_fails_in_the_middle_of_what_it_writes_leaves_it_as_it_was(kind: str) -> None:
    x = torch.arange(4.0, device="cuda")
    bad = torch.tensor([0, 1, 2, 99], device="cuda")
    with contextlib.suppress(RuntimeError):  # from here on nobody waits for calls of this kind, where there are good ones
        SPOILED[kind](x.clone(), bad.clamp(max=1))
    with pytest.raises(RuntimeError):
        SPOILED[kind](x, bad)
        torch.cuda.synchronize()
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("generator", [False, True])
def test_draws_that_did_not_come_about_are_not_counted(generator: bool) -> None:
    own = torch.Generator("cuda").manual_seed(7) if generator else None
    torch.manual_seed(7)
    draws = [torch.rand(3, device="cuda", generator=own).tolist() for _ in range(4)]
    torch.manual_seed(7)
    if own is not None:
        own.manual_seed(7)
    assert torch.rand(3, device="cuda", generator=own).tolist() == draws[0]
    fail()
    for _ in range(5):
        quietly(lambda: torch.rand(3, device="cuda", generator=own))
    quietly(torch.cuda.synchronize)
    assert [torch.rand(3, device="cuda", generator=own).tolist() for _ in range(3)] == draws[1:]


def test_uploads_in_flight_come_about_again_when_they_are_made_again() -> None:
    """Large enough to be remembered by their contents: what was not carried out must not be taken for what the worker holds."""
    data = torch.randint(0, 256, (1 << 20,), dtype=torch.uint8)
    target, other = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda"), torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    fail()
    quietly(lambda: target.copy_(data))
    quietly(lambda: other.copy_(data.pin_memory(), non_blocking=True))
    quietly(torch.cuda.synchronize)
    assert not target.any().item() and not other.any().item()
    for tensor in (target, other):
        assert torch.equal(tensor.copy_(data).cpu(), data)


def test_downloads_in_flight_raise_and_the_next_ones_are_right() -> None:
    x = torch.arange(1 << 18, device="cuda", dtype=torch.float32)
    torch.cuda.synchronize()
    fail()
    host = torch.full((1 << 18,), -1.0).pin_memory()
    quietly(lambda: host.copy_(x, non_blocking=True))
    quietly(torch.cuda.synchronize)
    host.copy_(x, non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(host, torch.arange(1 << 18, dtype=torch.float32))


def test_a_program_that_reads_nothing_hears_of_it_all_the_same() -> None:
    total = torch.zeros(1, device="cuda")
    fail()
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="out of range"):
        while time.monotonic() - began < 20:
            total += 1


def test_each_thread_that_lost_something_hears_of_it_once() -> None:
    heard: dict[str, list[str]] = {"one": [], "other": [], "idle": []}
    started, failed = threading.Barrier(3), threading.Event()
    totals = {name: torch.zeros(1, device="cuda") for name in heard}
    torch.cuda.synchronize()

    def work(name: str) -> None:
        started.wait()
        if name == "one":
            fail()
            failed.set()
        if name == "idle":
            failed.wait()
            time.sleep(1)
        for step in [lambda: totals[name].add_(1)] * 2000 + [torch.cuda.synchronize]:
            try:
                step()
            except RuntimeError as error:
                heard[name].append(str(error))

    threads = [threading.Thread(target=work, args=(name,)) for name in heard]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert len(heard["one"]) == 1 and len(heard["other"]) <= 1 and not heard["idle"]
    assert all("in fail" in text for texts in heard.values() for text in texts)
    assert all(totals[name].item() == 2000.0 for name in heard if not heard[name]), "something was lost, and nobody was told"


def heard_elsewhere(first: Callable[[], object], then: list[Callable[[], object]]) -> list[str]:
    """What another thread hears that takes the first step, and the others after this one has heard of what there is."""
    took, heard, texts = threading.Event(), threading.Event(), list[str]()

    def take(step: Callable[[], object]) -> None:
        try:
            step()
        except RuntimeError as error:
            texts.append(str(error))

    def work() -> None:
        take(first)
        took.set()
        heard.wait()
        for step in then:
            take(step)

    thread = threading.Thread(target=work)
    thread.start()
    took.wait()
    quietly(torch.cuda.synchronize)
    heard.set()
    thread.join()
    return texts


MOVED = torch.arange(1, (1 << 18) + 1, dtype=torch.float32)
TRANSFERS: dict[str, tuple[Callable[[torch.Tensor], object], Callable[[torch.Tensor], torch.Tensor]]] = {
    "small upload": (lambda x: x[:8].copy_(MOVED[:8]), lambda x: x[:8].cpu() - MOVED[:8]),
    "upload": (lambda x: x.copy_(MOVED), lambda x: x.cpu() - MOVED),
    "known upload": (lambda x: x.copy_(MOVED), lambda x: x.cpu() - MOVED),
    "upload that nobody waits for": (lambda x: x.copy_(MOVED.pin_memory(), non_blocking=True), lambda x: x.cpu() - MOVED),
}


@pytest.mark.parametrize("kind", TRANSFERS)
def test_a_thread_hears_that_its_transfer_was_lost_by_anothers_failure(kind: str) -> None:
    """As a loader's thread that sends batches ahead, while the thread that trains runs out of memory."""
    transfer, difference = TRANSFERS[kind]
    x, known = torch.zeros(1 << 18, device="cuda"), MOVED.cuda() if kind == "known upload" else None
    torch.cuda.synchronize()
    fail()
    texts = heard_elsewhere(lambda: transfer(x), [lambda: difference(x)] * 2)
    assert len(texts) == 1 and "in fail" in texts[0], "it hears of it once"
    heard_elsewhere(lambda: transfer(x), [torch.cuda.synchronize])
    assert not difference(x).any()
    del known


def test_a_thread_hears_that_its_download_was_lost_by_anothers_failure() -> None:
    x, host = MOVED.cuda(), torch.zeros(MOVED.shape).pin_memory()
    torch.cuda.synchronize()
    fail()
    texts = heard_elsewhere(lambda: host.copy_(x, non_blocking=True), [torch.cuda.synchronize] * 2)
    assert len(texts) == 1 and "in fail" in texts[0], "it hears of it once"


def test_whenever_another_thread_hears_of_a_failure_none_loses_a_call_without_a_word() -> None:
    """Both record and wait at the same time, again and again; what one recorded came about, or it hears of it once."""
    failures, lost = 0, 0
    for _ in range(100):
        total, heard, begin = torch.zeros(1, device="cuda"), list[str](), threading.Barrier(2)
        torch.cuda.synchronize()

        def add(total: torch.Tensor = total, heard: list[str] = heard, begin: threading.Barrier = begin) -> None:
            begin.wait()
            for step in [lambda: total.add_(1)] * 20 + [torch.cuda.synchronize]:
                try:
                    step()
                except RuntimeError as error:
                    heard.append(str(error))

        thread = threading.Thread(target=add)
        thread.start()
        begin.wait()
        quietly(fail)
        quietly(torch.cuda.synchronize)
        thread.join()
        quietly(torch.cuda.synchronize)
        assert len(heard) <= 1
        failures += len(heard)
        lost += total.item() != 20 and not heard
    assert failures > 0 and lost == 0


def test_a_thread_that_waits_for_the_gil_behind_its_failing_call_hears_of_it_though_another_did_first() -> None:
    """The line of a call is looked up with the GIL where its code was never seen before, after the call was told to the worker."""
    numbers, right, wrong = torch.ones(3, device="cuda"), torch.tensor([1], device="cuda"), torch.tensor([7], device="cuda")
    numbers.take(right)
    torch.cuda.synchronize()
    begun = threading.Event()

    def fail_anew() -> None:
        begun.set()
        numbers.take(wrong)

    def hold_the_gil() -> None:
        begun.wait()
        until = time.monotonic() + 0.02
        while time.monotonic() < until:
            pass

    def hear_of_it() -> None:
        begun.wait()
        quietly(torch.cuda.synchronize)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(10)
    try:
        for _ in range(12):  # who gets the GIL first is left to chance
            begun.clear()
            threads = [threading.Thread(target=target) for target in [hold_the_gil] * 2 + [hear_of_it] + [hold_the_gil] * 2]
            for thread in threads:
                thread.start()
            types.FunctionType(fail_anew.__code__.replace(), globals(), closure=fail_anew.__closure__)()  # a copy, which is new
            for thread in threads:
                thread.join()
            assert "fail_anew" in hear()
    finally:
        sys.setswitchinterval(interval)


def test_a_replay_that_fails_leaves_what_the_last_one_gave() -> None:
    table, index = torch.arange(4.0, device="cuda"), torch.tensor([1, 2], device="cuda")
    total = torch.zeros(2, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        picked = table.index_select(0, index)
        total += picked
    graph.replay()
    assert total.tolist() == [1.0, 2.0]
    index.fill_(9)
    quietly(graph.replay)
    quietly(torch.cuda.synchronize)
    assert (picked.tolist(), total.tolist()) == ([1.0, 2.0], [1.0, 2.0])
    index.fill_(3)
    graph.replay()
    assert (picked.tolist(), total.tolist()) == ([3.0, 3.0], [4.0, 5.0])


def test_a_failure_of_one_device_is_nothing_to_the_other() -> None:
    code = """
import torch
one, other = torch.zeros(3, device="cuda:0"), torch.zeros(3, device="cuda:1")
torch.cuda.synchronize(0); torch.cuda.synchronize(1)
for number in (1, 7):
    torch.ones(3, device="cuda:0").take(torch.tensor([number], device="cuda:0"))
other += 1
assert other.tolist() == [1, 1, 1]
try:
    one += 1
    torch.cuda.synchronize(0)
except RuntimeError as error:
    assert "out of range" in str(error)
else:
    raise AssertionError
assert one.tolist() == [0, 0, 0] and (other + 1).tolist() == [2, 2, 2]
"""
    environment = os.environ | {"FOREBAY_DEVICES": "2"}
    done = subprocess.run([fork_server.programs(), "-c", code], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


SLOTS = 4
SIZE = 6
COMMANDS: dict[str, Callable[[list[torch.Tensor], int, int], torch.Tensor | None]] = {
    "add": lambda slots, i, j: slots[i] + slots[j],
    "mul_": lambda slots, i, j: (slots[i].mul_(0.5).add_(slots[j], alpha=0.25), None)[1],
    "view": lambda slots, i, j: (slots[i][1:4].sub_(slots[j][2:5].clone()), None)[1],
    "strided": lambda slots, i, j: (slots[i].view(2, 3).t().copy_(slots[j].clone().view(3, 2)), None)[1],
    "out": lambda slots, i, j: (torch.sub(slots[i], 1, out=slots[j]), None)[1],
    "upload": lambda slots, i, j: (slots[i].copy_(torch.arange(float(SIZE)) * j), None)[1],
    "new upload": lambda slots, i, j: torch.full((SIZE,), float(i - j)).to(slots[i].device),
    "clone": lambda slots, i, j: slots[i].clone().view(3, 2).flatten(),
    "index_add_": lambda slots, i, j: (slots[i].index_add_(0, index(slots, [j, 5, j]), slots[j][:3].clone()), None)[1],
    "cat": lambda slots, i, j: torch.cat([slots[i][:3], slots[j][3:]]),
}
FAILING: dict[str, Callable[[list[torch.Tensor], int, int], torch.Tensor | None]] = {
    "take": lambda slots, i, j: slots[i].take(index(slots, [SIZE])).expand(SIZE).clone(),
    "gather": lambda slots, i, j: slots[i].gather(0, index(slots, [0, 1, 2, 3, 4, -SIZE])),
    "index_add_": lambda slots, i, j: (slots[i].index_add_(0, index(slots, [0, 1, SIZE]), slots[j][:3].clone()), None)[1],
    "index_put_": lambda slots, i, j: slots[i].__setitem__(index(slots, [0, 1, SIZE]), 7.0),
    "scatter_": lambda slots, i, j: (slots[i].scatter_(0, index(slots, [0, SIZE]), 7.0), None)[1],
}


def index(slots: list[torch.Tensor], numbers: list[int]) -> torch.Tensor:
    return torch.tensor(numbers, device=slots[0].device)


Command = tuple[str, int, int]


def play(device: str, program: list[Command], failing: Command, place: int, stops: bool) -> list[list[torch.Tensor]]:
    """Runs the program; returns what the slots held after each of its commands: the same tensors where nothing new was made."""
    slots = [torch.arange(float(SIZE)).add(number).to(device) for number in range(SLOTS)]
    if device == "cuda":
        torch.cuda.synchronize()
    history = [list(slots)]
    try:
        for number, (name, i, j) in enumerate([*program[:place], failing, *program[place:]]):
            if stops and number == place:
                return history
            made = (FAILING if number == place else COMMANDS)[name](slots, i, j)
            if made is not None:
                slots[i] = made
            history.append(list(slots))
        torch.cuda.synchronize()
    except (RuntimeError, IndexError):
        return history
    raise AssertionError("nothing failed")


SLOT = st.integers(0, SLOTS - 1)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.sampled_from(sorted(COMMANDS)), SLOT, SLOT), max_size=12),
    st.tuples(st.sampled_from(sorted(FAILING)), SLOT, SLOT),
    st.integers(0, 12),
)
def test_whatever_the_program_all_that_was_there_is_as_on_a_cpu_that_stopped(program: list[Command], failing: Command, place: int) -> None:
    place = min(place, len(program))
    expected = play("cpu", program, failing, place, stops=True)
    played = play("cuda", program, failing, place, stops=False)
    for here, there in zip(expected[place], played[place], strict=True):
        assert torch.equal(here, there.cpu())
    whole = {id(tensor) for slots in played[: place + 1] for tensor in slots}
    for tensor in {id(tensor): tensor for slots in played[place + 1 :] for tensor in slots if id(tensor) not in whole}.values():
        with pytest.raises(RuntimeError, match="out of"):
            tensor.cpu()
    assert (torch.ones(2, device="cuda") * 2).tolist() == [2.0, 2.0]


WRONG: dict[str, Callable[[str], object]] = {
    "linear of doubles": lambda device: torch.nn.Linear(3, 2, device=device)(torch.ones(4, 3, dtype=torch.double, device=device)),
    "mm": lambda device: torch.ones(2, 2, device=device).mm(torch.ones(2, 2, dtype=torch.double, device=device)),
    "int32 target": lambda device: torch.nn.functional.cross_entropy(
        torch.ones(2, 3, device=device), torch.ones(2, dtype=torch.int, device=device)
    ),
    "index_add": lambda device: torch.ones(3, device=device).index_add(
        0, torch.tensor([1], device=device), torch.ones(1, dtype=torch.double, device=device)
    ),
    "softmax of whole numbers": lambda device: torch.ones(3, dtype=torch.long, device=device).softmax(0),
    "bias of another size": lambda device: torch.nn.functional.conv2d(
        torch.ones(1, 3, 5, 5, device=device), torch.ones(4, 3, 3, 3, device=device), torch.ones(6, device=device)
    ),
    "and of floats": lambda device: torch.ones(3, device=device) & torch.ones(3, device=device),
    "overlap": lambda device: (lambda x: x[1:4].sub_(x[2:5]))(torch.ones(6, device=device)),
    "expanded": lambda device: torch.ones(1, device=device).expand(3).add_(1),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_depend_on_values_is_raised_at_the_call_in_the_words_of_the_native_operator(name: str) -> None:
    with pytest.raises(Exception) as native:
        WRONG[name]("cpu")
    for _ in range(2):
        with pytest.raises(native.type) as there:
            WRONG[name]("cuda")
        assert str(there.value) == str(native.value)
        torch.cuda.synchronize()


def test_a_kind_of_call_waits_once_and_a_steady_loop_never() -> None:
    def step() -> torch.Tensor:
        return torch.ones(5, 7, device="cuda").logaddexp2(torch.ones(7, device="cuda"))

    step()
    syncs = _C.statistics()["syncs"]
    for _ in range(5):
        step()
    assert _C.statistics()["syncs"] == syncs


def test_a_fresh_process_knows_what_earlier_ones_of_its_installation_asked(tmp_path: Path) -> None:
    code = """
import torch
from forebay import _C
model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.GELU(), torch.nn.Linear(7, 3)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(2, 5, device="cuda")).logsumexp(1).sum().backward()
optimizer.step()
print(_C.statistics()["syncs"])
"""
    environment = os.environ | {"FOREBAY_KNOWN_CALLS": str(tmp_path / "known-calls")}
    command = [fork_server.programs(), "-c", code]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=environment) for _ in range(2)]
    asked = [int(run.stdout) for run in runs]
    assert asked[0] > 10 and asked[1] == 0


def test_what_cannot_fit_raises_at_the_call_and_is_not_counted() -> None:
    limit = torch.cuda.get_device_properties(0).total_memory
    kept = torch.ones(limit // 16, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    for make in (lambda: torch.empty(limit, dtype=torch.uint8, device="cuda"), lambda: torch.cat([kept] * 4), lambda: kept.repeat(64)):
        with pytest.raises(torch.cuda.OutOfMemoryError, match=r"CUDA out of memory\. Tried to allocate"):
            make()
    assert torch.cuda.max_memory_allocated() <= limit
    assert kept.sum().item() == limit // 16


def test_a_search_for_a_batch_size_ends_at_one_that_trains() -> None:
    limit = torch.cuda.get_device_properties(0).total_memory
    model = torch.nn.Linear(1024, 8).cuda()
    size, losses = 1 << 24, []
    while not losses:
        try:
            loss = model(torch.ones(size, 1024, device="cuda")).mean()
            loss.backward()
            losses.append(loss.item())
        except torch.cuda.OutOfMemoryError:
            size //= 4
            model.zero_grad()
    assert 0 < size * 4096 < limit
