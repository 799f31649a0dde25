"""The same seed gives the same bits, whichever worker serves a run, however many threads it has, and where a run was interrupted."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import fork_server
from standalone import standalone_worker

PROGRAM = Path(__file__).resolve().parent / "random_draws.py"


def drawn(folder: Path, threads: int, *arguments: str) -> dict[str, str]:
    """Digests by draw, of a run in a process of its own, on a worker of its own with so many threads."""
    folder.mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "FOREBAY_URL"}
    with standalone_worker(folder, "--threads", str(threads)) as (address, ticket):
        run = [fork_server.programs(), str(PROGRAM), address, ticket, *arguments]
        done = subprocess.run(run, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    return dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())


def test_a_seed_gives_the_same_draws_on_workers_of_one_and_of_four_threads(tmp_path: Path) -> None:
    one, four = drawn(tmp_path / "one", 1), drawn(tmp_path / "four", 4)
    assert len(one) > 60
    assert one == four
    repeated = [name for name in one if name.startswith("first ") and one[name] == one[name.replace("first", "second", 1)]]
    assert repeated == [], "these drew the same twice"


def test_a_run_that_was_interrupted_goes_on_equally_in_another_process_on_another_worker(tmp_path: Path) -> None:
    whole = drawn(tmp_path / "whole", 2)
    state = str(tmp_path / "state.pt")
    begun = drawn(tmp_path / "begun", 1, state)
    resumed = drawn(tmp_path / "resumed", 3, state, "--resume")
    assert begun and resumed and begun | resumed == whole
