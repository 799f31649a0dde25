"""Programs and notebooks without our extension: why something waits, what it used and what it cost stands there as text."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pexpect
import pytest
from kernel_client import Shown, kernel
from lab_installation import Cloud, environment, jupyter
from websockets.sync.client import connect

pytestmark = [pytest.mark.slow]

PATIENCE_SECONDS = 120
LINE = r"forebay: device \d+\.\d+ s · waited \d+\.\d+ s · (< )?\d\.\d+ USD · dev\.\dgb"
WAIT = r"forebay: waiting for dev\.1gb, next in line: The one device that serves dev\.1gb is held\."
PROGRAM = "import torch\nprint(int(torch.ones(500, 500, device='cuda').sum()))\n"
CELL = "int(torch.ones(500, 500, device='cuda').sum())"


@pytest.fixture
def variables(cloud: Cloud, tmp_path: Path) -> dict[str, str]:
    """What somebody has who is signed in."""
    return {**environment(cloud, tmp_path), "FOREBAY_FLAVOR": "dev.1gb", "TERM": "dumb"}


@contextmanager
def terminal(variables: dict[str, str], *command: str) -> Iterator[Any]:
    found = pexpect.spawn(command[0], list(command[1:]), env=variables, cwd=variables["HOME"], encoding="utf-8", timeout=PATIENCE_SECONDS)
    try:
        yield found
    finally:
        found.close(force=True)


@pytest.mark.parametrize("uv", [False, True], ids=["python", "uv run"])
def test_a_program_in_a_terminal_tells_why_it_waits_and_at_its_end_what_it_used(cloud: Cloud, variables: dict[str, str], uv: bool) -> None:
    script = Path(variables["HOME"]) / "train.py"
    script.write_text(PROGRAM)
    of_uv = (str(Path(sys.executable).with_name("uv")), "run", "--no-project", "--offline", "--python", sys.executable)
    with cloud.device_held():
        found = terminal(variables, *(of_uv if uv else (sys.executable,)), str(script))
        program = found.__enter__()
        program.expect(WAIT)
    program.expect("250000")
    program.expect(LINE)
    program.expect(pexpect.EOF)
    found.__exit__(None, None, None)
    assert program.exitstatus == 0
    rows = cloud.ask("billing", "acme-member", "GET", "api/usage", params={"limit": 1})["records"]
    assert rows[0]["span"]["label"].endswith("train.py")


def test_a_program_that_is_interrupted_in_a_terminal_has_its_line_and_ends_as_others_do(cloud: Cloud, variables: dict[str, str]) -> None:
    code = "import time, torch\nprint(torch.ones(9, device='cuda').sum().item(), flush=True)\ntime.sleep(60)"
    with terminal(variables, sys.executable, "-c", code) as program:
        program.expect("9.0")
        program.sendintr()
        program.expect("KeyboardInterrupt")
        program.expect(LINE)
        program.expect(pexpect.EOF)
    assert program.signalstatus == signal.SIGINT


def test_what_a_program_prints_into_a_file_or_a_pipe_has_no_line_of_ours(cloud: Cloud, variables: dict[str, str]) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=variables, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert (done.returncode, done.stdout) == (0, "250000\n") and "device" not in re.sub(r"waiting for .*|granted.*", "", done.stderr), done


def test_ipython_shows_both_below_each_cell(cloud: Cloud, variables: dict[str, str]) -> None:
    with terminal(variables, sys.executable, "-m", "IPython", "--simple-prompt", "--no-banner") as shell:
        shell.expect(r"In \[1\]: ")
        shell.sendline("import torch")
        shell.expect(r"In \[2\]: ")
        with cloud.device_held():
            shell.sendline(CELL)
            shell.expect(WAIT)
        shell.expect("250000")
        shell.expect(LINE)
        shell.expect(r"In \[3\]: ")
        shell.sendline(CELL)
        shell.expect("250000")
        shell.expect(LINE)
        shell.sendline("exit")
        shell.expect(pexpect.EOF)
        assert not re.search(LINE, shell.before), "cells have their lines, and the program none besides"


def test_a_kernel_that_an_editor_starts_shows_both(cloud: Cloud, variables: dict[str, str]) -> None:
    """As VS Code does: by ``jupyter_client``, with the notebook's path in a variable of the kernel's."""
    with kernel(variables) as editors:
        assert not editors.run("__vsc_ipynb_file__ = '/home/ada/work/study.ipynb'\nimport torch").errors
        with cloud.device_held():
            cell = editors.start(CELL)
            shown = editors.until(Shown(), lambda shown: re.search(WAIT, shown.streams.get("stderr", "")))
        shown = editors.finish(cell, shown)
        assert shown.results == ["250000"]
        editors.until(shown, lambda shown: any(re.fullmatch(LINE, line) for line in shown.lines))
    rows = cloud.ask("billing", "acme-member", "GET", "api/usage", params={"limit": 1})["records"]
    assert rows[0]["span"]["label"] == "study.ipynb"


def test_a_server_of_the_laptop_s_own_shows_both(cloud: Cloud, variables: dict[str, str]) -> None:
    """As JupyterLab Desktop does: a Jupyter server and a kernel on this machine, here with a client that has no extension."""
    with jupyter(cloud, Path(variables["HOME"])) as server:
        token = {"token": server.token}
        started = httpx.post(f"{server.url}/api/kernels", params=token, json={"name": "python3"}, timeout=PATIENCE_SECONDS).json()
        channels = f"{server.url.replace('http', 'ws')}/api/kernels/{started['id']}/channels?token={server.token}"
        with connect(channels, max_size=None) as link:
            shown = Shown()
            _finish(link, _execute(link, "%flavor dev.1gb\nimport torch"), shown)
            with cloud.device_held():
                cell = _execute(link, CELL)
                while not re.search(WAIT, shown.streams.get("stderr", "")):
                    _take(link, cell, shown)
            _finish(link, cell, shown)
            while not any(re.fullmatch(LINE, line) for line in shown.lines):
                _take(link, cell, shown)
            assert shown.results == ["250000"]


def _execute(link: Any, code: str) -> str:
    name = uuid.uuid4().hex
    header = {"msg_id": name, "msg_type": "execute_request", "username": "", "session": "laptop", "date": "", "version": "5.3"}
    content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False, "stop_on_error": True}
    link.send(json.dumps({"channel": "shell", "header": header, "parent_header": {}, "metadata": {}, "content": content, "buffers": []}))
    return name


def _take(link: Any, cell: str, shown: Shown) -> bool:
    """Whether the cell has ended."""
    message = json.loads(link.recv(timeout=PATIENCE_SECONDS))
    if message["channel"] != "iopub" or message["parent_header"].get("msg_id") != cell:
        return False
    if message["msg_type"] not in ("comm_open", "comm_msg"):
        shown.take(message)
    return message["msg_type"] == "status" and message["content"]["execution_state"] == "idle"


def _finish(link: Any, cell: str, shown: Shown) -> None:
    while not _take(link, cell, shown):
        pass


NOTEBOOK = """
import marimo
app = marimo.App()

