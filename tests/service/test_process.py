"""A name that somebody chose makes no line or field of the log that is not there; how a service listens, stops, and refuses to start."""

from __future__ import annotations

import asyncio
import io
import logging
import signal
import socket

import pytest
from forebay_service.errors import SettingsError
from forebay_service.process import FORMAT, OneLine, listen, one_line, run, set_when_asked_to_stop
from hypothesis import given
from hypothesis import strategies as st


def written(message: str, *values: object, failure: Exception | None = None, extra: dict[str, object] | None = None) -> list[str]:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(OneLine(FORMAT))
    log = logging.Logger("service")
    log.addHandler(handler)
    log.error(message, *values, exc_info=failure, extra=extra)
    return out.getvalue().split("\n")[:-1]


@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_a_record_is_one_line(name: str) -> None:
    (line,) = written("user %s signed in", name)
    assert line.endswith(one_line(f"user {name} signed in")) and len(line.splitlines()) == 1


def test_a_forged_line_is_part_of_the_one_that_is_there() -> None:
    (line,) = written("action=login user=%s", "eve\r\n2026-11-22 ERROR pool action=lease.free\x1b[2K")
    assert line.endswith(r'user="eve\r\n2026-11-22 ERROR pool action=lease.free\u001b[2K"')


def test_what_an_exception_says_begins_no_line() -> None:
    lines = written("action=failed", failure=ValueError("bad\n2026 ERROR pool action=forged\rx"))
    assert "action=failed" in lines[0] and all(line.startswith("  | ") for line in lines[1:])


def test_fields_stand_before_the_message_and_in_quotes_where_they_could_be_read_as_two() -> None:
    fields = {"worker": "w-1", "user": "eve tenant=acme", "action": "worker_ended", "cause": 'a "b"'}
    (line,) = written("worker %s ended", "w-1", extra=fields)
    assert line.endswith(r'ERROR service action=worker_ended worker=w-1 user="eve tenant=acme" cause="a \"b\"" message="worker w-1 ended"')


def test_fields_in_the_message_are_written_in_the_same_way() -> None:
    (line,) = written("action=%s.failed count=%d user=%s error=%r", "login", 3, "eve tenant=acme", "no such user")
    assert line.endswith(' ERROR service action=login.failed count=3 user="eve tenant=acme" error="no such user"')


def test_what_an_exception_says_is_one_field_however_it_is_given() -> None:
    (line,) = written("action=%s.failed error=%s", "hold", ValueError("no tenant action=forged"))
    assert line.endswith(' ERROR service action=hold.failed error="no tenant action=forged"')


def test_a_message_without_fields_stands_as_it_is() -> None:
    (line,) = written("Running upgrade %s -> %s", "0001", "0002 (head)")
    assert line.endswith(" ERROR service Running upgrade 0001 -> 0002 (head)")


@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_a_record_with_fields_is_one_line(name: str) -> None:
    for line in (*written("login", extra={"action": "login", "user": name}), *written("action=login user=%s message=login", name)):
        assert len(line.splitlines()) == 1 and line.endswith(" message=login")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Tornado leaves its socket to the garbage collector
def test_an_address_that_is_taken_is_refused_with_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(SettingsError, match=rf"^Cannot listen on 127.0.0.1:{port} \(Address already in use\); "):
            listen("127.0.0.1", port)


def test_a_free_port_is_taken_where_none_is_named() -> None:
    (listener,) = listen("127.0.0.1", 0)
    with listener:
        assert listener.getsockname()[1] > 0
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_set_the_events_that_were_named_last(number: signal.Signals) -> None:
    async def scenario() -> tuple[bool, bool]:
        before, after = asyncio.Event(), asyncio.Event()
        set_when_asked_to_stop(before)
        set_when_asked_to_stop(after)
        signal.raise_signal(number)
        await asyncio.wait_for(after.wait(), 5)
        return before.is_set(), after.is_set()

    assert asyncio.run(scenario()) == (False, True)


def test_what_prevents_a_start_is_a_sentence_and_a_fault_of_ours_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    async def fails(error: Exception) -> int:
        raise error

    assert run("forebay_pool", lambda: fails(SettingsError("Set port.")), (SettingsError,)) == 2
    assert capsys.readouterr().err == "forebay-pool: Set port.\n"
    with pytest.raises(KeyError):
        run("forebay_pool", lambda: fails(KeyError("x")), (SettingsError,))
