"""Random programs that come again on a worker: what it describes is what they do, and a library that it lets serve gives their results."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from compiler_standin import DESCRIBED, REFUSED
from conftest import StartWorker
from forebay_wire import stream
from forebay_worker import descriptions
from forebay_worker.descriptions import Guard
from hypothesis import HealthCheck, Phase, given, settings
from random_segments import Program, programs, reading_and_writing_by_indices
from segment_rounds import COMPILED, DETERMINISTIC, Rounds
from test_graphs import LAST_BITS, check_graph

aten = torch.ops.aten
LENGTH = 26
"""Statements of a program: most are long enough for a library."""
PROGRAMS, PROGRAMS_FULL = 15, 2000
SECONDS_MAX = 1200
ROUNDING = {torch.float32: 2.0**-11, torch.bfloat16: 2.0**-3}
"""Of the largest value, by the dtype: 32 times what a proof takes for rounding, as it does where tier 1 rounds as well."""
STANDIN, HURRIED = "standin_compilers_worker.py", "hurried_compilers_worker.py"


def examples(count: int) -> Callable[[Any], Any]:
    """The first that is wrong, as it is: to look for smaller ones takes a worker long."""
    phases = (Phase.explicit, Phase.generate)
    return lambda test: settings(deadline=None, max_examples=count, phases=phases, suppress_health_check=list(HealthCheck))(test)


@pytest.fixture
def session(start_worker: StartWorker, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Makes a client whose worker makes libraries of all that comes again."""
    clients: list[Any] = []

    def make(program: str) -> Any:
        options = ("--libraries", str(tmp_path / "libraries"), "--compile-after", "0")
        worker = start_worker(*options, program=(str(Path(__file__).with_name(program)),))
        clients.append(worker.connect())
        assert isinstance(clients[-1].hello(), stream.Welcome)
        clients[-1].send(stream.Settings(COMPILED))
        return clients[-1]

    yield make
    for client in clients:
        client.socket.close()


def is_near(result: torch.Tensor, expected: torch.Tensor, rounding: float, difference: float) -> bool:
    """Whole numbers and truths are the same; what is no number is none. The rest differs by rounding, of the largest of its values, or by
    less than that difference."""
    if not result.is_floating_point():
        return torch.equal(result, expected)
    finite = expected.isfinite()
    same = torch.equal(result[~finite].nan_to_num(), expected[~finite].nan_to_num())
    one, other = result.double()[finite], expected.double()[finite]
    return same and (one.numel() == 0 or bool((one - other).abs().max() <= max(other.abs().max() * rounding, difference)))


def differing(found: dict[int, torch.Tensor], expected: dict[int, torch.Tensor], rounding: float) -> list[int]:
    """What is left between larger numbers may differ by their last bits."""
    assert found.keys() == expected.keys()
    largest = max((float(one.abs().nan_to_num(0, 0).max()) for one in expected.values() if one.dtype == torch.float32), default=0.0)
    difference = largest * LAST_BITS if rounding else 0.0
    return [number for number in found if not is_near(found[number], expected[number], rounding, difference)]


@pytest.mark.timeout(24 * 3600)
def test_what_a_worker_describes_is_what_a_random_program_does(session: Callable[..., Any], tmp_path: Path, full_sweep: bool) -> None:
    """Each is carried out in full, as what comes again, and by the graph of what the worker's compiler is told."""
    client = session(STANDIN)
    told, reasons = tmp_path / DESCRIBED, Counter[str]()

    @examples(PROGRAMS_FULL if full_sweep else PROGRAMS)
    @given(programs(LENGTH))
    def run(program: Program) -> None:
        before = len(list(told.glob("[0-9]*")))
        for note in (tmp_path / "libraries").glob("*.json"):
            note.unlink()  # the same program may come twice, and be told twice
        rounds = Rounds(client, program)
        rounds.round()
        in_full = rounds.outputs()
        _, why = rounds.settle(SECONDS_MAX)
        reasons[re.sub(r"\d+", "N", why)] += 1
        assert not differing(rounds.outputs(), in_full, 0), "what comes again is bit for bit what came in full"
        if why == REFUSED:
            description = descriptions.read((told / str(before)).read_bytes())
            check_graph(program, description)
        rounds.close()

    run()
    print(dict(reasons.most_common()))
    assert reasons[REFUSED] >= reasons.total() / 3


