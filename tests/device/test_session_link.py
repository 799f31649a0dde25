"""The session link against a real WebSocket server; the command stream is a recorder."""

from __future__ import annotations

import io
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from forebay import session as session_module
from forebay.errors import PoolRefused, PoolUnreachable, SessionEnded
from forebay.journal import Journal
from forebay.notebook import notice
from forebay.service import Service, pool_link
from forebay.session import Session
from forebay.texts import Texts
from forebay.waiting import WaitingLine
from forebay_wire import messages
from session_case import TOKEN, WAIT_SECONDS_MAX, WORK, Case, RecordedStream, closed, granted
from websockets.sync.client import ClientConnection


@pytest.fixture
def case(scripted_pool: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    monkeypatch.setattr(session_module, "DRAIN_SECONDS_MAX", 1.0)  # some leave a lease open
    found = Case(scripted_pool)
    yield found
    found.session.close()


def test_the_flavor_is_known_without_a_lease(case: Case) -> None:
    assert case.session.flavor().name == "dev.1gb"
    hello = case.pool.of(messages.Hello)[0]
    assert (hello.torch, hello.flavor, hello.protocol) == ("2.13.0+cpu", None, messages.PROTOCOL)
    assert [type(message) for message in case.pool.received] == [messages.Hello]
    assert case.stream.calls == []


def test_a_lease_connects_to_its_worker_once_and_asks_with_the_span(case: Case) -> None:
    case.grants()
    case.session.acquire(WORK)
    case.pool.send(closed(1))
    case.stream.expect(lambda names: "lease_closed" in names)
    case.session.acquire(WORK)
    assert case.stream.calls == [
        ("connect", "unix:/tmp/worker.sock", bytes.fromhex("ab" * 32)),
        ("lease_opened",),
        ("lease_closed",),
        ("lease_opened",),
    ]
    first, second = case.pool.of(messages.Acquire, 2)
    assert first.span == messages.Span(id="span-1", kind="cell", label="digits.ipynb", cell=3)
    assert first.request != second.request


@pytest.mark.parametrize("runtimes", [None, ("torch",), ("torch", "xla", "later")])
def test_what_a_request_is_for_is_said_to_pools_that_know_of_runtimes(case: Case, runtimes: tuple[str, ...] | None) -> None:
    flavor = messages.Flavor(name="dev.1gb", memory_bytes=2**30, runtimes=runtimes)
    case.grants()
    grants = case.pool.answer
    opened = [messages.SessionOpened(session="s-1", flavor=flavor, heartbeat_seconds=5.0)]
    case.pool.answer = lambda message: opened if isinstance(message, messages.Hello) else grants(message)
    case.session.acquire(WORK)
    case.pool.send(closed(1))
    case.stream.expect(lambda names: "lease_closed" in names)
    case.session.takes_programs = True
    case.session.acquire(WORK)
    asked = [message.runtime for message in case.pool.of(messages.Acquire, 2)]
    assert asked == ([None, None] if runtimes is None else ["torch", "xla"])


def test_a_lease_that_another_thread_got_in_the_meantime_is_shared(case: Case) -> None:
    case.grants()
    case.session.acquire(WORK)
    case.session.acquire(WORK)
    assert len(case.pool.of(messages.Acquire)) == 1
    assert case.stream.names() == ["connect", "lease_opened", "lease_opened"]


HELD = messages.Cause(code="one_held", values={"device": "a/cpu:0", "flavor": "dev.1gb"})
HELD_ENGLISH = "The one device that serves dev.1gb is held."


@pytest.mark.parametrize("tells_causes", [True, False], ids=["pool of today", "pool without causes"])
def test_people_read_the_pools_reasons_whether_they_come_as_causes_or_in_english(scripted_pool: Any, tells_causes: bool) -> None:
    scripted_pool.tells_causes = tells_causes
    case = Case(scripted_pool, 0.05)
    thread, errors = case.in_thread()
    request = case.pool.of(messages.Acquire)[0].request
    case.pool.send(messages.Queued(request=request, position=1, reason=HELD_ENGLISH, cause=HELD))
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while HELD_ENGLISH not in case.stderr.getvalue():
        assert time.monotonic() < deadline, case.stderr.getvalue()
        time.sleep(0.01)
    unfit = messages.Cause(code="holds_too_much", values={"held_bytes": 2**31, "flavor": "dev.1gb", "flavor_bytes": 2**30})
    case.pool.send(messages.Refused(request=request, code="not_servable", message=str(unfit.said()), cause=unfit))
    thread.join(WAIT_SECONDS_MAX)
    (error,) = errors
    assert isinstance(error, PoolRefused) and error.code == "not_servable"
    assert str(error) == "This session holds 2.0 GiB, and dev.1gb has 1.0 GiB; free tensors first."
    assert error.cause == (unfit if tells_causes else None)
    case.session.close()


@pytest.mark.parametrize("tells_causes", [True, False], ids=["pool of today", "pool without causes"])
def test_a_session_that_is_lost_ends_with_the_pools_reason(scripted_pool: Any, tells_causes: bool) -> None:
    scripted_pool.tells_causes = tells_causes
    case = Case(scripted_pool)
    case.grants()
    case.session.acquire(WORK)
    ended = messages.Cause(code="ended_by_operator", values={"operator": "olga"})
    case.pool.send(messages.SessionLost(message="An operator (olga) ended this session.", cause=ended))
    case.stream.expect(lambda names: "lose" in names)
    assert case.stream.calls[-1] == ("lose", "An operator (olga) ended this session.")
    case.session.close()


def test_threads_that_wait_at_the_same_time_share_one_request(case: Case) -> None:
    first, first_errors = case.in_thread()
    request = case.pool.of(messages.Acquire)[0].request
    second, second_errors = case.in_thread()
    case.pool.send(granted(request, 1))
    first.join(WAIT_SECONDS_MAX)
    second.join(WAIT_SECONDS_MAX)
    assert (first_errors, second_errors) == ([], [])
    assert case.stream.names().count("connect") == 1
    assert len(case.pool.of(messages.Acquire)) == 1


def test_after_a_mark_new_work_asks_for_a_new_lease(case: Case) -> None:
    case.grants()
    case.session.acquire(WORK)
    case.session.marked()
    case.session.acquire(WORK)
    assert len(case.pool.of(messages.Acquire, 2)) == 2
    case.pool.send(closed(1, "drained"), messages.Queued(request=99, position=1, reason="of nobody"), closed(2))
    case.stream.expect(lambda names: "lease_closed" in names)
    assert case.stream.names().count("lease_closed") == 1, "the drained lease was not the current one"


def test_a_short_wait_says_nothing(case: Case) -> None:
    case.pool.answer = lambda message: (
        [messages.Queued(request=message.request, position=1, reason="starting a worker"), granted(message.request, 1)]
        if isinstance(message, messages.Acquire)
        else []
    )
    case.session.acquire(WORK)
    assert case.stderr.getvalue() == ""


def test_a_long_wait_says_position_and_reason_once_per_change(scripted_pool: Any) -> None:
    case = Case(scripted_pool, quiet_seconds=0.0)
    thread, errors = case.in_thread()
    request = case.pool.of(messages.Acquire)[0].request

    def await_line(text: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while text not in case.stderr.getvalue() and time.monotonic() < deadline:
            time.sleep(0.001)

    busy = "all devices of dev.1gb are held"
    case.pool.send(messages.Queued(request=request, position=2, reason=busy))
    await_line("2nd in line")
    case.pool.send(messages.Queued(request=request, position=2, reason=busy), messages.Queued(request=request, position=1, reason=busy))
    await_line("next in line")
    case.pool.send(granted(request, 1))
    thread.join(WAIT_SECONDS_MAX)
    assert errors == []
    lines = case.stderr.getvalue().splitlines()
    assert lines[:2] == [f"forebay: waiting for dev.1gb, {place}: {busy}" for place in ("2nd in line", "next in line")]
    assert lines[2].startswith("forebay: granted after ") and len(lines) == 3
    case.session.close()


def test_ctrl_c_stops_the_wait_takes_the_request_back_and_ignores_a_late_grant(case: Case) -> None:
    def press_stop() -> None:
        case.pool.of(messages.Acquire)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    stopper = threading.Thread(target=press_stop)
    stopper.start()
    with pytest.raises(KeyboardInterrupt):
        case.session.acquire(WORK)
    stopper.join()
    cancelled = case.pool.of(messages.Cancel)[0]
    case.pool.send(granted(cancelled.request, 1), closed(1, "released"))
    case.grants()
    case.session.acquire(WORK)
    assert case.stream.names() == ["connect", "lease_opened"]


def test_a_refusal_is_the_pools_sentence_and_the_next_try_asks_again(case: Case) -> None:
    sentence = "The budget of acme is used up; ask its owner to raise it."
    case.pool.answer = lambda message: (
        [messages.Refused(request=message.request, code="budget", message=sentence)] if isinstance(message, messages.Acquire) else []
    )
    with pytest.raises(PoolRefused, match="used up") as refused:
        case.session.acquire(WORK)
    assert refused.value.code == "budget"
    case.grants()
    case.session.acquire(WORK)
    assert case.stream.names() == ["connect", "lease_opened"]


def test_a_refused_hello_is_the_pools_sentence(case: Case) -> None:
    sentence = "There is no flavor tiny; the nearest is dev.1gb."
    case.pool.answer = lambda message: [messages.Refused(code="unknown_flavor", message=sentence)]
    with pytest.raises(PoolRefused, match="no flavor tiny"):
        case.session.flavor()


def test_a_grant_that_the_pool_made_by_itself_opens_the_lease_again(case: Case) -> None:
    case.grants()
    case.session.acquire(WORK)
    case.pool.send(closed(1), granted(0, 2))
    case.stream.expect(lambda names: names[-2:] == ["lease_closed", "lease_opened"])
    case.pool.send(closed(2))
    case.stream.expect(lambda names: names[-1] == "lease_closed")


def test_a_wait_that_the_pool_began_by_itself_is_said_too(case: Case) -> None:
    case.grants()
    case.session.acquire(WORK)
    waits = messages.Queued(request=0, position=1, reason="All devices are held.", estimate=estimate(20.0, 39.6))
    case.pool.send(closed(1), waits, granted(0, 2))
    case.stream.expect(lambda names: names[-2:] == ["lease_closed", "lease_opened"])
    waiting, done = case.stderr.getvalue().splitlines()
    assert waiting == "forebay: waiting for dev.1gb, next in line: All devices are held. About 40 s."
    assert done.startswith("forebay: granted after ")


def test_a_lease_that_is_revoked_is_announced_and_what_it_left_undone_is_waited_for(case: Case) -> None:
    case.grants()
    case.session.acquire(WORK)
    case.session.marked()
    case.pool.send(messages.Revoking(epoch=1, seconds=10, reason="An operator takes the lease back."), closed(1, "revoked"))
    case.pool.send(granted(0, 2))
    case.stream.expect(lambda names: names[-1] == "lease_opened")
    closing = threading.Thread(target=case.session.close)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive(), "the marked work is not done yet"
    case.pool.send(closed(2, "drained"))
    closing.join(WAIT_SECONDS_MAX)
    assert not closing.is_alive()
    announced = "forebay: the lease is taken back in 10 s, and the work waits again: An operator takes the lease back."
    assert case.stderr.getvalue().splitlines()[0] == announced


def estimate(low: float, high: float, running: int = 0, running_seconds: float = 0.0) -> messages.Estimate:
    told = {"low_seconds": low, "middle_seconds": (low + high) / 2, "high_seconds": high}
    return messages.Estimate(running=running, running_seconds=running_seconds, **told)


@pytest.mark.parametrize(
    ("queued", "line"),
    [
        ({"position": 3, "estimate": estimate(0.1, 0.2)}, "waiting for dev.1gb, 3rd in line: Held. A few seconds."),
        ({"position": 11, "estimate": estimate(0.5, 241.0)}, "waiting for dev.1gb, 11th in line: Held. About 4 min."),
        ({"position": 122, "estimate": estimate(61.0, 9001.0)}, "waiting for dev.1gb, 122nd in line: Held. About 3 h."),
        ({"position": 1, "code": "starting"}, "waiting for dev.1gb: Held."),
    ],
)
def test_a_place_in_the_line_is_said_in_words(queued: dict[str, Any], line: str) -> None:
    said = io.StringIO()
    WaitingLine(said).show("dev.1gb", messages.Queued(request=1, reason="Held.", **queued))
    assert said.getvalue() == f"forebay: {line}\n"


class Clock:
    """Stands in the place of time's module where a line reads it."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize("terminal", [True, False])
def test_an_estimate_counts_down_and_a_longer_wait_is_said_to_be_one(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    clock, said = Clock(), io.StringIO()
    monkeypatch.setattr("forebay.waiting.time", clock)
    monkeypatch.setattr(said, "isatty", lambda: terminal)
    line = WaitingLine(said)
    told = messages.Queued(request=1, position=1, reason="Held.", estimate=estimate(5.0, 9.0, 2, 30.0))
    texts = []
    for _ in range(61):
        before = len(said.getvalue())
        line.show("dev.1gb", told)
        texts.append(said.getvalue()[before:].strip().removeprefix("forebay: waiting for dev.1gb, next in line: Held. "))
        clock.now += 1.0
    assert (texts[0], texts[9]) == ("About 10 s.", "This is longer than usual: the 2 before you have run for up to 39 s.")
    if terminal:
        assert (texts[2], texts[5], "A few seconds." in texts) == ("", "", True)
        assert texts[60] == "This is longer than usual: the 2 before you have run for up to 1 min 30 s."
    else:
        assert [place for place, text in enumerate(texts) if text] == [0, 9], "a log gets no line a second"


def test_a_line_that_is_told_anew_begins_to_count_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, said = Clock(), io.StringIO()
    monkeypatch.setattr("forebay.waiting.time", clock)
    line = WaitingLine(said)
    for low, high in ((5.0, 9.0), (20.0, 40.0)):
        line.show("dev.1gb", messages.Queued(request=1, position=1, reason="Held.", estimate=estimate(low, high)))
        clock.now += 30.0
    assert [text.split("Held. ")[1] for text in said.getvalue().splitlines()] == ["About 10 s.", "About 40 s."]


def test_a_wait_in_a_program_counts_down_by_itself(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.session.TICK_SECONDS", 0.05)
    waits, errors = case.in_thread()
    (asked,) = case.pool.of(messages.Acquire)
    assert isinstance(asked, messages.Acquire)
    case.pool.send(messages.Queued(request=asked.request, position=1, reason="Held.", estimate=estimate(0.1, 0.2, 1, 80.0)))
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while "longer than usual" not in case.stderr.getvalue() and time.monotonic() < deadline:
        time.sleep(0.02)
    case.pool.send(granted(asked.request, 1))
    waits.join(WAIT_SECONDS_MAX)
    assert not errors
    assert "This is longer than usual: the one before you has run for 1 min 20 s." in case.stderr.getvalue()


def test_a_lost_session_loses_its_tensors_and_the_next_work_begins_afresh(case: Case) -> None:
    case.grants()
    case.session.acquire(WORK)
    case.pool.send(messages.SessionLost(message="The worker of this session died."))
    case.stream.expect(lambda names: "lose" in names)
    assert case.stream.calls[-1] == ("lose", "The worker of this session died.")
    case.grants(worker="w-2")
    case.session.acquire(WORK)
    assert case.stream.names() == ["connect", "lease_opened", "lose", "connect", "lease_opened"]
    assert len(case.pool.of(messages.Hello, 2)) == 2


def test_a_broken_command_stream_begins_afresh_before_the_pool_knows_of_it(case: Case) -> None:
    case.grants()
    case.session.acquire(WORK)
    case.stream.is_connected = False
    case.grants(worker="w-2")
    case.session.acquire(WORK)
    assert case.stream.names() == ["connect", "lease_opened", "lose", "connect", "lease_opened"]
    assert len(case.pool.of(messages.Hello, 2)) == 2


def test_a_pool_that_goes_away_ends_the_wait_with_a_sentence(case: Case) -> None:
    case.pool.answer = lambda message: case.pool.connections[-1].close(1012) or [] if isinstance(message, messages.Acquire) else []
    with pytest.raises(SessionEnded, match=r"connection to the pool at http://127.* ended.*tensors.*are gone"):
        case.session.acquire(WORK)
    assert case.stream.calls == [], "nothing was on the device yet"


def test_a_pool_that_goes_away_later_loses_the_tensors(case: Case) -> None:
    case.grants()
    case.session.acquire(WORK)
    case.pool.connections[-1].socket.shutdown(socket.SHUT_RDWR)
    case.stream.expect(lambda names: names[-1] == "lose")


def test_what_the_pool_may_not_say_ends_the_session_with_a_sentence(case: Case) -> None:
    case.grants()
    case.session.acquire(WORK)
    case.pool.connections[-1].send('{"type": "granted", "request": "many"}')
    case.stream.expect(lambda names: names[-1] == "lose")
    assert "does not understand" in case.stream.calls[-1][1]


def test_a_worker_that_cannot_be_reached_gives_the_lease_back(case: Case) -> None:
    case.grants()
    case.stream.connect_error = "connection refused"
    with pytest.raises(SessionEnded, match=r"worker at unix:/tmp/worker.sock cannot be used: connection refused"):
        case.session.acquire(WORK)
    assert [release.epoch for release in case.pool.of(messages.Release, 5)] == [1, 2, 3, 4, 5], "each lease that it was tried with"
    case.pool.send(closed(5, "released"))
    case.stream.connect_error = None
    case.session.acquire(WORK)
    assert case.stream.names()[-2:] == ["connect", "lease_opened"]


def test_a_first_worker_that_dies_before_it_was_told_anything_has_lost_nothing(case: Case) -> None:
    case.grants()
    case.stream.connect_error = "connection reset by peer"
    thread, errors = case.in_thread()
    case.stream.expect(lambda names: names.count("connect") == 2)
    case.stream.connect_error = None
    thread.join()
    assert not errors and case.stream.names()[-2:] == ["connect", "lease_opened"]
    assert "lose" not in case.stream.names()


def test_nobody_there_names_the_address_and_the_way_to_check_it() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        session = Session(lambda: Service(url, TOKEN), RecordedStream(), "2.13.0")
        with pytest.raises(PoolUnreachable, match=rf"{url} \(FOREBAY_URL\) cannot be reached: .*forebay doctor"):
            session.flavor()


def test_a_token_that_is_not_accepted_is_said(scripted_pool: Any) -> None:
    session = Session(lambda: Service(scripted_pool.url, "stale"), RecordedStream(), "2.13.0")
    with pytest.raises(PoolRefused, match=r"does not accept this token.*FOREBAY_TOKEN"):
        session.flavor()


def test_an_address_without_a_pool_is_said(scripted_pool: Any) -> None:
    wrong = scripted_pool.url.replace("/services/pool/", "/services/other/")
    with pytest.raises(PoolUnreachable, match="HTTP status 404"):
        Session(lambda: Service(wrong, TOKEN), RecordedStream(), "2.13.0").flavor()


def test_closing_waits_until_marked_work_is_done(case: Case) -> None:
    case.grants()
    case.session.acquire(WORK)
    case.session.marked()
    closing = threading.Thread(target=case.session.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    case.pool.send(closed(1, "drained"))
    closing.join(WAIT_SECONDS_MAX)
    assert not closing.is_alive()
    assert "lose" not in case.stream.names(), "the user did not lose anything, the program is over"


def test_closing_does_not_wait_for_ever(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "DRAIN_SECONDS_MAX", 0.05)
    case.grants()
    case.session.acquire(WORK)
    case.session.marked()
    case.session.close()
    assert case.session.has_worker is False


# A link that breaks


KEY = "cd" * 32


def keeps_sessions(case: Case, **changes: Any) -> None:
    """From now on the pool keeps a session whose link broke, and grants what is asked."""
    case.grants()
    grant = case.pool.answer
    opened = messages.SessionOpened(
        session="s-1",
        flavor=messages.Flavor(name="dev.1gb", memory_bytes=2**30),
        heartbeat_seconds=5.0,
        **({"resume_key": KEY, "resume_seconds": 10.0} | changes),
    )
    case.pool.answer = lambda message: [opened] if isinstance(message, messages.Hello | messages.ResumeSession) else grant(message)


def break_link(case: Case) -> None:
    case.pool.connections[-1].socket.shutdown(socket.SHUT_RDWR)


def journal_of(case: Case) -> Journal:
    """What the session writes down for the lines below cells."""
    return case.session._page.journal


def test_a_broken_link_is_made_again_and_nothing_of_the_session_is_lost(case: Case) -> None:
    keeps_sessions(case)
    case.session.acquire(WORK)
    (entry,), away = journal_of(case).entries(), [False]
    there = threading.Event()
    journal_of(case).listen(lambda: (away.append(entry.away), there.set() if away[-2:] == [True, False] else None))
    break_link(case)
    (resumed,) = case.pool.of(messages.ResumeSession)
    span = messages.Span(id="span-1", kind="cell", label="digits.ipynb", cell=3)
    assert resumed == messages.ResumeSession(session="s-1", key=KEY, worker="w-1", ticket="ab" * 32, epoch=1, span=span)
    case.session.acquire(WORK)
    case.session.marked()
    case.session.acquire(WORK)
    assert there.wait(WAIT_SECONDS_MAX), "the line below the cell says for as long as the link is broken that the pool does not answer"
    assert len(case.pool.of(messages.Hello)) == 1
    assert case.stream.names() == ["connect", "lease_opened", "lease_opened", "lease_opened"]


def test_who_waits_when_the_link_breaks_asks_again_and_is_told_why_it_waits(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    keeps_sessions(case)
    monkeypatch.setattr(case.session, "_quiet_seconds", 0.01)
    answer = case.pool.answer
    case.pool.answer = lambda message: [] if isinstance(message, messages.Acquire) else answer(message)
    thread, errors = case.in_thread()
    case.pool.of(messages.Acquire)
    case.pool.answer = lambda message: (time.sleep(0.3), answer(message))[1]
    break_link(case)
    thread.join(WAIT_SECONDS_MAX)
    assert (thread.is_alive(), errors) == (False, [])
    asked = case.pool.of(messages.Acquire, 2)
    assert asked[0] == asked[1]
    assert "waiting for dev.1gb: The pool does not answer" in case.stderr.getvalue()


def test_a_cancelled_request_is_taken_back_again_after_the_link_broke(case: Case) -> None:
    keeps_sessions(case)
    answer = case.pool.answer
    case.pool.answer = lambda message: [] if isinstance(message, messages.Acquire) else answer(message)
    timer = threading.Timer(0.2, lambda: signal.raise_signal(signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        case.session.acquire(WORK)
    break_link(case)
    assert len(case.pool.of(messages.Cancel, 2)) == 2


def test_a_pool_that_did_not_keep_the_session_says_so_and_the_next_work_begins_afresh(case: Case) -> None:
    keeps_sessions(case)
    case.session.acquire(WORK)
    answer = case.pool.answer
    gone = messages.Refused(code="no_session", message="This session is over.")
    case.pool.answer = lambda message: [gone] if isinstance(message, messages.ResumeSession) else answer(message)
    break_link(case)
    case.stream.expect(lambda names: names[-1] == "lose")
    assert case.stream.calls[-1] == ("lose", "This session is over.")
    case.session.acquire(WORK)
    assert len(case.pool.of(messages.Hello, 2)) == 2


def test_a_pool_that_does_not_come_back_in_time_ends_the_session(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    keeps_sessions(case, resume_seconds=0.5)
    case.session.acquire(WORK)
    (entry,), lines = journal_of(case).entries(), []
    journal_of(case).listen(lambda: lines.append(notice.used(entry, Texts("en"))["text/plain"]))
    monkeypatch.setattr(pool_link, "_connect_to", lambda service, *_: (_ for _ in ()).throw(service.unreachable("it is down")))
    break_link(case)
    case.stream.expect(lambda names: names[-1] == "lose")
    assert "the pool does not answer" in lines[0] and "My usage has what this cell cost" in lines[-1]


def test_who_waits_for_a_pool_that_stopped_finds_another(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"CHECK_SECONDS": 0.1, "ANSWER_SECONDS_MAX": 0.2}.items():
        monkeypatch.setattr(session_module, name, seconds)
    keeps_sessions(case)
    answer, stopped = case.pool.answer, threading.Event()

    def stop(message: messages.FromClient) -> list[messages.Message]:
        if isinstance(message, messages.Acquire) and not stopped.is_set():
            stopped.set()
            case.pool.connections[-1].protocol.receive_data = lambda data: None  # hears nothing more, so it answers no ping
            return []
        return answer(message)

    case.pool.answer = stop
    case.session.acquire(WORK)
    assert len(case.pool.of(messages.Acquire, 2)) == 2


def test_a_link_that_ends_just_as_its_pool_is_given_up_is_made_again(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "CHECK_SECONDS", 0.1)
    keeps_sessions(case)
    answer, ended = case.pool.answer, threading.Event()
    case.pool.answer = lambda message: [] if isinstance(message, messages.Acquire) and not ended.is_set() else answer(message)

    def ends(connection: ClientConnection, **_: bool) -> threading.Event:
        connection.close_socket()
        ended.set()
        return threading.Event()

    monkeypatch.setattr(ClientConnection, "ping", ends)
    monkeypatch.setattr(session_module, "ANSWER_SECONDS_MAX", 0.0)
    case.session.acquire(WORK)
    assert ended.is_set() and len(case.pool.of(messages.Acquire, 2)) == 2


def test_of_several_pools_the_one_that_takes_the_link_is_used(scripted_pool: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    service = Service(f"http://127.0.0.1:{port}/", TOKEN, (scripted_pool.url,))
    session = Session(lambda: service, RecordedStream(), "2.13.0+cpu")
    assert session.flavor().name == "dev.1gb"
    session.close()
