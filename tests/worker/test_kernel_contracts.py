"""Kernels of PyTorch's that trust their arguments: hostile geometry and indices are refused, and lead into nobody's memory."""

from __future__ import annotations

import os
import random
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Client
from fenced_worker import ANSWER_SECONDS_MAX, FILLS, FencedWorker, compiled_fence
from forebay_wire import stream
from forebay_worker import _executor
from hostile_calls import HostileCall, invented, lying, record

aten = torch.ops.aten
PARTS = 8
CALLS_MIN = 150
CONTRACTS = Path(__file__).parents[2] / "worker" / "csrc" / "call" / "contracts.inc"


def contracts() -> set[str]:
    """Names of the operators that have a contract."""
    return set(re.findall(r'^\{"(\w+)"', CONTRACTS.read_text(), re.MULTILINE))


def overloads(wide: bool) -> dict[str, Any]:
    """What a client may name: those that have a contract, or all."""
    listed = [name.removeprefix("aten::").partition(".") for name, _ in _executor.allowed_operators() if name.startswith("aten::")]
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


@pytest.fixture(scope="module")
def standin_worker(standin_folder: Path) -> Iterator[FencedWorker]:
    with tempfile.TemporaryDirectory(prefix="fb-") as folder:
        variables = {**os.environ, "PYTHONPATH": str(standin_folder)}
        worker = FencedWorker(None, FILLS[0], f"{folder}/standin.sock", "standin:0", variables)
        yield worker
        worker.stop()


@pytest.fixture
def worker(device: str, request: pytest.FixtureRequest) -> FencedWorker:
    """One that a test has to itself, of the host or of the stand-in."""
    found: FencedWorker = request.getfixturevalue("workers")[0] if device == "cpu:0" else request.getfixturevalue("standin_worker")
    return found


def answers_of(workers: list[FencedWorker], call: HostileCall) -> list[Any] | None:
    """None where the wire cannot carry the call."""
    try:
        return [worker.ask(call) for worker in workers]
    except (NotImplementedError, TypeError, OverflowError, AttributeError, KeyError):
        return None


def test_what_pytorch_itself_calls_keeps_every_contract(workers: list[FencedWorker], calls: dict[str, list[HostileCall]]) -> None:
    answers = [(call, answers_of(workers[:1], call)) for made in calls.values() for call in made]
    assert len(answers) >= CALLS_MIN
    refused = [(str(call.op), answer[0][:2]) for call, answer in answers if answer and answer[0][0] != "answered"]
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
    if "slow" in (one[0], other[0]):
        return f"a kernel occupied its worker for {ANSWER_SECONDS_MAX} s"
    if "wrote before" in one[1] or "wrote before" in other[1]:
        return "a kernel wrote before its tensor"
    return "" if one == other else "the answer depends on memory that is not an argument"


def judged(workers: list[FencedWorker], call: HostileCall) -> str | None:
    """What is wrong with how the workers answer a call, by itself: asked again of new workers. None where the wire cannot carry it."""
    answers = answers_of(workers, call)
    if answers is None or not verdict(answers):
        return None if answers is None else ""
    for worker in workers:
        worker.stop()
        worker.start()
    return verdict([worker.ask(call) for worker in workers])


@pytest.mark.timeout(7200)  # for a million calls of all operators; seconds by default
@pytest.mark.filterwarnings("ignore")  # of the lies, made here
@pytest.mark.parametrize("part", range(PARTS))
def test_lying_calls_end_no_worker_and_show_no_memory_but_their_arguments(
    workers: list[FencedWorker], searched: dict[str, Any], calls: dict[str, list[HostileCall]], part: int, pytestconfig: pytest.Config
) -> None:
    seed, calls_of_each = pytestconfig.getoption("--hostile-seed"), pytestconfig.getoption("--hostile-calls")
    torch.manual_seed(seed)
    among = sorted(searched.items())[part::PARTS]
    wrong: list[str] = []
    asked = 0
    for name, op in among:
        chance = random.Random(f"{seed} {name}")
        for _ in range(calls_of_each):
            call = hostile(op, calls.get(name.removesuffix(".default"), []), chance)
            found = None if call is None else judged(workers, call)
            asked += found is not None
            if call is not None and found:
                shapes = [(tuple(value.shape), value.stride()) if isinstance(value, torch.Tensor) else value for value in call.values]
                wrong.append(f"{name}: {found}: {shapes}")
                print(wrong[-1], flush=True)
    assert asked > calls_of_each * len(among) // 2
    print(f"{asked} calls of {len(among)} operators", flush=True)
    assert not wrong, "\n".join(wrong)


