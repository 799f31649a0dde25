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
from forebay_worker import descriptions, graphs
from hypothesis import HealthCheck, Phase, given, settings
from random_segments import Program, programs
from segment_rounds import COMPILED, Rounds
from test_graphs import check

LENGTH = 26
"""Statements of a program: most are long enough for a library."""
PROGRAMS, PROGRAMS_FULL = 15, 2000
SECONDS_MAX = 1200
ROUNDING = {torch.float32: 2.0**-11, torch.bfloat16: 2.0**-3}
"""Of the largest value, by the dtype: 32 times what a proof takes for rounding, as it does where tier 1 rounds as well."""


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


def is_near(result: torch.Tensor, expected: torch.Tensor, rounding: float) -> bool:
    """Whole numbers and truths are the same; what is no number is none."""
    if not result.is_floating_point():
        return torch.equal(result, expected)
    finite = expected.isfinite()
    same = torch.equal(result[~finite].nan_to_num(), expected[~finite].nan_to_num())
    one, other = result.double()[finite], expected.double()[finite]
    return same and (one.numel() == 0 or bool((one - other).abs().max() <= other.abs().max() * rounding))


def differing(found: dict[int, torch.Tensor], expected: dict[int, torch.Tensor], rounding: float) -> list[int]:
    assert found.keys() == expected.keys()
    return [number for number in found if not is_near(found[number], expected[number], rounding)]


@pytest.mark.timeout(24 * 3600)
def test_what_a_worker_describes_is_what_a_random_program_does(session: Callable[..., Any], tmp_path: Path, full_sweep: bool) -> None:
    """Each is carried out in full, as what comes again, and by the graph of what the worker's compiler is told."""
    client = session("standin_compilers_worker.py")
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
            check(program, description, list(graphs.build(description).module(*program.inputs(description))))
        rounds.close()

    run()
    print(dict(reasons.most_common()))
    assert reasons[REFUSED] >= reasons.total() / 3


@pytest.mark.full_sweep
@pytest.mark.timeout(24 * 3600)
def test_libraries_that_serve_random_programs_give_what_came_in_full(session: Callable[..., Any], pytestconfig: pytest.Config) -> None:
    """One that a proof bars is a mistake of the compiler, and is counted; one that serves is right, also after a round that breaks off."""
    client, reasons = session("hurried_compilers_worker.py"), Counter[str]()

    @examples(pytestconfig.getoption("--compiled-programs"))
    @given(programs(LENGTH, computes_indices=False))
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
