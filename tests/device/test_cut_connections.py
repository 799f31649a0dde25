"""A program goes on over connections to its worker that break, bit for bit."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest
from behind_proxy import LOOPBACK, SECONDS_MAX, outcome, outcome_after, served, wait_for
from cutting_proxy import KINDS
from processes import own_address

BEYOND = pytest.mark.skipif(not own_address(), reason="this host has the loopback interface alone")


@pytest.mark.parametrize(
    ("host", "name", "pause"),
    [
        pytest.param(LOOPBACK, "steps", (0.01, 0.1), id="clear-steps", marks=pytest.mark.full_sweep),
        pytest.param(LOOPBACK, "bulk", (0.02, 0.4), id="clear-bulk", marks=pytest.mark.full_sweep),
        pytest.param(own_address(), "steps", (0.01, 0.1), id="tls-steps", marks=[BEYOND, pytest.mark.full_sweep]),
        pytest.param(own_address(), "bulk", (0.02, 0.4), id="tls-bulk", marks=BEYOND),
    ],
)
def test_a_program_whose_connection_is_cut_computes_what_one_computes_that_is_left_alone(
    tmp_path: Path, host: str, name: str, pause: tuple[float, float], full_sweep: bool
) -> None:
    cuts = len(KINDS) * 20 if full_sweep else len(KINDS)
    with served(tmp_path, host=host) as cut:
        program = cut.program(name)
        wait_for(lambda: cut.proxy.passages > 0 or program.poll() is not None)
        cut.proxy.cut_often(cuts, pause)
        wait_for(lambda: sum(cut.proxy.cuts.values()) >= cuts or program.poll() is not None)
        found = outcome_after(program)
        assert set(cut.proxy.cuts) == set(KINDS)
        events = [event["event"] for event in cut.events()]
        assert "idle" not in events and "drained" not in events, "the lease that was open at the beginning goes on"
    with served(tmp_path) as left_alone:
        expected = outcome(left_alone.program(name, found["steps"], left_alone.address))
    assert found["steps"] > 1 and found["found"] == expected["found"]


def test_a_long_cut_is_told_once_and_ctrl_c_works_meanwhile(tmp_path: Path) -> None:
    with served(tmp_path) as cut:
        program = cut.program("steps")
        wait_for(lambda: cut.proxy.passages > 0)
        time.sleep(1)
        cut.proxy.cut("away", 3.5)
        found = outcome_after_with_words(program)
        assert found.count("forebay: the connection to the worker broke; reconnecting") == 1
    with served(tmp_path) as cut:
        program = cut.program("steps")
        wait_for(lambda: cut.proxy.passages > 0)
        time.sleep(1)
        cut.proxy.close()
        time.sleep(0.3)
        program.send_signal(signal.SIGINT)
        _, said = program.communicate(timeout=5)
        assert "KeyboardInterrupt" in said


def outcome_after_with_words(program: subprocess.Popen[str]) -> str:
    _, said = program.communicate("\n", timeout=SECONDS_MAX)
    assert program.returncode == 0, said
    return said


def test_a_worker_waits_no_longer_than_it_says(tmp_path: Path) -> None:
    with served(tmp_path, grace=1.0) as cut:
        program = cut.program("steps")
        wait_for(lambda: cut.proxy.passages > 0)
        time.sleep(0.5)
        cut.proxy.close()
        began = time.monotonic()
        events = [event["event"] for event in cut.events()]
        assert 0.5 < time.monotonic() - began < 5
        assert events[-2:] == ["client_away", "client_gone"]
        _, said = program.communicate(timeout=10)
        assert "the worker was not reached for 1 seconds" in said


def test_a_process_that_is_killed_is_away_for_its_worker(tmp_path: Path) -> None:
    """The pool, to which its link broke as well, tells that it is gone."""
    with served(tmp_path, grace=0.5) as cut:
        program = cut.program("steps")
        wait_for(lambda: cut.proxy.passages > 0)
        time.sleep(0.5)
        program.kill()
        program.communicate()
        assert [event["event"] for event in cut.events()][-2:] == ["client_away", "client_gone"]
