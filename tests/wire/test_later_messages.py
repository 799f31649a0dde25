"""Messages of a pool of a later release: what only it knows is left out, and nothing else is taken that would be refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from forebay_wire import messages
from forebay_wire.messages import Cause, DeviceModel, Estimate, Flavor, MessageError, Refused, Source, Span

HEX = "0f" * 32
FLAVOR = Flavor(name="small.64gb", memory_bytes=1, price_nano_per_hour=None, currency="USD")
SPAN = Span(id="s", kind="cell", label="a.ipynb", cell=0)
DEVICE = DeviceModel(kind="cpu", model="cpu-dev")
TO_CLIENT = (
    messages.SessionOpened(session="s", flavor=FLAVOR, heartbeat_seconds=5.0),
    messages.Queued(
        request=0, position=0, cause=Cause(code="a", parts=(Cause(code="b"), Cause(code="c", parts=(Cause(code="d"),)))), code="quota",
        estimate=Estimate(low_seconds=0.0, middle_seconds=1.0, high_seconds=2.0),
    ),
    messages.Granted(request=1, lease="l", epoch=1, worker="w", address="unix:/x", ticket=HEX, device=DEVICE, flavor=FLAVOR),
    messages.LeaseClosed(lease="l", epoch=2**63 - 1, reason="idle", duration_ns=0),
    messages.Refused(code="protocol", message="no", cause=Cause(code="protocol", values={"theirs": 1, "ours": 2})),
)  # fmt: skip
SOURCE = Source(address="tcp:h:1", ticket=HEX)
TO_WORKER = (
    messages.Lead(epoch=1),
    messages.Assign(
        session="s", ticket=HEX, memory_limit_bytes=0, idle_release_seconds=1.0, heartbeat_seconds=1.0, source=SOURCE, libraries="/l"
    ),
    messages.Carry(session="s", source=SOURCE, bytes_max=1, bytes_per_second_max=1, heartbeat_seconds=1.0),
    messages.End(),
)


def widened(message: Any) -> dict[str, Any]:
    """The message with fields more in it and in every part of it, of all kinds of JSON."""
    fields = {name: getattr(message, name) for name in type(message).model_fields}
    told = {name: part(value) for name, value in fields.items()}
    return {"a_later_field": {"type": "granted"}, **told, "another": [None, {"a": 1}], "cause_of_it": None}


def part(value: Any) -> Any:
    if isinstance(value, messages.Message):
        return widened(value)
    if isinstance(value, tuple):
        return [part(one) for one in value]
    return value


@pytest.mark.parametrize("message", TO_CLIENT, ids=lambda message: message.type)
def test_a_client_reads_what_a_later_pool_sends(message: Any) -> None:
    text = json.dumps(widened(message))
    assert messages.to_client(text) == message == messages.to_client(text.encode())


@pytest.mark.parametrize("message", TO_WORKER, ids=lambda message: message.type)
def test_a_worker_reads_what_a_later_pool_sends(message: Any) -> None:
    assert messages.to_worker(json.dumps(widened(message))) == message


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"epoch": -1}, "epoch"),
        ({"reason": "later"}, "reason"),
        ({"duration_ns": None}, "duration_ns"),
        ({"type": "later"}, "message"),
        ({"type": None}, "message"),
    ],
)
def test_a_field_that_is_known_is_held_to_what_it_may_be(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(MessageError, match=said):
        messages.to_client(json.dumps(widened(TO_CLIENT[3]) | wrong))


def test_a_field_that_is_missing_is_missed_beside_one_that_is_new() -> None:
    told = widened(TO_CLIENT[3])
    del told["lease"]
    with pytest.raises(MessageError, match="lease"):
        messages.to_client(json.dumps(told))


def test_a_field_that_is_new_and_named_twice_is_left_out() -> None:
    text = '{"type":"closed","new":1,"lease":"l","epoch":1,"reason":"idle","new":[2],"duration_ns":0}'
    assert messages.to_client(text) == messages.LeaseClosed(lease="l", epoch=1, reason="idle", duration_ns=0)


@pytest.mark.parametrize("text", ["", "null", "[]", "{", "3", '"granted"', '{"type":{"new":1}}', "\x00"])
def test_what_is_no_message_is_refused_as_before(text: str) -> None:
    with pytest.raises(MessageError):
        messages.to_client(text)


def test_a_message_that_is_too_long_is_not_looked_into() -> None:
    told = json.dumps(widened(TO_CLIENT[3]) | {"more": "x" * messages.MESSAGE_BYTES_MAX})
    with pytest.raises(MessageError, match="at most"):
        messages.to_client(told)


def test_a_pool_leaves_nothing_out_of_what_its_peers_send() -> None:
    """Whoever connects may be hostile; and pools are upgraded first."""
    hello = json.loads(messages.Hello(process="x", pid=1, torch="2").encode())
    with pytest.raises(MessageError, match="new"):
        messages.from_client(json.dumps({**hello, "new": 1}))
    with pytest.raises(MessageError, match="new"):
        messages.from_worker(json.dumps({"type": "starved", "new": 1}))


def test_a_pool_speaks_with_the_release_before_and_with_no_other() -> None:
    assert messages.PROTOCOL - 1 <= messages.PROTOCOL_OLDEST <= messages.PROTOCOL
    spoken = [version for version in range(-1, messages.PROTOCOL + 3) if messages.speaks(version)]
    assert spoken == list(range(messages.PROTOCOL_OLDEST, messages.PROTOCOL + 1))
    assert Refused(code="protocol", message="x").code == "protocol"
