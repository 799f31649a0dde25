"""Kernels of PyTorch's that trust their arguments: hostile geometry and indices are refused, and lead into nobody's memory."""

from __future__ import annotations

import random
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fenced_worker import FILLS, FencedWorker, compiled_fence
from forebay_worker import _executor
from hostile_calls import HostileCall, invented, lying, record

aten = torch.ops.aten
CALLS_OF_EACH = 12
PARTS = 8
SEED = 20261121
CALLS_MIN = 150
CONTRACTS = Path(__file__).parents[2] / "worker" / "csrc" / "contracts.inc"


def contracts() -> set[str]:
    """Names of the operators that have a contract."""
    return set(re.findall(r'^\{"(\w+)"', CONTRACTS.read_text(), re.MULTILINE))


def overloads(wide: bool) -> dict[str, Any]:
    """What a client may name: those that have a contract, or all."""
    listed = [name.removeprefix("aten::").partition(".") for name, _ in _executor.allowed_operators()]
    found = [(name, kind or "default") for name, _, kind in listed if wide or name in contracts()]
    return {f"aten::{name}.{kind}": getattr(getattr(aten, name), kind) for name, kind in found}


@pytest.fixture(scope="module")
def searched(pytestconfig: pytest.Config) -> dict[str, Any]:
    return overloads(wide=pytestconfig.getoption("--full-sweep"))


@pytest.fixture(scope="module")
def calls(searched: dict[str, Any]) -> dict[str, list[HostileCall]]:
    """What PyTorch itself calls these operators with."""
    return record({name.removesuffix(".default") for name in searched})


@pytest.fixture(scope="module")
def workers() -> Iterator[list[FencedWorker]]:
    with tempfile.TemporaryDirectory(prefix="fb-") as folder:
        library = compiled_fence(Path(folder))
        started = [FencedWorker(library, fill, f"{folder}/{fill}.sock") for fill in FILLS]
        yield started
        for worker in started:
            worker.stop()


def test_what_pytorch_itself_calls_keeps_every_contract(workers: list[FencedWorker], calls: dict[str, list[HostileCall]]) -> None:
    answers = [(call, workers[0].ask(call)) for made in calls.values() for call in made]
    assert len(answers) >= CALLS_MIN
    refused = [(str(call.op), answer[:2]) for call, answer in answers if answer[0] != "answered"]
    assert not refused, refused


def hostile(op: Any, made: list[HostileCall], chance: random.Random) -> HostileCall | None:
    if made and chance.random() < 0.8:
        return lying(chance.choice(made), chance)
    call = invented(op, chance)
    return lying(call, chance) if call is not None and chance.random() < 0.3 else call


def verdict(answers: list[Any]) -> str:
    """What is wrong with how two workers answered that differ only in memory which nobody may see."""
    one, other = answers
    if "ended" in (one[0], other[0]):
        return "a kernel ended its worker"
    if "wrote before" in one[1] or "wrote before" in other[1]:
        return "a kernel wrote before its tensor"
    return "" if one == other else "the answer depends on memory that is not an argument"


def judged(workers: list[FencedWorker], call: HostileCall) -> str | None:
    """What is wrong with how the workers answer a call, by itself: asked again of new workers. None where the wire cannot carry it."""
    found = ""
    for fresh in (False, True):
        try:
            if fresh:
                for worker in workers:
                    worker.stop()
                    worker.start()
            found = verdict([worker.ask(call) for worker in workers])
        except (NotImplementedError, TypeError, OverflowError, AttributeError, KeyError):
            return None
        if not found:
            return found
    return found


@pytest.mark.timeout(900)  # with --full-sweep; seconds without
@pytest.mark.filterwarnings("ignore")  # of the lies, made here
@pytest.mark.parametrize("part", range(PARTS))
def test_lying_calls_end_no_worker_and_show_no_memory_but_their_arguments(
    workers: list[FencedWorker], searched: dict[str, Any], calls: dict[str, list[HostileCall]], part: int
) -> None:
    torch.manual_seed(SEED)
    among = sorted(searched.items())[part::PARTS]
    wrong: list[str] = []
    asked = 0
    for name, op in among:
        chance = random.Random(f"{SEED} {name}")
        for _ in range(CALLS_OF_EACH):
            call = hostile(op, calls.get(name.removesuffix(".default"), []), chance)
            found = None if call is None else judged(workers, call)
            asked += found is not None
            if call is not None and found:
                shapes = [(tuple(value.shape), value.stride()) if isinstance(value, torch.Tensor) else value for value in call.values]
                wrong.append(f"{name}: {found}: {shapes}")
                print(wrong[-1], flush=True)
    assert asked > CALLS_OF_EACH * len(among) // 2
    assert not wrong, "\n".join(wrong)


