"""Another worker compiles a program's kernels before it is sent what launches them."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import forebay_wire
import fork_server
import pytest
from standalone import standalone_worker
from standin import build

SOURCES = Path(__file__).parents[2] / "device" / "csrc"
KERNEL, LAUNCH, SETTINGS, RESTORE, DOOR, MEMBER, REDUCE = 36, 37, 26, 43, 30, 31, 33
CALL, FREE, READ, RENUMBER = 4, 8, 10, 53
"""Numbers of commands (docs/wire.md)."""
SECONDS_MAX = 300


def test_another_worker_is_sent_what_it_lacks_in_the_right_order(tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    assert compiler, "g++ builds the extensions, so it must be here"
    sources = [Path(__file__).with_name("check_journal.cpp"), SOURCES / "replay" / "journal.cpp"]
    flags = ["-std=c++20", "-O0", "-Wall", "-Wextra", "-D_GLIBCXX_ASSERTIONS", f"-I{forebay_wire.include_dir()}", f"-I{SOURCES}"]
    subprocess.run([compiler, *flags, *map(str, sources), "-o", tmp_path / "check"], check=True, timeout=120)
    said = subprocess.run([tmp_path / "check"], capture_output=True, text=True, check=True, timeout=20).stdout.splitlines()
    assert said[:2] == [f" {KERNEL} await(7) {LAUNCH}", f" {RESTORE} {KERNEL} await(7) {SETTINGS} {LAUNCH}"]
    assert said[2] == f" {RESTORE} {KERNEL} await(7) {SETTINGS} {LAUNCH} {REDUCE}", "the image before had no groups"
    assert said[3] == f" {RESTORE} {SETTINGS} {DOOR} met(7) {MEMBER} {REDUCE}", "doors are told of before members are waited for"
    assert said[4:7] == [f"111 101 {RESTORE} {READ}", *[f"111 110 {CALL} {FREE} {RENUMBER} {READ}"] * 2], "from the beginning"
    between = f"{RESTORE} {SETTINGS} {FREE} {RENUMBER} {READ}"
    assert said[7:10] == [f"111 101 {RESTORE} {READ}", f"111 110 {between}", f"111 110 {between}"], "from the image before"
    assert said[10:12] == ["111 000"] * 2, "nothing is there to go on from"
    assert said[12] == f" {REDUCE}", "what the worker has already is not restored"
    assert said[13:15] == ["000111100", "000110000"], "uploads that find room once the image is there"
    assert said[15:18] == ["0" * 9] * 3, "there is room, or nothing to wait for"
    assert said[18:] == ["00"]


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed: pip install triton (190 MB)")
@pytest.mark.timeout(SECONDS_MAX + 60)
def test_launches_are_done_again_by_a_worker_that_was_told_nothing_yet(tmp_path: Path) -> None:
    """On the stand-in, which interprets what the worker compiled."""
    python = fork_server.standin(build.built())
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    options = {"memory_bytes": 4 << 30, "python": python}
    with (
        standalone_worker(folders[0], "--device", "standin:0", "--kernels", **options) as first,
        standalone_worker(folders[1], "--device", "standin:0", "--kernels", **options) as second,
    ):
        command = [fork_server.programs(), "triton_replay.py", *first, *second]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, cwd=Path(__file__).parent, check=False)
    assert done.returncode == 0, done.stderr + "".join((folder / "worker.log").read_text() for folder in folders)
    told = json.loads(done.stdout.splitlines()[-1])
    assert told == {"before": [0.0, 3.0, 6.0, 9.0], "after": [0.0, 6.0, 12.0, 18.0], "went_on": True}