@pytest.mark.full_sweep
@pytest.mark.timeout(24 * 3600)
def test_libraries_that_serve_random_programs_give_what_came_in_full(session: Callable[..., Any], pytestconfig: pytest.Config) -> None:
    """One that a proof bars is a mistake of the compiler, and is counted; one that serves is right, also after a round that breaks off."""
    client, reasons = session(HURRIED), Counter[str]()

    @examples(pytestconfig.getoption("--compiled-programs"))
    @given(programs(LENGTH))
    def run(program: Program) -> None:
        rounds = Rounds(client, program)
        rounds.round()
        in_full = rounds.outputs()
        tier, why = rounds.settle(SECONDS_MAX)
        reasons["serves" if tier == 2 else re.sub(r"\d[\d.e+-]*", "N", why)] += 1
        for steps in (None, len(program.sent) // 2, None, 1, None):
            rounds.round(steps=steps)
            rounding = 0 if tier < 2 else ROUNDING[program.lowest]
            assert steps or not differing(rounds.outputs(), in_full, rounding), program.sent
        rounds.close()

    run()
    print(dict(reasons.most_common()))
    assert sum(reasons[why] for why in reasons if why == "serves" or " takes " in why) >= reasons.total() / 2, "proofs let most pass"


@pytest.mark.full_sweep
@pytest.mark.timeout(SECONDS_MAX)
def test_what_a_library_computes_once_is_several_results_with_memory_of_their_own(session: Callable[..., Any]) -> None:
    program = Program()
    x = program.given(torch.randn(64, 64))
    results = [program.run(aten.add.Tensor, x, x, 0.5) for _ in range(LENGTH)]
    program.run(aten.mul_.Tensor, results[0], 0.5)
    rounds = Rounds(session(HURRIED), program)
    rounds.round()
    in_full = rounds.outputs()
    tier, why = rounds.settle(SECONDS_MAX)
    assert tier == 2 or " takes " in why, why
    rounds.round()
    assert not differing(rounds.outputs(), in_full, ROUNDING[torch.float32])


def described(client: Any, program: Program, folder: Path) -> descriptions.Description:
    """As the worker's compiler is told of it."""
    rounds = Rounds(client, program)
    assert rounds.settle(SECONDS_MAX)[1] == "none is made here"
    return descriptions.read((folder / DESCRIBED / "0").read_bytes())


def test_a_library_looks_at_the_indices_that_its_segment_computes_and_at_probabilities(session: Callable[..., Any], tmp_path: Path) -> None:
    program = Program()
    x, likely, shares = (program.given(torch.rand(4, 6)) for _ in range(3))
    image, given = program.given(torch.rand(1, 1, 8, 8)), program.given(torch.tensor([0, 3, 1, 2]))
    computed = program.run(aten.mul.Tensor, given, 1)
    pooled, where = program.run(aten.max_pool2d_with_indices.default, image, [2, 2], [2, 2], [0, 0], [1, 1], False)
    windows = ([2, 2], [2, 2], [0, 0], [1, 1], False)
    told: list[tuple[Any, tuple[Any, ...], tuple[Guard, ...]]] = [
        (aten.index_select.default, (x, 0, given), ()),
        (aten.nll_loss_forward.default, (likely, given, None, 1, -100), ()),
        (aten.index_select.default, (x, 0, computed), (Guard(2, 0, 0, 3, None),)),
        (aten.index.Tensor, (x, [None, computed]), (Guard(1, 2, -6, 5, None),)),
        (aten.index.Tensor, (x, [given, computed]), (Guard(1, 2, -6, 5, None),)),
        (aten.take.default, (x, computed), (Guard(1, 0, -24, 23, None),)),
        (aten._index_put_impl_.default, (x, [computed], likely, True), (Guard(1, 1, -4, 3, None),)),
        (aten.nll_loss_forward.default, (likely, computed, None, 1, 9), (Guard(1, 0, 0, 5, 9),)),
        (aten.max_pool2d_with_indices_backward.default, (pooled, image, *windows, where), (Guard(7, 0, 0, 63, None),)),
        (aten.binary_cross_entropy.default, (likely, shares, None, 1), (Guard(0, 0, 0, 1, None), Guard(1, 0, 0, 1, None))),
    ]
    before = len(program.calls)
    for operator, arguments, _ in told:
        program.run(operator, *arguments)
    for _ in range(12):
        program.run(aten.relu.default, x)
    description = described(session(STANDIN), program, tmp_path)
    assert [call.guards for call in description.calls[before : before + len(told)]] == [guards for _, _, guards in told]
    assert description.tells_astray


@pytest.mark.parametrize(
    ("operator", "numbers", "dtype"),
    [
        (aten.normal_.default, (0.5, 2.0), torch.float32),
        (aten.normal_.default, (0.0, 1.0), torch.bfloat16),
        (aten.uniform_.default, (-1.0, 3.0), torch.float64),
        (aten.bernoulli_.float, (0.3,), torch.float32),
        (aten.random_.to, (7,), torch.int64),
        (aten.exponential_.default, (2.0,), torch.float32),
    ],
)
@pytest.mark.parametrize("part", [lambda whole: whole, lambda whole: whole.t(), lambda whole: whole[3:, 1:20:2]])
def test_a_segment_that_fills_tensors_with_what_it_draws_is_described(
    session: Callable[..., Any], tmp_path: Path, operator: Any, numbers: tuple[Any, ...], dtype: torch.dtype, part: Any
) -> None:
    program = Program()
    whole = program.given(torch.zeros(8, 24, dtype=dtype))
    for _ in range(20):
        program.run(operator, part(whole), *numbers)
    description = described(session(STANDIN), program, tmp_path)
    assert description.draws == 20
    check_graph(program, description)


def test_a_segment_that_draws_permutations_is_described(session: Callable[..., Any], tmp_path: Path) -> None:
    program = Program()
    x, places = program.given(torch.rand(8, 4)), program.given(torch.zeros(8, dtype=torch.int64))
    for _ in range(10):
        program.run(aten.randperm.generator_out, 8, None, places)
        program.run(aten.index_select.default, x, 0, places, guards=(Guard(2, 0, 0, 7, None),))
    description = described(session(STANDIN), program, tmp_path)
    assert (description.draws, sum(len(call.guards) for call in description.calls)) == (10, 10)
    check_graph(program, description)


def reading_batches(writes: bool = False) -> Program:
    """Of a data set, another one each time, and their labels; the loss is kept in a record. ``writes``: to the data set, too."""
    program = Program()
    x, weights = program.given_data(torch.randn(512, 32), 32 * 64), program.given(torch.randn(32, 48))
    scores = program.run(aten.mm.default, x[:256], weights)
    labels = program.given_data(torch.arange(512) % 48, 64)
    program.run(aten.mul.Tensor, labels[64:320], 2)
    for start in (0, 64, 96, 128):
        for _ in range(8):
            scores = program.run(aten.add.Tensor, program.run(aten.mul.Tensor, scores, 0.25), scores, 0.5)
        likely = program.run(aten._log_softmax.default, scores, 1, False)
        loss, _ = program.run(aten.nll_loss_forward.default, likely, labels[start : start + 256], None, 1, -100)
        step = program.run(aten.mm.default, x[start : start + 256].t(), likely)
        program.run(aten.add_.Tensor, weights, step, 2.0**-12)
        program.run(aten.relu.default, x[::4, 1:9][:64])
        scores = program.run(aten.mm.default, x[start : start + 256], weights)
    program.run(aten.copy_.default, program.given_data(torch.zeros(16), 4)[3], loss)
    if writes:
        program.run(aten.relu_.default, x[:8])
    return program


def test_tensors_over_data_that_lie_elsewhere_each_time_are_inputs_and_outputs(session: Callable[..., Any], tmp_path: Path) -> None:
    program = reading_batches()
    description = described(session(STANDIN), program, tmp_path)
    assert description.windows == program.description().windows
    assert (len(description.windows), sum(place.is_input for place in description.places)) == (19, 1), "the weights alone as a whole"
    assert not description.tells_astray, "labels that are there before are looked at before"
    check_graph(program, description)


def test_a_segment_that_writes_to_data_of_which_it_reads_other_parts_stays_as_it_is(session: Callable[..., Any]) -> None:
    rounds = Rounds(session(STANDIN), reading_batches(writes=True))
    assert rounds.settle(SECONDS_MAX) == (1, "it writes to a storage, and looks at another part of it from time to time")


@pytest.mark.full_sweep
@pytest.mark.timeout(2 * SECONDS_MAX)
def test_a_library_takes_batches_from_where_they_lie(session: Callable[..., Any], tmp_path: Path) -> None:
    """At first they lie at the same place each time. A label that leads nowhere is left to tier 1."""
    program = reading_batches()
    plain, served = (Rounds(session(HURRIED), program) for _ in range(2))
    plain.client.send(stream.Settings(DETERMINISTIC))
    for _ in range(3):
        served.round()
    tier, why = served.settle(SECONDS_MAX, moves=False)
    assert tier == 2, why
    served.round(1.25)
    tier, why = served.settle(SECONDS_MAX)
    assert (tier, len(list((tmp_path / "libraries").glob("*.so")))) == (2, 2), why
    labels = next(whole for whole in program.before.values() if whole.dtype == torch.int64)
    for factor, wrong in ((1.0, 0), (1.25, 0), (1.25, 48), (0.75, 0), (1.25, -1), (1.0, 0)):
        labels[150] = wrong
        expected, found = (rounds.round(factor, fails=True) for rounds in (plain, served))
        assert isinstance(expected, stream.Failure) == isinstance(found, stream.Failure) == (wrong not in range(48))
        if isinstance(expected, stream.Done):
            assert not differing(served.outputs(), plain.outputs(), ROUNDING[torch.float32])
    assert served.standing()[0] == 2
    program.data = dict.fromkeys(program.data, 1 << 40)
    found = served.round(1.25, fails=True)
    assert isinstance(found, stream.Refused) and "of a storage of" in found.message, "no library looks behind a storage's end"


@pytest.mark.full_sweep
def test_indices_that_lead_nowhere_are_left_to_tier_1_which_says_so(session: Callable[..., Any]) -> None:
    """A program whose indices were right as long as its library was made, and are not any more."""
    program = reading_and_writing_by_indices()
    plain, served = (Rounds(session(HURRIED), program) for _ in range(2))
    plain.client.send(stream.Settings(DETERMINISTIC))
    tier, why = served.settle(SECONDS_MAX)
    assert tier == 2, why
    (places,) = [number for number, whole in program.before.items() if whole.dtype == torch.int64]
    right = program.before[places]
    for wrong in (8, -1, 1 << 62, -(1 << 62), 1 << 32, 10_000, -9):
        program.before[places] = right.clone().index_fill_(0, torch.tensor(wrong & 7), wrong)
        expected, found = plain.round(fails=True), served.round(fails=True)
        assert isinstance(expected, stream.Failure) and isinstance(found, stream.Failure)
        assert (found.code, found.message) == (expected.code, expected.message)
        program.before[places] = right.flip(0)
        plain.round()
        served.round()
        assert not differing(served.outputs(), plain.outputs(), ROUNDING[torch.float32])
    assert served.standing()[0] == 2
