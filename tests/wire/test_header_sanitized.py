"""The C++ header under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

from pathlib import Path

from sanitized import run_sanitized

SECONDS, SECONDS_FULL = "1", "10"
MEMORY_KIB_MAX = 256 * 1024
"""Far above what the program takes under the sanitizers, and far below what a lying count would."""


def numbers_of(source: str, folder: Path, seconds: str) -> list[int]:
    """What a program of this folder prints that runs for so long."""
    options = ":quarantine_size_mb=16:malloc_context_size=1"
    printed = run_sanitized(Path(__file__).with_name(source), folder, seconds, "20261121", flags=["-std=c++17"], options=options)
    return [int(word) for word in printed.split()]


def test_random_and_damaged_bytes_never_lead_out_of_the_frame(tmp_path: Path, full_sweep: bool) -> None:
    read, refused, peak_kib = numbers_of("fuzz_wire.cpp", tmp_path, SECONDS_FULL if full_sweep else SECONDS)
    assert read > 1000 and refused > 1000
    assert peak_kib < MEMORY_KIB_MAX


def test_client_and_worker_expect_the_same_of_programs_that_loop_and_stray(tmp_path: Path, full_sweep: bool) -> None:
    (programs,) = numbers_of("fuzz_traces.cpp", tmp_path, SECONDS_FULL if full_sweep else SECONDS)
    assert programs > 100


def test_what_two_sides_say_over_connections_that_break_is_read_once_and_in_order(tmp_path: Path, full_sweep: bool) -> None:
    breaks, refused = numbers_of("fuzz_resumption.cpp", tmp_path, SECONDS_FULL if full_sweep else SECONDS)
    assert breaks > 5 and refused > 5
