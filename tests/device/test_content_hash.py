"""The hash by which uploads are known again, under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

from pathlib import Path

from sanitized import run_sanitized


def test_every_way_to_compute_it_gives_the_same_and_every_difference_is_seen(tmp_path: Path) -> None:
    sources = Path(__file__).parents[2] / "device" / "csrc"
    flags = ["-std=c++20", f"-I{sources}", "-Wno-uninitialized", "-Wno-maybe-uninitialized"]  # as GCC 12 says of its own intrinsics
    run_sanitized(Path(__file__).with_name("check_content_hash.cpp"), tmp_path, flags=flags)
