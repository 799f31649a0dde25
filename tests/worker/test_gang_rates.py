"""What the devices of a gang can do, as a worker takes it from the pool: measured by itself, or by an older worker."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch  # noqa: F401 what _executor is linked to
from forebay_worker import _executor

FLOAT, DOUBLE = 6, 7
OLDER = (20e9, 2e-6, 1e9, 1e-4)
"""Bytes a second, seconds of a call, bytes a second and seconds of a link."""


def by_type(**rates: float) -> bytes:
    """As many types as are given, by their names."""
    numbers = {"float": FLOAT, "double": DOUBLE}
    return bytes([len(rates)]) + b"".join(struct.pack("<Bd", numbers[name], rate) for name, rate in rates.items())


def doubles(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}d", *values)


@pytest.fixture
def taken(tmp_path: Path) -> Callable[[bytes], bytes]:
    """What a worker passes on that was given rates."""
    server = _executor.Server("cpu", 0, "a processor", f"unix:{tmp_path}/worker", 1, "", [], "data-parallel", lambda _: None, None)

    def take(packed: bytes) -> bytes:
        server.take_rates(packed)
        return server.rates

    return take


def test_rates_are_passed_on_as_they_came(taken: Callable[[bytes], bytes]) -> None:
    flops = by_type(float=90e9, double=45e9)
    packed = flops + doubles(*OLDER) + by_type(float=8.5, double=0.0) + by_type(float=100e9, double=50e9) + doubles(1e9, 4e8)
    assert taken(packed) == packed


def test_rates_of_an_older_worker_are_taken_without_what_it_did_not_measure(taken: Callable[[bytes], bytes]) -> None:
    older = by_type(float=90e9) + doubles(*OLDER)
    assert taken(older) == older + by_type(float=0.0) * 2 + doubles(0.0, 0.0)


@pytest.mark.parametrize(
    "packed",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(by_type() + doubles(*OLDER), id="no products"),
        pytest.param(by_type(float=0.0) + doubles(*OLDER), id="a rate of zero"),
        pytest.param(by_type(float=math.inf) + doubles(*OLDER), id="a rate without end"),
        pytest.param(by_type(float=90e9) + doubles(math.nan, *OLDER[1:]), id="no number"),
        pytest.param(by_type(float=90e9) + doubles(*OLDER)[:-1], id="cut off"),
        pytest.param(by_type(float=90e9) + doubles(*OLDER) + b"\0", id="more than older ones"),
        pytest.param(by_type(float=90e9) + doubles(*OLDER) + by_type(float=-1.0) * 2 + doubles(0.0, 0.0), id="a negative side"),
        pytest.param(by_type(float=90e9) + doubles(*OLDER) + by_type(double=8.0) + by_type(float=0.0) + doubles(0, 0), id="another type"),
        pytest.param(by_type(float=90e9) + doubles(*OLDER) + by_type(float=0.0) * 2 + doubles(0.0, 0.0) + b"\0", id="too much"),
    ],
)
def test_what_are_no_rates_is_refused(taken: Callable[[bytes], bytes], packed: bytes) -> None:
    with pytest.raises((RuntimeError, ValueError)):  # a WireError, where a test has imported that
        taken(packed)