@app.cell
def _():
    import torch
    x = torch.ones(500, 500, device="cuda")
    int(x.sum())
    return torch, x

@app.cell
def _(x):
    int((x * 2).sum())
    return

if __name__ == "__main__":
    app.run()
"""
MARIMO = "marimo==0.25.2"


@pytest.mark.full_sweep
def test_marimo_without_a_window_tells_why_a_cell_waits(cloud: Cloud, variables: dict[str, str]) -> None:
    home = Path(variables["HOME"])
    python, packages = _over_ours(home / "environment", MARIMO)
    (home / "notebook.py").write_text(NOTEBOOK)
    command = [python, "-m", "marimo", "-y", "export", "ipynb", "notebook.py", "-o", "done.ipynb", "--include-outputs"]
    with cloud.device_held():
        export = subprocess.Popen(command, env=variables, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        _until_somebody_waits(cloud)
    said, _ = export.communicate(timeout=PATIENCE_SECONDS)
    assert export.returncode == 0, said
    cells = json.loads((home / "done.ipynb").read_text())["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    streams = ["".join(output["text"]) for output in outputs if output["output_type"] == "stream"]
    assert re.search(WAIT, "".join(streams)) and "granted" in "".join(streams), outputs
    html = "".join("".join(output["data"]["text/html"]) for output in outputs if "data" in output)
    assert "250000" in html and "500000" in html
    assert packages.is_dir()


def _until_somebody_waits(cloud: Cloud) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not any(row["state"] == "queued" for row in cloud.mine()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(2.0)  # a short wait has no line


def _over_ours(folder: Path, *requirements: str) -> tuple[str, Path]:
    """An environment with these packages, over that of the tests."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(packages), *requirements]
    subprocess.run(install, check=True, env={**os.environ, "PIP_NO_WARN_CONFLICTS": "1"})
    ours = next(path for path in sys.path if path.endswith("site-packages"))
    (packages / "zz_ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    return str(folder / "bin" / "python"), packages
