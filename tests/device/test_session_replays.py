"""What a session link does when its worker dies; the command stream is a recorder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from forebay.errors import SessionEnded
from forebay_wire import messages
from session_case import WORK, Case, granted

GONE = messages.WorkerLost(message="The worker is gone.")


@pytest.fixture
def case(scripted_pool: Any) -> Iterator[Case]:
    found = Case(scripted_pool)
    yield found
    found.session.close()


def test_a_worker_that_dies_is_replaced_and_the_pool_hears_when_its_work_is_done_again(case: Case) -> None:
    case.grants()
    case.session.acquire(WORK)
    case.pool.send(GONE, granted(1, 2, "w-2"))
    case.stream.expect(lambda names: names.count("connect") == 2)
    assert case.pool.of(messages.Arrived)[0].epoch == 2
    case.stream.expect(lambda names: names.count("lease_opened") == 2)
    assert case.stream.names() == ["connect", "lease_opened", "break_off", "connect", "lease_opened"]
    assert "forebay: The worker is gone." in case.stderr.getvalue() and "otherwise" not in case.stderr.getvalue()


def test_results_that_come_out_otherwise_are_said(case: Case) -> None:
    case.grants()
    case.session.acquire(WORK)
    case.stream.differences = (2, 5)
    case.pool.send(GONE, granted(1, 2, "w-2"))
    case.pool.of(messages.Arrived)
    assert "2 of 5 results that were read before came out otherwise" in case.stderr.getvalue()


def test_a_session_whose_worker_dies_ends_if_what_it_was_sent_is_not_here(case: Case) -> None:
    case.grants()
    case.session.acquire(WORK)
    case.stream.keeps = False
    case.pool.send(GONE)
    case.stream.expect(lambda names: "lose" in names)
    assert str(case.stream.calls[-1][1]).startswith("The worker is gone. It cannot be done again")


def test_a_thread_whose_worker_is_gone_waits_until_the_pool_knows_it_too(case: Case) -> None:
    case.grants()
    case.session.acquire(WORK)
    case.stream.is_broken = True
    thread, errors = case.in_thread()
    thread.join(0.3)
    assert thread.is_alive() and len(case.pool.of(messages.Acquire)) == 1
    case.stream.is_broken = False
    case.pool.send(GONE, granted(1, 2, "w-2"))
    thread.join(5)
    assert not thread.is_alive() and not errors


def test_a_connection_that_breaks_while_the_worker_lives_ends_the_session(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.session.WORD_SECONDS_MAX", 0.1)
    case.grants()
    case.session.acquire(WORK)
    case.stream.is_broken = True
    with pytest.raises(SessionEnded, match="The connection to the worker ended"):
        case.session.acquire(WORK)