CTC, CTC_BACKWARD = aten._ctc_loss.default, aten._ctc_loss_backward.default
SPOKEN = torch.randn(3, 2, 5).log_softmax(2)
LABELS = torch.tensor([[1, 2], [3, 1]])
NOTHING = torch.zeros(0, dtype=torch.int64)
ROWS = torch.randn(2, 2, 3, 8)
COLUMNS = torch.randn(2, 2, 8, 3).transpose(2, 3)
FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default
FLASH_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
SIX = torch.ones(1, 6, 3)
SEGMENTS = aten.segment_reduce.default
QKV = torch.ones(1, 2, 4, 8)
OFFENCES: list[tuple[str, Any, tuple[Any, ...], str]] = [
    ("attention with fewer keys than values", FLASH, (ROWS, ROWS[:, :, :2], ROWS, 0.0, False, None, None), "value .* does not fit"),
    ("attention to nothing", FLASH, (ROWS, ROWS[:, :, :0], ROWS[:, :, :0], 0.0, False, None, None), "key .* does not fit"),
    ("attention of nothing", FLASH, (ROWS[:, :, :0], ROWS, ROWS, 0.0, False, None, None), "query .* does not fit"),
    ("attention without heads", FLASH, (ROWS[:, :0], ROWS[:, :0], ROWS[:, :0], 0.0, False, None, None), "query .* does not fit"),
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
        "a bag that begins before the one before it",
        aten._embedding_bag.default,
        (ROWS[0, 0], torch.tensor([0, 1, 2]), torch.tensor([0, 3, 1]), False, 0, False, torch.ones(3), False, -1),
        "offsets holds a number below the one before it",
    ),
    ("a label that is not there", CTC, (SPOKEN, torch.tensor([[1, 9], [2, 1]]), [3, 3], [2, 2], 0), "targets holds 1 to 9"),
    ("more labels than there are", CTC, (SPOKEN, torch.tensor([1, 2, 1]), [3, 3], [2, 2], 0), "target_lengths holds 4 together"),
    (
        "a gradient of more labels than states",
        CTC_BACKWARD,
        (torch.ones(2), SPOKEN, LABELS, [3, 3], [2, 2], torch.ones(2), torch.zeros(2, 3, 3), 0),
        "target_lengths holds 2, and 1 is the most",
    ),
    (
        "a gradient of lengths in a tensor that lead out",
        aten._ctc_loss_backward.Tensor,
        (torch.ones(2), SPOKEN, LABELS, torch.tensor([3, 90]), torch.tensor([2, 2]), torch.ones(2), torch.zeros(2, 3, 5), 0),
        "input_lengths holds 3 to 90",
    ),
    (
        "a gradient of a blank that is not there",
        CTC_BACKWARD,
        (torch.ones(2), SPOKEN, LABELS, [3, 3], [2, 2], torch.ones(2), torch.zeros(2, 3, 5), 7),
        "blank is 7",
    ),
    (
        "indices where there is no bag",
        aten._embedding_bag.default,
        (ROWS[0, 0], torch.tensor([0, 1]), NOTHING, False, 0, False, torch.ones(2), False, 0),
        "indices .* has elements, and offsets has none",
    ),
    (
        "indices where there is only a last offset",
        aten._embedding_bag_forward_only.default,
        (ROWS[0, 0], torch.tensor([0, 1]), torch.tensor([0]), False, 0, False, torch.ones(2), True, 0),
        "indices .* has elements, and offsets has one",
    ),
    (
        "a result whose elements share their places",
        aten._log_softmax.out,
        (ROWS[0, 0], 1, False, torch.zeros(1).expand(3, 8)),
        "out has several elements in one place",
    ),
    (
        "one result of several whose elements share their places",
        aten._foreach_abs.out,
        ([ROWS[0, 0], ROWS[0, 1]], [torch.zeros(3, 8), torch.zeros(3, 1).expand(3, 8)]),
        "out has several elements in one place",
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
    ("a dimension counted from the last", aten._fft_c2r.default, (torch.ones(3, dtype=torch.cfloat), [-1], 0, 4), "dim names dimension"),
    (
        "half a block of two",
        aten.linalg_ldl_solve.default,
        (torch.eye(3), torch.tensor([1, 2, -3], dtype=torch.int32), torch.eye(3)),
        "pivots holds a number below 0 that is not one of a pair",
    ),
    (
        "counts of words that are not there",
        aten.embedding_dense_backward.default,
        (torch.ones(2, 3), torch.tensor([0, 1 << 40]), 4, -1, True),
        "indices holds 0 to 1099511627776",
    ),
    (
        "coefficients of another type",
        aten._compute_linear_combination.default,
        (torch.ones(2, 2), torch.ones(2, 2, dtype=torch.bool)),
        "coefficients has Bool elements, and input Float",
    ),
    (
        "distances of fewer pairs than there are",
        aten._pdist_backward.default,
        (torch.ones(10), torch.ones(10, 5), 2.0, torch.ones(10)),
        "pdist .* does not fit",
    ),
    (
        "a loss's gradient of a class that is not there",
        aten.nll_loss_backward.default,
        (torch.ones(2), torch.ones(2, 3), torch.tensor([-100, 1 << 40]), None, 0, -100, torch.tensor(1.0)),
        "target holds 1099511627776",
    ),
    (
        "a picture's gradient of a class that is not there",
        aten.nll_loss2d_backward.default,
        (torch.ones(1, 1, 2), torch.ones(1, 3, 1, 2), torch.tensor([[[0, -7]]]), None, 0, -100, torch.tensor(1.0)),
        "target holds -7",
    ),
    (
        "a volume's gradient that fits nothing",
        aten.adaptive_avg_pool3d_backward.grad_input,
        (torch.ones(0, 2, 2, 3), torch.ones(2, 2, 2, 2), torch.ones(2, 2, 2, 2)),
        "does not fit",
    ),
    (
        "segments longer than the data",
        aten._segment_reduce_backward.default,
        (torch.ones(2), torch.ones(2), torch.ones(4), "sum", torch.tensor([2, 9]), None, 0, None),
        "lengths holds",
    ),
    (
        "a gradient of fewer segments",
        aten._segment_reduce_backward.default,
        (torch.ones(1), torch.ones(1), torch.ones(4), "sum", torch.ones(4, dtype=torch.int64), None, 0, None),
        "output .* does not fit",
    ),
    (
        "an optimizer's state that lies apart",
        aten._fused_sgd_.default,
        ([torch.ones(4)], [torch.ones(4, 2)[:, 0]], [], 0.0, 0.0, 0.1, 0.0, False, False, False, None, None),
        r"grads\[0\] .* must have its elements together",
    ),
    ("unchecked segments", SEGMENTS, (torch.ones(3), "sum", torch.tensor([2, 300]), None, None, 0, True, None), "lengths holds 2 to 302"),
    ("segments behind the data", SEGMENTS, (torch.ones(3), "sum", None, None, torch.tensor([0, 9])), "offsets holds 0 to 9"),
    (
        "many segments whose sum would wrap",
        SEGMENTS,
        (torch.ones(3), "sum", torch.tensor([1 << 50]).expand(1 << 14), None, None, 0, True, None),
        "lengths holds",
    ),
    (
        "few segments whose sum would wrap",
        SEGMENTS,
        (torch.ones(3), "sum", torch.full((4,), 1 << 62), None, None, 0, True, None),
        "lengths holds",
    ),
    (
        "lengths of sequences, which the kernel would follow unchecked",
        aten._scaled_dot_product_flash_attention_backward.default,
        (*[QKV] * 5, torch.ones(1, 2, 4), torch.tensor([0, 99], dtype=torch.int32), None, 4, 4, 0.0, False, torch.ones(2), torch.ones(())),
        "cum_seq_q must be left out",
    ),
    (
        "sums of fewer rows",
        aten._scaled_dot_product_flash_attention_backward.default,
        (*[QKV] * 5, torch.ones(1, 2, 3), None, None, 4, 4, 0.0, False, torch.ones(2), torch.ones(())),
        "logsumexp .* does not fit",
    ),
    (
        "dropout, whose seed the kernel would read as host memory",
        aten._scaled_dot_product_efficient_attention_backward.default,
        (*[QKV] * 4, None, QKV, torch.ones(1, 2, 32), torch.ones(()), torch.ones(()), 0.5, [True, True, True, False]),
        "dropout_p is 0.5 and must be 0",
    ),
    (
        "a norm's gradient with the means of fewer rows",
        aten.native_layer_norm_backward.default,
        (SIX, SIX, [3], torch.ones(1, 5, 1), torch.ones(1, 6, 1), None, None, [True, True, True]),
        "mean .* does not fit",
    ),
    (
        "a norm's gradient of fewer rows",
        aten.native_layer_norm_backward.default,
        (SIX[:, :4], SIX, [3], torch.ones(1, 6, 1), torch.ones(1, 6, 1), torch.ones(3), torch.ones(3), [True, True, True]),
        "input .* does not fit",
    ),
    (
        "a loss's gradient of no loss",
        aten.binary_cross_entropy_backward.default,
        (torch.ones(0), torch.tensor(0.5), torch.tensor(1.0), None, 1),
        "grad_output .* does not fit",
    ),
    (
        "an activation's gradient of other sizes",
        aten.gelu_backward.default,
        (torch.rand(1).expand(2, 2), torch.rand(2, 1), "none"),
        "self .* does not fit",
    ),
    ("windows' gradient of fewer windows", aten.unfold_backward.default, (torch.ones(1), [5, 5], 0, 3, 1), "grad_in .* does not fit"),
    ("distances among points of no dimensions", aten._pdist_forward.default, (torch.ones(5, 1, 0), 2.0), "self .* does not fit"),
    (
        "a result that is too small for noise",
        aten.rrelu_with_noise.out,
        (torch.rand(4, 4), torch.rand(4, 4), 0.125, 0.5, True, None, torch.rand(4, 2)),
        "out .* does not fit",
    ),
    (
        "noise that lies in one place",
        aten.rrelu_with_noise.default,
        (torch.rand(20), torch.ones(1).expand(20), 0.0, 1.0, True, None),
        "noise .* must have its elements together",
    ),
    ("segments of more rows", SEGMENTS, (torch.ones(2, 3), "sum", torch.full((4, 1), 3), None, None, 1), "lengths .* does not fit"),
]