ROWS = torch.randn(2, 2, 3, 8)
COLUMNS = torch.randn(2, 2, 8, 3).transpose(2, 3)
FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default
FLASH_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
OFFENCES: list[tuple[str, Any, tuple[Any, ...], str]] = [
    ("attention over columns", FLASH, (COLUMNS, ROWS, ROWS, 0.0, False, None, None), "query .* must have rows of neighbouring elements"),
    ("attention with fewer keys than values", FLASH, (ROWS, ROWS[:, :, :2], ROWS, 0.0, False, None, None), "value .* does not fit"),
    ("attention to nothing", FLASH, (ROWS, ROWS[:, :, :0], ROWS[:, :, :0], 0.0, False, None, None), "key .* does not fit"),
    ("attention under a mask too small", FLASH, (ROWS, ROWS, ROWS, 0.0, False, torch.randn(2, 3), None), "attn_mask .* does not fit"),
    (
        "attention's gradient with sums too short",
        FLASH_BACKWARD,
        (ROWS, ROWS, ROWS, ROWS, ROWS, torch.randn(2, 2, 2), 0.0, False, None, None),
        "logsumexp .* does not fit",
    ),
    (
        "statistics of fewer channels",
        aten.native_batch_norm.default,
        (ROWS, None, None, torch.ones(1), None, True, 0.1, 1e-5),
        "running_mean .* does not fit",
    ),
    (
        "a bag that begins behind the indices",
        aten._embedding_bag.default,
        (ROWS[0, 0], torch.tensor([0, 1]), torch.tensor([0, 9]), False, 0, False, None, False, -1),
        "offsets holds 0 to 9",
    ),
    (
        "a pool's index beyond its plane",
        aten.max_pool2d_with_indices_backward.default,
        (torch.ones(1, 1, 1), torch.ones(1, 2, 2), [2, 2], [2, 2], [0, 0], [1, 1], False, torch.tensor([[[4]]])),
        "indices holds 4",
    ),
    (
        "pivots beyond the matrix",
        aten.linalg_lu_solve.default,
        (torch.eye(2), torch.tensor([1, 90], dtype=torch.int32), torch.eye(2)),
        "pivots holds 1 to 90",
    ),
    ("a dimension that is not there", aten._fft_r2c.default, (torch.ones(4), [1 << 40], 0, True), "dim names dimension"),
    (
        "segments longer than the data",
        aten._segment_reduce_backward.default,
        (torch.ones(2), torch.ones(2), torch.ones(4), "sum", torch.tensor([2, 9]), None, 0, None),
        "lengths holds",
    ),
]


@pytest.mark.parametrize(("op", "values", "sentence"), [case[1:] for case in OFFENCES], ids=[case[0] for case in OFFENCES])
def test_a_breach_of_contract_fails_the_call_alone(workers: list[FencedWorker], op: Any, values: tuple[Any, ...], sentence: str) -> None:
    answer = workers[0].ask(HostileCall(op, values))
    assert answer[0] == "failed", answer
    assert re.search(sentence, answer[1][0][1]), answer[1]
    assert workers[0].ask(HostileCall(aten.neg.default, (torch.ones(4),)))[0] == "answered"


def test_every_contract_is_of_an_operator_that_a_client_may_name() -> None:
    listed = {name.removeprefix("aten::").partition(".")[0] for name, _ in _executor.allowed_operators()}
    assert contracts() <= listed


def test_every_term_names_an_argument_of_its_operator() -> None:
    for name, terms in re.findall(r'^\{"(\w+)",\s*"([^"]+)"', CONTRACTS.read_text(), re.MULTILINE):
        packet = getattr(aten, name)
        known = {argument.name for kind in packet.overloads() for argument in getattr(packet, kind)._schema.arguments}
        for term in terms.split():
            argument, relation, what = re.fullmatch(r"(\w+?)(?:\[\])?([=~<>#%^&|;@$])(.+)", term).groups()  # type: ignore[union-attr]
            flag = what.partition(":")[2].lstrip("!")
            assert {argument} | ({flag} if flag else set()) <= known, f"{name}: {term}"
            assert what.removeprefix("0") in known or relation not in "<^&|;@$", f"{name}: {term}"
