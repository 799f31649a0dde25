"""``jupyter console``, a front end without our extension: everything is text there, and Ctrl-C leaves the queue."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest
from kernel_client import served
from lab_installation import environment

pytestmark = [pytest.mark.slow]

START_SECONDS = 120
CELL_SECONDS = 120
LINE = r"forebay: device \d+\.\d+ s · waited \d+\.\d+ s · (< )?\d\.\d+ USD · dev\.\dgb"


@pytest.fixture(scope="module")
def console(cloud: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A terminal with a kernel of the user's; the import of torch is over."""
    home: Path = tmp_path_factory.mktemp("console-home")
    command = ["-m", "jupyter_console", "--kernel=python3", "--ZMQTerminalInteractiveShell.simple_prompt=True"]
    terminal = {"TERM": "dumb", "PYTHONUNBUFFERED": "1"}
    found = pexpect.spawn(
        sys.executable, command, env={**served(environment(cloud, home)), **terminal}, cwd=str(home), encoding="utf-8", timeout=CELL_SECONDS
    )
    found.expect(r"In \[1\]: ", timeout=START_SECONDS)
    try:
        enter(found, "%flavor dev.1gb")  # whatever the user chose last
        said = enter(found, "import torch; x = torch.ones(500, 500, device='cuda')")
        assert "Traceback" not in said, said
        yield found
    finally:
        found.close(force=True)


def enter(console: Any, code: str) -> str:
    """Executes a line; what stood below it when the prompt came back."""
    console.sendline(code)
    console.expect(r"In \[\d+\]: ")
    return str(console.before)


def test_a_cell_that_used_the_device_ends_with_its_line(console: Any) -> None:
    console.sendline("int(x.sum())")
    console.expect("250000")
    console.expect(LINE)
    console.expect(r"In \[\d+\]: ")


def test_magics_answer_in_words(console: Any) -> None:
    assert "dev.1gb" in enter(console, "%gpu")
    assert "dev.4gb" in enter(console, "%flavor")


def test_a_wait_is_told_in_words_and_ctrl_c_leaves_the_queue(console: Any, cloud: Any) -> None:
    with cloud.device_held():
        console.sendline("int(x.sum())")
        console.expect("waiting for dev.1gb, next in line: ")
        console.sendintr()
        console.expect("KeyboardInterrupt")
        console.expect(r"In \[\d+\]: ")  # while the device is held yet
    assert "250000" in enter(console, "int(x.sum())"), "the tensor is still there"
