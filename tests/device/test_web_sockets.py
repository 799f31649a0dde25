"""The client's WebSocket to an edge: what RFC 6455 allows is understood, what it forbids ends the connection, refusals are sentences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from behind_proxy import Served, outcome, served
from splitting_edge import BINARY, PING, SplittingEdge, frame

WAIT_SECONDS = 60


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as found:
        yield found


MORE = pytest.mark.full_sweep
"""Each waits until the client has given up, 10 seconds."""


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=MORE) for seed in range(1, 20))])
def test_borders_of_messages_and_pings_change_nothing(tmp_path: Path, worker: Served, seed: int) -> None:
    edge = SplittingEdge(worker.address, seed)
    found = outcome(worker.program("steps", 6, edge.address))
    edge.close()
    with served(tmp_path) as other:
        assert found["found"] == outcome(other.program("steps", 6, other.address))["found"]
    assert edge.pings and edge.pongs, "it pinged, and was answered"
    assert edge.connections == 1
    assert len(set(edge.keys)) > 0.9 * len(edge.keys) > 3, "each frame has a key of its own"


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(frame(1, b"text"), id="text"),
        pytest.param(frame(3, b"of no known kind"), id="unknown", marks=MORE),
        pytest.param(frame(BINARY | 0x40, b"a bit that nobody agreed on"), id="reserved", marks=MORE),
        pytest.param(bytes([0x80 | BINARY, 0x80 | 1]) + b"mask!", id="masked", marks=MORE),
        pytest.param(bytes([0x80 | PING, 126]) + b"\x00\x7e" + bytes(126), id="long ping", marks=MORE),
    ],
)
def test_what_an_edge_may_not_send_ends_the_connection(worker: Served, wrong: bytes) -> None:
    edge = SplittingEdge(worker.address, 1, wrong=wrong)
    program = worker.program("steps", 1, edge.address)
    _, said = program.communicate(timeout=WAIT_SECONDS)
    edge.close()
    assert program.returncode == 1 and "the connection to the worker broke" in said
    assert edge.connections > 1, "it was tried again"


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden"])
def test_an_edge_that_does_not_take_the_token_is_not_asked_again(worker: Served, status: str) -> None:
    edge = SplittingEdge(worker.address, 1, status=status)
    program = worker.program("steps", 1, edge.address)
    _, said = program.communicate(timeout=WAIT_SECONDS)
    edge.close()
    assert program.returncode == 1 and said.strip().endswith("the hub's edge does not accept the token")
    assert edge.connections == 1


@MORE
def test_an_edge_that_cannot_serve_at_present_is_asked_again(worker: Served) -> None:
    edge = SplittingEdge(worker.address, 1, status="503 Service Unavailable")
    program = worker.program("steps", 1, edge.address)
    _, said = program.communicate(timeout=WAIT_SECONDS)
    edge.close()
    assert program.returncode == 1 and "the connection to the worker broke" in said
    assert edge.connections > 3
