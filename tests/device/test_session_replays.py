"""What a session link does when its worker dies; the command stream is a recorder."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from forebay.errors import SessionEnded
from forebay_wire import messages
from session_case import WORK, Case, granted

GONE = messages.WorkerLost(message="The worker is gone.")
FORK = messages.Fork(session="s-0", key="ab" * 32, checkpoint=3)


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10.0
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.001)


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


@pytest.mark.parametrize("origin", [None, FORK])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_worker_that_dies_before_its_client_comes_is_not_gone_to(case: Case, origin: messages.Fork | None, is_replaced: bool) -> None:
    """The pool's word comes between its grant and the thread that waited for it, alone or with the next grant."""
    workers = iter(["w-1", "w-2", "w-2"])
    case.pool.answer = lambda message: [granted(message.request, 1, next(workers))] if isinstance(message, messages.Acquire) else []
    case.session.origin = origin
    case.session.flavor()
    link = case.session._link
    assert link is not None
    with link.connecting:
        thread, errors = case.in_thread()
        until(lambda: link.lease is not None)
        case.pool.send(GONE)
        until(lambda: link.bereft is not None)
        if is_replaced:
            case.pool.send(granted(0, 2, next(workers)))
            until(lambda: link.lease is not None)
    thread.join(5)
    assert not thread.is_alive() and not errors
    assert case.stream.names() == ["connect", "lease_opened"] and link.worker == "w-2", "the first one was never gone to"
    assert not link.away and link.bereft is None and case.session.origin is None


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_worker_that_dies_as_its_client_fails_to_reach_it_is_replaced_and_the_pool_hears_so(case: Case, is_replaced: bool) -> None:
    """The pool's word, and its next grant, come while the thread still tries."""
    workers = iter(["w-1", "w-2", "w-2"])
    case.pool.answer = lambda message: [granted(message.request, 1, next(workers))] if isinstance(message, messages.Acquire) else []
    trying, fails = threading.Event(), threading.Event()

    def connect(*_: Any) -> None:
        case.stream.connect = whole
        trying.set()
        assert fails.wait(10)
        raise RuntimeError("the worker ended")

    whole, case.stream.connect = case.stream.connect, connect
    thread, errors = case.in_thread()
    assert trying.wait(10)
    link = case.session._link
    assert link is not None
    case.pool.send(GONE)
    until(lambda: link.away)
    if is_replaced:
        case.pool.send(granted(1, 2, next(workers)))
    fails.set()
    thread.join(5)
    assert not thread.is_alive() and not errors and link.worker == "w-2" and not link.away
    assert case.stream.names() == ["connect", "lease_opened"] and case.pool.of(messages.Arrived)
    until(lambda: link.bereft is None)
    case.pool.send(messages.Leave())
    case.stream.expect(lambda names: "leave" in names)
    case.pool.send(granted(1, 3, "w-3"))
    case.stream.expect(lambda names: names.count("connect") == 2)
    assert "break_off" not in case.stream.names(), "what was told of the first one counts for no other"


def test_a_session_leaves_its_worker_once_no_thread_is_owed_an_answer(case: Case) -> None:
    case.grants()
    case.session.acquire(WORK)
    case.stream.torn = True
    case.pool.send(messages.Leave())
    time.sleep(0.2)
    link = case.session._link
    assert link is not None and not link.away and link.lease is not None and "leave" not in case.stream.names()
    case.stream.torn = False
    case.stream.expect(lambda names: "leave" in names)
    assert link.away and link.lease is None


def test_a_session_that_is_owed_an_answer_and_whose_worker_dies_does_not_leave_the_next_one(case: Case) -> None:
    case.grants()
    case.session.acquire(WORK)
    case.stream.torn = True
    case.pool.send(messages.Leave())
    time.sleep(0.1)
    case.pool.send(GONE, granted(1, 2, "w-2"))
    case.stream.expect(lambda names: names.count("lease_opened") == 2)
    case.stream.torn = False
    time.sleep(0.1)
    assert "leave" not in case.stream.names()


def test_the_grant_of_another_worker_is_word_enough_of_the_death_of_the_one_before(case: Case) -> None:
    case.grants()
    case.session.acquire(WORK)
    case.pool.send(granted(1, 2, "w-2"))
    case.stream.expect(lambda names: names.count("lease_opened") == 2)
    assert case.stream.names() == ["connect", "lease_opened", "break_off", "connect", "lease_opened"]
    case.stream.keeps = False
    case.pool.send(granted(1, 3, "w-3"))
    case.stream.expect(lambda names: "lose" in names)
    assert str(case.stream.calls[-1][1]).startswith("The worker of this session is gone, with what it was sent")


def test_a_forked_process_whose_first_worker_is_replaced_without_a_word_goes_to_the_next(case: Case) -> None:
    workers = iter(["w-1"])
    case.pool.answer = lambda message: [granted(message.request, 1, next(workers))] if isinstance(message, messages.Acquire) else []
    case.session.origin = FORK
    case.stream.connect_error = "the worker ended"
    thread, errors = case.in_thread()
    case.stream.expect(lambda names: "connect" in names)
    case.stream.connect_error = None
    case.pool.send(granted(1, 2, "w-2"))
    thread.join(5)
    assert not thread.is_alive() and not errors
    assert case.stream.names()[:3] == ["connect", "break_off", "connect"] and "lose" not in case.stream.names()


def test_a_connection_that_breaks_while_the_worker_lives_ends_the_session(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.session.WORD_SECONDS_MAX", 0.1)
    case.grants()
    case.session.acquire(WORK)
    case.stream.is_broken = True
    with pytest.raises(SessionEnded, match="The connection to the worker ended"):
        case.session.acquire(WORK)