OF_NUMBERS = re.compile("holds|below 0|begins")
"""What the sentences have in them that are about numbers in a tensor."""


@pytest.mark.everywhere("each case")
@pytest.mark.one_device
@pytest.mark.parametrize(("op", "values", "sentence"), [case[1:] for case in OFFENCES], ids=[case[0] for case in OFFENCES])
def test_a_breach_of_contract_fails_the_call_alone(
    worker: FencedWorker, device: str, op: Any, values: tuple[Any, ...], sentence: str
) -> None:
    if OF_NUMBERS.search(sentence) and device != "cpu:0":
        pytest.skip("contracts on numbers in tensors are for the kernels of the host; those of a GPU are in test_numbers_out_of_range")
    answer = worker.ask(HostileCall(op, values))
    assert answer[0] == "failed", answer
    assert re.search(sentence, answer[1][0][1]), answer[1]
    assert worker.ask(HostileCall(aten.neg.default, (torch.ones(4),)))[0] == "answered"


BAGS = torch.tensor([0, 2, 4])
ENTRIES = torch.tensor([1, 0, 2, 4, 3])
TABLE = torch.arange(20.0).reshape(5, 4) / 7
SPACED = torch.arange(10.0)[::2] / 3
OF_BAGS = torch.tensor([0, 0, 1, 1, 2])
BAG_SIZES = torch.tensor([2, 2, 1])
NO_MAXIMA = torch.zeros(0, dtype=torch.int64)
BAG_GRADIENT = torch.arange(12.0).reshape(3, 4) / 5
SQUARE = torch.tensor([[2.0, 0.0, 0.0], [0.5, 1.5, 0.0], [0.25, 1.0, 1.25]])
PIXELS = torch.arange(96.0).reshape(2, 3, 4, 4) / 50
SEGMENTED = torch.arange(12.0).reshape(2, 6) / 4
NOBODY = torch.zeros(0, 2, 3, 8)
TOLD_BY_DEVICE = (aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
VALID: list[tuple[str, Any, tuple[Any, ...]]] = [
    ("windows, their gradient", aten.unfold_backward.default, (torch.rand(2, 4, 3), [2, 9], -1, 3, 2)),
    ("a number's windows, their gradient", aten.unfold_backward.default, (torch.rand(1), [], 0, 1, 1)),
    (
        "a norm over two dimensions, its gradient",
        aten.native_layer_norm_backward.default,
        (*[torch.rand(2, 3, 4)] * 2, [3, 4], *[torch.rand(2, 1, 1)] * 2, torch.rand(3, 4), None, [True, True, False]),
    ),
    ("a loss's mean, its gradient", aten.binary_cross_entropy_backward.default, (torch.ones(()), torch.rand(3, 2), torch.rand(3, 2))),
    ("attention in an empty batch", FLASH, (NOBODY, NOBODY, NOBODY, 0.0, True, None, None)),
    (
        "attention in an empty batch, its gradient",
        FLASH_BACKWARD,
        (NOBODY, NOBODY, NOBODY, NOBODY, NOBODY, torch.zeros(0, 2, 3), 0.0, True, None, None),
    ),
    ("a weight's norm", aten._weight_norm_interface.default, (TABLE, torch.ones(1, 4), 1)),
    (
        "a weight's norm, its gradient",
        aten._weight_norm_interface_backward.default,
        (TABLE, TABLE + 1, torch.ones(5, 1), torch.full((5, 1), 3.0), 0),
    ),
    ("a factorised system", aten._cholesky_solve_helper.default, (torch.ones(2, 3, 4), SQUARE.expand(2, 3, 3).clone(), False)),
    ("running maxima", aten._cummax_helper.default, (TABLE, torch.zeros(5, 4), torch.zeros(5, 4, dtype=torch.int64), 1)),
    ("running minima", aten._cummin_helper.default, (TABLE, torch.zeros(5, 4), torch.zeros(5, 4, dtype=torch.int64), 0)),
    (
        "a convolution's gradient",
        aten._slow_conv2d_backward.output_mask,
        (torch.ones(2, 5, 3, 3), PIXELS, torch.ones(5, 3, 2, 2) / 9, [2, 2], [1, 1], [0, 0], [True, True, True]),
    ),
    ("queries, keys and values", aten._transform_bias_rescale_qkv.default, (torch.ones(2, 3, 24) / 3, torch.arange(24.0), 2)),
    ("a batch's statistics", aten.batch_norm_update_stats.default, (PIXELS, torch.zeros(3), torch.ones(3), 0.1)),
    ("a batch's statistics alone", aten.batch_norm_update_stats.default, (PIXELS, None, None, 0.1)),
    ("bags", aten._embedding_bag.default, (TABLE, ENTRIES, BAGS, False, 1, False, None, False, -1)),
    ("spoken labels", CTC, (SPOKEN, LABELS, [3, 2], [2, 1], 0)),
    ("spoken labels, one after the other", CTC, (SPOKEN, LABELS[0].repeat(2)[:3], [3, 2], [2, 1], 0)),
    (
        "their gradient",
        CTC_BACKWARD,
        (torch.ones(2), SPOKEN, LABELS, [3, 2], [2, 1], *aten._ctc_loss(SPOKEN, LABELS, [3, 2], [2, 1]), 0),
    ),
    ("no bags", aten._embedding_bag.default, (TABLE, NOTHING, NOTHING, False, 1, False, None, False, -1)),
    ("bags with spaced weights", aten._embedding_bag.default, (TABLE, ENTRIES, BAGS, False, 0, False, SPACED, False, -1)),
    (
        "bags with spaced weights, without a gradient",
        aten._embedding_bag_forward_only.default,
        (TABLE, ENTRIES, BAGS, False, 0, False, SPACED, False, -1),
    ),
    ("bags with a last offset", aten._embedding_bag.default, (TABLE, ENTRIES, torch.tensor([0, 2, 5]), False, 0, False, None, True, 2)),
    (
        "bags, their gradient",
        aten._embedding_bag_backward.default,
        (BAG_GRADIENT, ENTRIES, BAGS, OF_BAGS, BAG_SIZES, NO_MAXIMA, 5, False, 0, False, SPACED, -1),
    ),
    (
        "bags, their dense gradient",
        aten._embedding_bag_dense_backward.default,
        (BAG_GRADIENT, ENTRIES, OF_BAGS, BAG_SIZES, NO_MAXIMA, 5, False, 0, SPACED, -1),
    ),
    (
        "bags, their weights' gradient",
        aten._embedding_bag_per_sample_weights_backward.default,
        (BAG_GRADIENT, TABLE, ENTRIES, BAGS, OF_BAGS, 0, -1),
    ),
    ("distances of a row, their gradient", aten._pdist_backward.default, (torch.ones(0), torch.ones(1, 3), 2.0, torch.ones(0))),
    ("segments by length", SEGMENTS, (SEGMENTED, "sum", torch.tensor([[1, 5], [2, 4]]), None, None, 1)),
    ("segments by length, unchecked", SEGMENTS, (SEGMENTED, "max", torch.tensor([2, 0]), None, None, 0, True, 0.5)),
    ("segments by offset", SEGMENTS, (SEGMENTED, "mean", None, None, torch.tensor([[0, 1, 6], [0, 4, 6]]), 1)),
    (
        "segments by offset, their gradient",
        aten._segment_reduce_backward.default,
        (torch.ones(2, 6), torch.ones(2, 6), SEGMENTED, "sum", None, torch.tensor([0, 1, 2]), 0, None),
    ),
]


@pytest.mark.parametrize(("op", "values"), [case[1:] for case in VALID], ids=[case[0] for case in VALID])
def test_a_valid_call_keeps_its_contract_and_gives_pytorch_s_result(
    client: Client, device: str, op: Any, values: tuple[Any, ...]
) -> None:
    if op in TOLD_BY_DEVICE and device != "cpu:0":
        pytest.skip("sizes of what it gives for its gradient are not the host's, so programs ask for them")
    expected, answered = client.run(op, *values)
    assert isinstance(client.sync(), stream.Done)
    if op is CTC:  # PyTorch leaves what no path of the shorter sequences reaches unwritten
        assert [made.shape for made in answered] == [made.shape for made in expected]
        answered, expected = answered[0], expected[0]
    torch.testing.assert_close(answered, expected, equal_nan=True)


APART: list[tuple[str, Any, tuple[Any, ...]]] = [
    (
        "a weight and its magnitudes, one number for all",
        aten._weight_norm_interface.default,
        (torch.ones(1).expand(4, 4), torch.full((1,), 3.0).expand(1, 4), 0),
    ),
    (
        "a weight's gradient, one number for all",
        aten._weight_norm_interface_backward.default,
        (torch.ones(1).expand(5, 4), TABLE + 1, torch.ones(1).expand(5), torch.full((1,), 3.0).expand(5), 0),
    ),
    (
        "a norm's weight and bias",
        aten.native_group_norm.default,
        (torch.randn(1, 6, 3), torch.full((1,), 3.0).expand(6), torch.arange(12.0)[::2], 1, 6, 3, 2, 1e-5),
    ),
    (
        "a group's mean and rstd, one number for two",
        aten.native_group_norm_backward.default,
        (SIX, SIX * 2, torch.ones(1).expand(1, 2), torch.ones(1).expand(1, 2), torch.arange(12.0)[::2], 1, 6, 3, 2, [True, True, True]),
    ),
    (
        "attention's columns",
        FLASH,
        (COLUMNS, torch.stack([ROWS, -ROWS], -1)[..., 1], ROWS[..., :1].expand(2, 2, 3, 8), 0.0, False, None, None),
    ),
    (
        "a pool's indices, one number for all",
        aten.fractional_max_pool3d_backward.default,
        (
            torch.rand(2, 3, 2, 2, 2),
            torch.rand(2, 3, 5, 5, 5),
            [2, 2, 2],
            [2, 2, 2],
            torch.tensor([7]).expand(2, 3, 2, 2, 2),
        ),
    ),
    (
        "a norm's mean and rstd, one number for all, and a gradient turned",
        aten.native_layer_norm_backward.default,
        (
            torch.rand(3, 6).t(),
            torch.rand(6, 3),
            [3],
            torch.ones(1).expand(6, 1),
            torch.ones(1).expand(6, 1),
            torch.rand(3),
            None,
            [True, True, False],
        ),
    ),
    (
        "a median of one number for all",
        aten.median.dim_values,
        (torch.rand(1).expand(2, 2, 2), -1, False, torch.zeros(2, 2), torch.zeros(2, 2, dtype=torch.int64)),
    ),
    (
        "a median of rows that are one",
        aten.nanmedian.dim_values,
        (torch.rand(1, 2, 1).expand(2, 2, 2), 0, True, torch.zeros(1, 2, 2), torch.zeros(1, 2, 2, dtype=torch.int64)),
    ),
    (
        "bags' indices",
        aten._embedding_bag.default,
        (TABLE, torch.stack([ENTRIES, ENTRIES + 90], 1)[:, 0], torch.tensor([0, 90, 3, 90])[::2], False, 0, False, None, False, -1),
    ),
]


@pytest.mark.parametrize(("op", "values"), [case[1:] for case in APART], ids=[case[0] for case in APART])
def test_where_a_kernel_would_take_elements_for_neighbours_it_gets_a_copy(
    workers: list[FencedWorker], op: Any, values: tuple[Any, ...]
) -> None:
    """PyTorch's own kernel would read other memory, up to its release 2.15 and, for some, there too."""
    together = tuple(value.contiguous() if isinstance(value, torch.Tensor) else value for value in values)
    answers = [worker.ask(HostileCall(op, given)) for worker in workers for given in (values, together)]
    assert answers[0][0] == "answered", answers[0]
    assert all(answer[1] == answers[0][1] for answer in answers)


LOWEST = -(1 << 63)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_the_lowest_number_divided_by_minus_one_wraps_around_and_ends_no_worker(worker: FencedWorker, dtype: torch.dtype) -> None:
    """As on GPUs; on x86-64 it ends a process natively."""
    lowest = torch.iinfo(dtype).min
    divided = (torch.tensor([lowest, 9], dtype=dtype), torch.tensor([-1, -2], dtype=dtype))
    answer = worker.ask(HostileCall(aten.div.Tensor_mode, (*divided, "trunc")))
    assert answer[0] == "answered", answer
    assert answer[1][0][1] == bytes(torch.tensor([lowest, -4], dtype=dtype).view(torch.uint8).tolist())


@pytest.mark.parametrize(("end", "step"), [(LOWEST, -1), (1, 0.5)])
def test_a_range_whose_length_has_no_result_ends_no_worker(worker: FencedWorker, end: int, step: float) -> None:
    answer = worker.ask(HostileCall(aten.range.out, (0, end, step, torch.zeros(1, dtype=torch.int64))))
    assert answer[0] in ("answered", "failed"), answer


def test_every_contract_is_of_an_operator_that_a_client_may_name() -> None:
    listed = {name.removeprefix("aten::").partition(".")[0] for name, _ in _executor.allowed_operators() if name.startswith("aten::")}
    assert contracts() <= listed


def test_every_term_names_an_argument_of_its_operator() -> None:
    for name, terms in re.findall(r'^\{"(\w+)(?: sparse)?",\s*"([^"]+)"', CONTRACTS.read_text(), re.MULTILINE):
        packet = getattr(aten, name)
        known = {argument.name for kind in packet.overloads() for argument in getattr(packet, kind)._schema.arguments}
        for term in terms.split():
            argument, relation, what = re.fullmatch(r"(\w+?)(?:\[\])?([=~<>#%^{}&|;@$'`?,()])(.+)", term).groups()  # type: ignore[union-attr]
            flag = what.partition(":")[2].lstrip("!").partition("=")[0]
            assert {argument} | ({flag} if flag else set()) <= known, f"{name}: {term}"
            assert what.partition(":")[0].lstrip("0-").rstrip("!") in known or relation not in "<^{}&|;@$'`?(", f"{name}: {term}"
