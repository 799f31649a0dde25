"""A name that somebody chose makes no line or field of the log that is not there; how a service listens, stops, and refuses to start."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import signal
import socket
import sys
from urllib.parse import quote

import pytest
from forebay_service.errors import SettingsError
from forebay_service.process import (
    FORMAT,
    JsonLines,
    OneLine,
    keep_secrets,
    listen,
    one_line,
    run,
    set_when_asked_to_stop,
    without_secrets,
)
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
    (line,) = written("login", extra={"action": "login", "user": "eve\r\n2026-11-22 ERROR pool action=lease.free\x1b[2K"})
    assert line.endswith(r'action=login user="eve\r\n2026-11-22 ERROR pool action=lease.free\u001b[2K" message=login')


def test_what_an_exception_says_begins_no_line() -> None:
    lines = written("failed", extra={"action": "failed"}, failure=ValueError("bad\n2026 ERROR pool action=forged\rx"))
    assert "action=failed" in lines[0] and all(line.startswith("  | ") for line in lines[1:])


def test_fields_stand_before_the_message_and_in_quotes_where_they_could_be_read_as_two() -> None:
    fields = {"worker": "w-1", "user": "eve tenant=acme", "action": "worker_ended", "cause": 'a "b"'}
    (line,) = written("worker %s ended", "w-1", extra=fields)
    assert line.endswith(r'ERROR service action=worker_ended worker=w-1 user="eve tenant=acme" cause="a \"b\"" message="worker w-1 ended"')


def test_a_message_without_fields_stands_as_it_is() -> None:
    (line,) = written("Running upgrade %s -> %s", "0001", "0002 (head)")
    assert line.endswith(" ERROR service Running upgrade 0001 -> 0002 (head)")


@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_a_record_with_fields_is_one_line(name: str) -> None:
    (line,) = written("login", extra={"action": "login", "user": name})
    assert len(line.splitlines()) == 1 and line.endswith(" message=login")


@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_a_record_as_json_is_one_line_and_an_object_whatever_names_are_in_it(name: str) -> None:
    record = logging.makeLogRecord({"name": "pool", "levelno": logging.ERROR, "levelname": "ERROR", "msg": "user %s left", "args": (name,)})
    vars(record).update(user=name, action="left", seconds=1.5, level="forged", message="forged", cause=ValueError("x"))
    line = JsonLines().format(record)
    (read,) = [json.loads(part) for part in line.splitlines()]
    assert (read["message"], read["user"], read["seconds"], read["cause"]) == (f"user {name} left", name, 1.5, "x")
    assert (read["level"], read["logger"], read["action"]) == ("ERROR", "pool", "left"), "no field takes the place of what every record has"


def test_what_failed_is_in_the_object() -> None:
    try:
        raise ValueError("bad\nline")
    except ValueError as error:
        record = logging.LogRecord("pool", logging.ERROR, "", 1, "failed", (), (type(error), error, error.__traceback__))
    line = JsonLines().format(record)
    assert "\n" not in line and json.loads(line)["exception"].endswith("ValueError: bad\nline")


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


@pytest.mark.parametrize("depth", range(4))
@pytest.mark.parametrize("name", ["key", "token", "code", "state", "_xsrf"])
def test_no_secret_of_an_address_is_logged_however_often_it_is_escaped(depth: int, name: str) -> None:
    address = f"/shared/7?a=1&{name}=s3cret-_0~&b=2"
    for _ in range(depth):
        address = f"/login?next={quote(address, safe='')}&c=3"
    told = without_secrets(f"302 GET {address} -> {address} (ada@10.0.0.1)")
    assert "s3cret" not in told and told.count("[secret]") == 2
    assert told == f"302 GET {address} -> {address} (ada@10.0.0.1)".replace("s3cret-_0~", "[secret]"), "and nothing else goes"


def test_a_record_as_json_holds_no_secret_in_any_of_its_parts() -> None:
    try:
        raise ValueError("/shared/7?key=s3cret")
    except ValueError as error:
        record = logging.LogRecord("hub", logging.ERROR, "", 1, "GET %s", ("/?token=s3cret",), (type(error), error, error.__traceback__))
    vars(record).update(url="/login?next=%2F%3Fcode%3Ds3cret")
    line = JsonLines().format(record)
    assert "s3cret" not in line and line.count("[secret]") >= 3


def test_what_only_looks_like_a_secret_is_logged() -> None:
    for text in ("monkey=1&monkey=2", "the key=word", "?keys=3", "code=7", "/a?b=key", "?state"):
        assert without_secrets(text) == text


def test_a_record_is_scrubbed_with_its_arguments_and_its_exception(caplog: pytest.LogCaptureFixture) -> None:
    keep_secrets("forebay-test-log")
    keep_secrets("forebay-test-log")
    log = logging.getLogger("forebay-test-log")
    assert len(log.filters) == 1
    with caplog.at_level(logging.INFO, "forebay-test-log"):
        log.info("GET %s %d", "/x?key=s3cret", 200)
    assert caplog.messages == ["GET /x?key=[secret] 200"]
    try:
        raise ValueError("/x?key=s3cret")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "failed", (), sys.exc_info())
    assert "s3cret" not in OneLine("%(message)s").format(record)
