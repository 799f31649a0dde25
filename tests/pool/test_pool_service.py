"""The pool over real sockets, with worker processes that compute nothing."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from forebay_pool.hosts.library_folders import LibraryFolders, keyed
from forebay_pool.http import handler, links
from forebay_pool.http.routes import ROUTES
from forebay_pool.model.events import PricesSet
from forebay_pool.model.prices import Tariff
from forebay_wire import messages as wire
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

Make = Callable[..., Any]
PATIENCE_SECONDS = 40


def test_a_lease_opens_closes_and_its_usage_is_on_disk(pool: Make) -> None:
    async def scenario() -> None:
        async with pool() as running:
            running.service.shell.apply(PricesSet(Tariff({("dev.1gb", "USD"): 3600 * 10**9}, currency="USD")))
            client = await running.client()
            opened = await client.hello()
            assert (opened.flavor.name, opened.flavor.price_nano_per_hour) == ("dev.1gb", 3600 * 10**9)
            granted = await client.acquire()
            assert len(await running.get("api/leases")) == 1
            client.work("mark")
            closed = await client.hears(wire.LeaseClosed)
            assert (closed.lease, closed.reason, closed.cost_nano) == (granted.lease, "drained", closed.duration_ns)
            await running.until(running.records)
            (record,) = running.records()
            assert (record["id"], record["duration_ns"]) == (f"{granted.lease}/1", closed.duration_ns)
            assert json.loads(record["span"])["cell"] == 1
            (row,) = await running.get("api/sessions")
            assert (row["state"], row["device_model"]) == ("resident", "cpu-dev")

    asyncio.run(scenario())


def test_a_killed_worker_process_loses_its_session_alone_and_a_new_hello_begins_afresh(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(devices=[{"kind": "cpu", "model": "cpu-dev", "memory": "4 GiB", "count": 2}]) as running:
            victim, other = await running.client(), await running.client("ben")
            await victim.hello()
            await other.hello()
            await victim.acquire()
            await other.acquire()
            victim.work("die")
            assert (await victim.hears(wire.LeaseClosed)).reason == "failed"
            await victim.hears(wire.SessionLost)
            assert len(running.leases) == 1
            await victim.hello()
            assert (await victim.acquire()).epoch == 1
            other.work("mark")
            await other.hears(wire.LeaseClosed)

    asyncio.run(scenario())


def test_a_worker_process_that_crashes_within_a_lease_is_billed_for_what_it_computed(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(resume_seconds=60.0) as running:
            client = await running.client()
            await client.hello()
            began = time.monotonic_ns()
            await client.acquire()
            await asyncio.sleep(0.3)
            client.work("crash")
            closed = await client.hears(wire.LeaseClosed)
            assert closed.reason != "failed"
            await client.hears(wire.SessionLost)
            await running.until(running.records)
            (record,) = running.records()
            assert 0.3e9 <= record["duration_ns"] == closed.duration_ns < time.monotonic_ns() - began

    asyncio.run(scenario())


def test_a_user_whose_calls_crash_workers_waits_for_the_next_one_and_then_gets_it(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(resume_seconds=60.0, crashes_max=1, crash_wait_seconds=1.5) as running:
            client = await running.client("ada", **{wire.CAUSES_HEADER: str(wire.CAUSES)})
            await client.hello()
            await client.acquire()
            client.work("crash")
            await client.hears(wire.SessionLost)
            await client.hello()
            asked = time.monotonic()
            await client.ask()
            told = await client.hears(wire.Queued)
            assert told.cause is not None and told.cause.code == "crashes_wait" and "ada of acme" in told.said()
            assert told.estimate is not None and 0 < told.estimate.high_seconds <= 1.5
            await client.hears(wire.Granted)
            assert time.monotonic() - asked > 0.9 * told.estimate.high_seconds

    asyncio.run(scenario())


def test_a_worker_that_falls_silent_is_killed_and_the_lease_ends_at_its_last_heartbeat(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(heartbeat_seconds=0.3, call_seconds_max=0.5, resume_seconds=0) as running:
            client = await running.client()
            await client.hello()
            await client.acquire()
            await running.until(lambda: running.machine.sessions[client.session].lease.confirmed_ns > 0)
            client.work("mute")
            closed = await client.hears(wire.LeaseClosed)
            assert closed.reason == "failed"
            await client.hears(wire.SessionLost)

    asyncio.run(scenario())


def test_the_end_of_the_clients_process_ends_its_session_and_bills_up_to_then(pool: Make) -> None:
    async def scenario() -> None:
        async with pool() as running:
            client = await running.client()
            await client.hello()
            await client.acquire()
            await client.close()
            await running.until(lambda: not running.machine.sessions and running.records())
            assert running.records()[0]["close_reason"] == "released"
            await running.until(lambda: running.machine.fleet.seats["main/cpu:0"].state == "free")

    asyncio.run(scenario())


def test_a_client_that_answers_no_ping_is_disconnected_and_parked_and_may_come_back(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(session_heartbeat_seconds=0.1) as running:
            client = await running.client()
            opened = await client.hello()
            granted = await client.acquire()
            client.work("memory 1000")
            client.link.transport.pause_reading()
            session = running.machine.sessions[client.session]
            await running.until(lambda: session.state == "parked")
            assert (running.leases, client.session in running.service.shell.clients) == ([], False)
            await running.until(running.records)
            assert [(row["lease"], row["close_reason"]) for row in running.records()] == [(granted.lease, "released")]
            again = await running.client()
            await again.say(wire.ResumeSession(session=client.session, key=opened.resume_key, worker=granted.worker, epoch=granted.epoch))
            assert (await again.hears(wire.SessionOpened)).session == client.session
            assert (await again.hears(wire.LeaseClosed)).lease == granted.lease
            again.worker, again.stream, client.stream = granted.worker, client.stream, None
            assert (await again.acquire(2)).worker == granted.worker
            client.link.transport.resume_reading()

    asyncio.run(scenario())


def test_a_client_that_is_not_back_in_time_loses_its_session(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(session_heartbeat_seconds=0.1, resume_seconds=0.5) as running:
            client = await running.client()
            await client.hello()
            await client.acquire()
            client.link.transport.pause_reading()
            await running.until(lambda: not running.machine.sessions)
            assert not running.leases
            client.link.transport.resume_reading()

    asyncio.run(scenario())


def test_a_client_that_leaves_messages_unread_is_disconnected_and_parked(pool: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay_pool.http.links.PENDING_MESSAGES_MAX", 50)

    async def scenario() -> None:
        async with pool(session_heartbeat_seconds=3600) as running, asyncio.timeout(30):  # the bound ends it, and not the silence
            client = await running.client()
            await client.hello()
            granted = await client.acquire()
            session = running.machine.sessions[client.session]
            client.link.transport.pause_reading()
            link = running.service.shell.clients[client.session]
            while client.session in running.service.shell.clients:  # until the sockets' buffers are full
                link.send(wire.SessionLost(message="x" * 2000))
                await asyncio.sleep(0)
            await running.until(lambda: session.state == "parked")
            assert (running.leases, granted.epoch) == ([], session.epoch)
            client.link.transport.resume_reading()

    asyncio.run(scenario())


@pytest.mark.parametrize("who", ["ben", "other-ada"])
def test_nobody_else_takes_a_session_over(pool: Make, who: str) -> None:
    async def scenario() -> None:
        async with pool() as running:
            client = await running.client()
            opened = await client.hello()
            for person, key in ((who, opened.resume_key), ("ada", "0" * 64)):
                thief = await running.client(person)
                await thief.say(wire.ResumeSession(session=client.session, key=key))
                assert (await thief.hears(wire.Refused)).code == "no_session"
            await client.acquire()

    asyncio.run(scenario())


HOSTILE = [
    "{",
    "[]",
    '{"type":"granted"}',
    '{"type":"acquire","request":-1,"span":{}}',
    '{"type":"release","epoch":"1"}',
    "\u0000",
    "x" * 70_000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_message_gets_one_sentence_and_closes_that_session_alone(pool: Make, text: str) -> None:
    async def scenario() -> None:
        async with pool(devices=[{"kind": "cpu", "model": "cpu-dev", "memory": "4 GiB", "count": 2}]) as running:
            hostile, other = await running.client(), await running.client("ben")
            await hostile.hello()
            await other.hello()
            await hostile.acquire()
            await other.acquire()
            await hostile.say(text)
            refused = await hostile.hears(wire.Refused)
            assert (refused.code, refused.message.startswith("The pool cannot read a message")) == ("bad_message", True)
            with pytest.raises(ConnectionClosed):
                await hostile.hears(wire.Granted)
            await running.until(lambda: len(running.leases) == 1)
            other.work("mark")
            await other.hears(wire.LeaseClosed)

    asyncio.run(scenario())


def test_a_link_that_has_a_session_takes_no_other_and_leaves_none_behind(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(resume_seconds=1.0) as running:
            first, second = await running.client(), await running.client()
            kept = await first.hello()
            await second.hello()
            await second.acquire()
            await second.say(wire.ResumeSession(session=kept.session, key=kept.resume_key))
            assert (await second.hears(wire.Refused)).code == "bad_message"
            await running.until(lambda: not running.leases)
            assert list(running.machine.sessions) == [first.session]

    asyncio.run(scenario())


def test_a_link_on_which_nothing_is_said_is_closed(pool: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "HELLO_SECONDS_MAX", 0.5)

    async def scenario() -> None:
        async with pool() as running:
            speaks, silent = await running.client(), await running.client()
            await speaks.hello()
            refused = await silent.hears(wire.Refused)
            assert (refused.code, refused.message) == ("bad_message", "Nothing was said within 0.5 s.")
            with pytest.raises(ConnectionClosed):
                await silent.link.recv()
            assert (await speaks.acquire()).epoch == 1

    asyncio.run(scenario())


def test_a_message_far_too_long_closes_the_link(pool: Make) -> None:
    async def scenario() -> None:
        async with pool() as running:
            client = await running.client()
            await client.hello()
            await client.acquire()
            await client.say("x" * 1_000_000)
            with pytest.raises(ConnectionClosed):
                await client.hears(wire.Granted)
            await running.until(lambda: not running.leases)

    asyncio.run(scenario())


def test_another_protocol_is_refused_with_both_versions(pool: Make) -> None:
    async def scenario() -> None:
        async with pool() as running:
            client = await running.client()
            await client.say(wire.Hello(protocol=99, process="x", pid=1, torch="2"))
            refused = await client.hears(wire.Refused)
            assert (refused.code, "99" in refused.message, str(wire.PROTOCOL) in refused.message) == ("protocol", True, True)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("token", "status", "code"), [("nobody", 401, "unauthorized"), ("guest", 403, "forbidden"), ("loner", 403, "no_tenant")]
)
def test_a_session_link_needs_a_token_with_the_scope_and_a_tenant(pool: Make, token: str, status: int, code: str) -> None:
    async def scenario() -> None:
        async with pool() as running:
            with pytest.raises(InvalidStatus) as refused:
                await running.client(token)
            assert refused.value.response.status_code == status
            assert json.loads(refused.value.response.body)["error"]["code"] == code

    asyncio.run(scenario())


def test_a_session_ends_with_its_token_and_is_billed_until_then(pool: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay_pool.service.TOKEN_CHECK_SECONDS", 0.1)

    async def scenario() -> None:
        async with pool(devices=[{"kind": "cpu", "model": "cpu-dev", "memory": "4 GiB", "count": 2}]) as running:
            client, other = await running.client("ada"), await running.client("ben")
            for each in (client, other):
                await each.hello()
                await each.acquire()
            del running.service.authenticator._identities["ada"]
            assert (await client.hears(wire.LeaseClosed)).reason == "revoked"
            assert (await client.hears(wire.SessionLost)).message.startswith("The token of this process has expired or was revoked")
            with pytest.raises(ConnectionClosed):
                await client.hears(wire.Granted)
            assert len(running.leases) == 1
            with pytest.raises(InvalidStatus):
                await running.client("ada")
            other.work("mark")
            await other.hears(wire.LeaseClosed)

    asyncio.run(scenario())


def test_an_unknown_flavor_is_refused_on_the_link_and_leaves_nothing_behind(pool: Make) -> None:
    async def scenario() -> None:
        async with pool() as running:
            client, other = await running.client(), await running.client("ben")
            await other.hello()
            await other.acquire()
            await client.say(wire.Hello(process="x", pid=1, torch="2", flavor="huge.9999gb"))
            refused = await client.hears(wire.Refused)
            assert (refused.code, refused.message.startswith("There is no flavor 'huge.9999gb'; there are ")) == ("unknown_flavor", True)
            await client.ask()
            assert (await client.hears(wire.Refused)).code == "no_session"
            await client.hello()
            await client.say(wire.ChooseFlavor(flavor="smal.64gb"))
            assert (await client.hears(wire.Refused)).code == "unknown_flavor"
            assert running.machine.sessions[client.session].flavor == "dev.1gb"
            assert (len(running.leases), running.records()) == (1, [])
            other.work("mark")
            await other.hears(wire.LeaseClosed)

    asyncio.run(scenario())


def test_a_worker_link_needs_the_token_of_a_worker_that_the_pool_started(pool: Make) -> None:
    async def scenario() -> None:
        async with pool() as running:
            for token in ("ada", "operator", "0" * 64):
                with pytest.raises(InvalidStatus) as refused:
                    url = running.service.url.replace("http", "ws", 1) + "api/worker"
                    await connect(url, additional_headers={"Authorization": f"token {token}"}, compression=None, proxy=None)
                assert refused.value.response.status_code == 401

    asyncio.run(scenario())


LIES = [
    "garble",
    "shout 70000",
    'say {"type":"ready","worker":"another","address":"x","torch":"t","device":{"kind":"cpu","model":"m"},"pid":1}',
]


@pytest.mark.parametrize("lie", LIES)
def test_a_worker_that_breaks_the_protocol_is_killed_and_its_session_lost(pool: Make, lie: str) -> None:
    async def scenario() -> None:
        async with pool() as running:
            client = await running.client()
            await client.hello()
            await client.acquire()
            client.work(lie)
            assert (await client.hears(wire.LeaseClosed)).reason == "failed"
            await client.hears(wire.SessionLost)

    asyncio.run(scenario())


def test_people_see_and_end_their_own_sessions_alone(pool: Make) -> None:
    async def scenario() -> None:
        async with pool() as running:
            client = await running.client("ada")
            await client.hello()
            await client.acquire()
            for token, count in [("ada", 1), ("ben", 0), ("other-ada", 0), ("operator", 1), ("dashboards", 1)]:
                assert len(await running.get("api/sessions", token)) == count, token
            for token in ("ben", "other-ada"):
                response = await running.call("DELETE", f"api/sessions/{client.session}", token)
                assert (response.code, json.loads(response.body)["error"]["code"]) == (404, "no_session")
            assert running.leases
            assert (await running.call("DELETE", f"api/sessions/{client.session}", "ada")).code == 204
            assert (await client.hears(wire.LeaseClosed)).reason == "released"
            assert (await client.hears(wire.SessionLost)).message == "You ended this session."

    asyncio.run(scenario())


OF_A_SESSION = [(operation.method, operation.path) for operation in ROUTES if "{session}" in operation.path]


@pytest.mark.parametrize(("method", "path"), OF_A_SESSION)
def test_a_session_of_somebody_else_is_answered_like_none(pool: Make, method: str, path: str) -> None:
    async def scenario() -> None:
        async with pool() as running:
            client = await running.client("ada")
            await client.hello()
            await client.acquire()
            for token in ("ben", "other-ada", "loner", "guest", "dashboards"):
                asked = [await running.call(method, path.format(session=one), token) for one in (client.session, "none")]
                statuses, bodies = [response.code for response in asked], [json.loads(response.body) for response in asked]
                assert statuses[0] == statuses[1] and bodies[0] == bodies[1], (token, bodies)
                may_end = method == "DELETE" and token in ("ben", "other-ada", "loner")
                assert (statuses[0], bodies[0]["error"]["code"]) == ((404, "no_session") if may_end else (403, "forbidden")), token
            assert running.leases and len(await running.get("api/sessions", "ada")) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("method", "path", "token", "body", "status", "code"),
    [
        ("GET", "api/flavors", None, None, 401, "unauthorized"),
        ("GET", "api/flavors", "nobody", None, 401, "unauthorized"),
        ("GET", "api/leases", "ada", None, 403, "forbidden"),
        ("GET", "api/devices", "ada", None, 403, "forbidden"),
        ("GET", "api/sessions", "guest", None, 403, "forbidden"),
        ("GET", "api/nothing", "ada", None, 404, "not_found"),
        ("POST", "api/flavors", "ada", {}, 405, "method_not_allowed"),
        ("DELETE", "api/sessions/none", "operator", None, 404, "no_session"),
        ("PUT", "api/flavors/x", "ada", {"memory_bytes": 2**30, "equivalents": [{"model": "m", "count": 1}]}, 403, "forbidden"),
        ("PUT", "api/flavors/X%20Y", "operator", {"memory_bytes": 2**30, "equivalents": [{"model": "m", "count": 1}]}, 400, "invalid"),
        ("PUT", "api/flavors/x", "operator", {"memory_bytes": -1, "equivalents": [{"model": "m", "count": 1}]}, 400, "invalid"),
        ("PUT", "api/flavors/x", "operator", {"memory_bytes": 2**30, "equivalents": []}, 400, "invalid"),
        ("PUT", "api/flavors/x", "operator", {"memory_bytes": 2**30, "equivalents": [{"model": "m", "count": "1"}]}, 400, "invalid"),
        ("PUT", "api/flavors/x", "operator", {"memory_bytes": 2**30, "equivalents": [], "price": 1}, 400, "invalid"),
        ("PUT", "api/flavors/x", "operator", "{", 400, "invalid"),
        ("PUT", "api/choice", "ada", {"flavor": "dev.9gb"}, 400, "unknown_flavor"),
        ("PUT", "api/choice", "ada", {"flavor": "small.64gb"}, 409, "not_servable"),
        ("PUT", "api/choice", "loner", {"flavor": "dev.1gb"}, 403, "no_tenant"),
    ],
)
def test_a_wrong_request_gets_one_clear_error(
    pool: Make, method: str, path: str, token: str | None, body: Any, status: int, code: str
) -> None:
    async def scenario() -> None:
        async with pool(warm_workers=0) as running:
            response = await running.call(method, path, token, body)
            error = json.loads(response.body)["error"]
            assert (response.code, error["code"], set(error) - {"fault"}) == (status, code, {"code", "message"})
            assert "fault" not in error or code == "invalid"
            assert error["message"].endswith((".", "…"))
            assert response.headers["Cache-Control"] == "no-store" and ("WWW-Authenticate" in response.headers) == (status == 401)

    asyncio.run(scenario())


def test_an_address_that_is_no_utf_8_is_refused_with_what_to_do(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(warm_workers=0) as running:
            answer = await running.call("GET", "api/quotas/%ff")
            sentence = "The address of this request cannot be read: write what is not ASCII in it as UTF-8, escaped with %."
            assert (answer.code, json.loads(answer.body)) == (400, {"error": {"code": "invalid", "message": sentence}})

    asyncio.run(scenario())


@pytest.mark.parametrize("sent", [b"PUT /api/choi", b"PUT /api/choice HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{"])
def test_a_request_that_does_not_go_on_is_not_waited_for(pool: Make, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(handler, "BODY_SECONDS_MAX", 0.2)
    monkeypatch.setattr(handler, "IDLE_SECONDS_MAX", 0.2)

    async def scenario() -> None:
        async with pool(warm_workers=0) as running:
            reader, writer = await asyncio.open_connection("127.0.0.1", running.service.port)
            writer.write(sent)
            assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()

    asyncio.run(scenario())


def test_the_thirteen_flavors_are_seeded_and_honest_about_what_this_pool_serves(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(warm_workers=0) as running:
            rows = {row["name"]: row for row in await running.get("api/flavors", "guest")}
            assert len(rows) == 15
            assert {name for name, row in rows.items() if row["servable"]} == {"dev.1gb", "dev.4gb"}
            assert rows["dev.1gb"]["equivalents"][0] == {"model": "cpu-dev", "count": 1, "share_milli": 1000, "devices": 1, "speed": 100}
            large = rows["4xlarge.2048gb"]
            assert large["equivalents"][:2] == [
                {"model": "MI250", "count": 16, "share_milli": 1000, "devices": 0, "speed": None},
                {"model": "MI210", "count": 32, "share_milli": 1000, "devices": 0, "speed": None},
            ]
            others = len(large["equivalents"]) - 3
            wants = f"needs 16 MI250, 32 MI210, 11 MI300X or one of {others} other ways; this installation has 1 cpu-dev."
            assert large["reason"] == f"4xlarge.2048gb {wants}", "a sentence does not name all of them"
            assert rows["small.64gb"]["memory_bytes"] == 65_520 * 2**20

    asyncio.run(scenario())


def test_a_flavor_and_a_choice_outlive_a_restart_and_serve_later_sessions(pool: Make) -> None:
    async def scenario() -> None:
        async with pool() as running:
            body = {"memory_bytes": 2**31, "equivalents": [{"model": "cpu-dev", "count": 1}]}
            row = await running.call("PUT", "api/flavors/dev.2gb", "operator", body)
            assert json.loads(row.body)["servable"] is True
            assert (await running.call("PUT", "api/choice", "ada", {"flavor": "dev.2gb"})).code == 200
        async with pool() as running:
            assert await running.get("api/choice", "ada") == {"flavor": "dev.2gb"}
            assert await running.get("api/choice", "other-ada") == {"flavor": "dev.1gb"}
            client = await running.client("ada")
            assert (await client.hello()).flavor.memory_bytes == 2**31

    asyncio.run(scenario())


def test_events_show_each_what_they_may_see_and_its_end(pool: Make) -> None:
    async def scenario() -> None:
        async with pool() as running:
            streams = {token: await _listen(running, token) for token in ("operator", "ada", "ben")}
            client = await running.client("ada")
            await client.hello()
            await client.acquire()
            seen = {"ada": await _heard(streams["ada"][0], lambda events: "lease" in {name for name, _ in events})}
            await client.close()
            await running.until(lambda: not running.machine.sessions)
            later = await running.client("ben")
            mark = (await later.hello()).session  # it comes last, so that who has heard it has heard all before
            for token in ("operator", "ben"):
                seen[token] = await _heard(streams[token][0], lambda events: mark in {row.get("session") for _, row in events})
            ends = lambda events: {name for name, row in events if row.get("removed")}  # noqa: E731 - reads better
            seen["ada"] += await _heard(streams["ada"][0], lambda events: ends(events) == {"lease", "session"})
            for _, writer in streams.values():
                writer.close()
            assert {name for name, _ in seen["operator"]} == {"lease", "session", "device"}
            assert {name for name, _ in seen["ada"]} == {"lease", "session"}
            assert {row["session"] for _, row in seen["ben"]} == {mark}
            for name in ("lease", "session"):
                last = [row for kind, row in seen["ada"] if kind == name][-1]
                assert last["removed"] is True
            assert mark not in {row["session"] for _, row in seen["ada"]}
            await running.until(lambda: not running.service.shell.board._watchers)

    asyncio.run(scenario())


async def _listen(running: Any, token: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", running.service.port)
    writer.write(f"GET /api/events HTTP/1.1\r\nHost: x\r\nAuthorization: token {token}\r\n\r\n".encode())
    await reader.readuntil(b": forebay")
    return reader, writer


async def _heard(reader: asyncio.StreamReader, enough: Callable[[list[tuple[str, Any]]], bool]) -> list[tuple[str, Any]]:
    """What comes on the stream, until it is enough."""
    found: list[tuple[str, Any]] = []
    while not enough(found):
        text = (await asyncio.wait_for(reader.readuntil(b"\n\n"), PATIENCE_SECONDS)).decode()
        lines = text.splitlines()
        found += [(line[7:], json.loads(after[6:])) for line, after in pairwise(lines) if line.startswith("event: ")]
    return found




@pytest.mark.parametrize("path", ["api/session", "api/worker"])
def test_a_peer_that_goes_before_its_link_is_open_is_no_error(pool: Make, path: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with pool() as running:
            url = urlsplit(running.service.url)
            head = ["Host: pool", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAA"]
            request = "\r\n".join([f"GET {url.path}{path} HTTP/1.1", *head, "Authorization: token ada", "", ""])
            for turn in range(20):
                _, writer = await asyncio.open_connection(url.hostname, url.port)
                writer.write(request.encode())
                if turn % 2:
                    await writer.drain()
                    await asyncio.sleep(0.001 * turn)
                writer.transport.abort()
            assert await running.get("api/sessions") == []

    asyncio.run(scenario())
    assert "Uncaught" not in caplog.text


def test_metrics_and_health_are_there_and_name_no_user(pool: Make) -> None:
    async def scenario() -> None:
        async with pool() as running:
            client = await running.client()
            await client.hello()
            await client.acquire()
            text = (await running.call("GET", "metrics", None)).body.decode()
            assert 'forebay_pool_leases_opened_total{flavor="dev.1gb",tenant="acme"} 1.0' in text
            assert 'forebay_pool_devices{model="cpu-dev",node="main",state="leased"} 1.0' in text
            assert "ada" not in text
            assert client.session not in text
            assert (await running.get("health", None)) == {"status": "ok", "troubles": {}, "role": "leader"}

    asyncio.run(scenario())


def test_workers_get_an_allow_listed_environment_and_no_token_on_the_command_line(pool: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "secret")

    async def scenario() -> None:
        others = psutil.Process().children()
        async with pool() as running:
            await running.until(lambda: any(w.state == "warm" for w in running.machine.fleet.workers.values()))
            (process,) = (child for child in psutil.Process().children() if child not in others)
            environment = process.environ()
            assert "JUPYTERHUB_API_TOKEN" not in environment
            assert "HOME" not in environment
            assert len(environment["FOREBAY_WORKER_TOKEN"]) == 64
            assert environment["FOREBAY_WORKER_TOKEN"] not in " ".join(process.cmdline())
            assert os.getpgid(process.pid) == process.pid

    asyncio.run(scenario())


def test_a_worker_that_cannot_start_is_one_clear_refusal(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(worker_python="/bin/false", warm_workers=0) as running:
            client = await running.client()
            await client.hello()
            await client.ask()
            refused = await client.hears(wire.Refused)
            assert (refused.code, "exited with status 1" in refused.message) == ("not_servable", True)

    asyncio.run(scenario())


def test_stopping_ends_sessions_and_processes_and_writes_what_was_used(pool: Make) -> None:
    async def scenario() -> None:
        others = psutil.Process().children(recursive=True)
        async with pool() as running:
            client = await running.client()
            await client.hello()
            await client.acquire()
            children = [child for child in psutil.Process().children(recursive=True) if child not in others]
        assert children
        assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
        async with pool() as running:
            assert [record["close_reason"] for record in running.records()] == ["released"]

    asyncio.run(scenario())


def test_workers_are_told_the_folder_of_their_tenants_libraries(pool: Make, tmp_path: Path) -> None:
    async def scenario() -> None:
        devices = [{"kind": "cpu", "model": "cpu-dev", "memory": "4 GiB", "count": 3}]
        (tmp_path / "libraries").mkdir()
        async with pool(libraries_dir=str(tmp_path / "libraries"), devices=devices) as running:
            clients = [await running.client(who) for who in ("ada", "ben", "other-ada")]
            for client in clients:
                await client.hello()
                await client.acquire()
            folders = {path.name: path.parent for path in (tmp_path / "libraries").glob("*/*")}
            ada, ben, other = (folders[client.session] for client in clients)
            assert ada == ben != other

    asyncio.run(scenario())


def test_names_of_tenants_folders_are_made_with_a_key_that_stays_the_pools(tmp_path: Path) -> None:
    folders = keyed(tmp_path)
    assert keyed(tmp_path) == folders
    assert stat.S_IMODE((tmp_path / ".key").stat().st_mode) == 0o600
    assert len({folders.of("acme"), folders.of("globex"), LibraryFolders(tmp_path).of("acme")}) == 3
