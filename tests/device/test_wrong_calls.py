"""Wrong calls raise where PyTorch raises natively, in its words: those that people write, those of PyTorch's databases, and samples of
``op_db`` with another dtype or another rank."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from pathlib import Path

import fork_server
import pytest

HERE = Path(__file__).resolve().parent
SECONDS_MAX = 280
EVERY = 6
CALLS_MIN = {"catalogue": 620, "operators": 680, "modules": 88, "optimizers": 90, "dtypes": 480, "ranks": 165}
LATE_MAX = {"catalogue": 1, "operators": 0, "modules": 0, "optimizers": 0, "dtypes": 0, "ranks": 0}
"""Calls that raise later than natively, or never: `histc` of ints, which GPUs count."""
REWORDED_MAX = {"catalogue": 27, "operators": 18, "modules": 0, "optimizers": 0, "dtypes": 24, "ranks": 10}
"""Calls that raise at once, but in other words than natively, or another class."""

Finding = dict[str, object]


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> list[Finding]:
    """All calls of the catalogue and of the databases' own, and samples of every sixth entry, changed."""
    output = tmp_path_factory.mktemp("wrong-calls") / "findings.json"
    command = [fork_server.databases(), str(HERE / "wrong_calls.py"), str(output), "--every", str(EVERY)]
    environment = {**os.environ, "FOREBAY_URL": "local", "FOREBAY_KNOWN_CALLS": ""}  # the first call of a kind waits for the worker
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    found: list[Finding] = json.loads(output.read_text())
    return found


def of(findings: list[Finding], *verdicts: str) -> list[Finding]:
    """Those with one of the verdicts that do not depend on values."""
    return [one for one in findings if one["verdict"] in verdicts and not one["by_value"]]


def check_counts(chosen: list[Finding], most: dict[str, int]) -> None:
    counts = Counter(str(one["source"]) for one in chosen)
    over = {source for source, count in counts.items() if count > most[source]}
    told = "\n".join(f"{one['source']}: {one['name']}: {one['verdict']}; {one['device']}" for one in chosen if one["source"] in over)
    assert not over, f"{dict(counts)} of at most {most}:\n{told}"


@pytest.mark.slow
@pytest.mark.timeout(SECONDS_MAX + 20)
def test_what_pytorch_raises_at_the_call_is_raised_at_the_call(findings: list[Finding]) -> None:
    made = Counter(str(one["source"]) for one in findings)
    assert all(made[source] >= least for source, least in CALLS_MIN.items()), made
    check_counts(of(findings, "later", "never"), LATE_MAX)


@pytest.mark.slow
def test_what_is_raised_at_the_call_is_of_the_class_and_in_the_words_of_pytorch(findings: list[Finding]) -> None:
    check_counts(of(findings, "at the call, in other words", "at the call, of another class"), REWORDED_MAX)


@pytest.mark.slow
def test_no_call_raises_on_the_device_alone_and_what_depends_on_values_raises_too(findings: list[Finding]) -> None:
    assert not [one for one in findings if one["verdict"] == "on the device alone"]
    assert not [one for one in findings if one["verdict"] == "never" and one["by_value"]]
