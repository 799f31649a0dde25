"""A client has the worker note when it carries out calls, and is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from forebay_wire import stream

aten = torch.ops.aten
SMALL, LARGE = torch.randn(4, 4), torch.randn(600, 600)


def times(client: Any) -> stream.Times:
    client.send(stream.TellTimes(90))
    told = client.reply()
    assert isinstance(told, stream.Times) and told.request == 90
    return told


@pytest.mark.everywhere
def test_calls_are_timed_as_many_as_were_asked_for_and_told_once(client: Any) -> None:
    client.run(aten.mm.default, SMALL, SMALL)
    before = times(client)
    client.send(stream.Time(2))
    for matrix in (SMALL, LARGE, SMALL):
        client.run(aten.mm.default, matrix, matrix)
    told = times(client)
    small, large = told.calls
    assert before.calls == () == times(client).calls
    assert large.sequence == small.sequence + 1
    assert (
        before.now_ns <= small.start_ns <= small.start_ns + small.took_ns <= large.start_ns <= large.start_ns + large.took_ns <= told.now_ns
    )
    assert large.took_ns > 5 * small.took_ns, "a product of 600 rows takes longer than one of 4"


def test_a_call_that_fails_is_timed_too_and_questions_are_calls(client: Any) -> None:
    client.send(stream.Time(9))
    client.run(aten.nonzero.default, SMALL)
    client.send(stream.Time(0))
    assert times(client).calls == (), "another TIME drops what was noted"


def test_nothing_is_timed_without_being_asked_for(client: Any) -> None:
    client.run(aten.mm.default, SMALL, SMALL)
    assert times(client).calls == ()


def test_more_calls_than_a_worker_keeps_are_refused(client: Any) -> None:
    client.send(stream.Time((1 << 19) + 1))
    assert "the number of calls to time" in client.reply().message


def test_times_need_no_lease(start_worker: Callable[..., Any]) -> None:
    client = start_worker(device="null:0").connect()
    with client.socket:
        client.hello()
        client.send(stream.Time(1))
        assert times(client).now_ns > 0
