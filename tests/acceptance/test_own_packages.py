"""What a person installs with %pip on a running installation is theirs: in kernels, terminals and jobs, also after a restart."""

from __future__ import annotations

import json
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

PATIENCE_SECONDS = 120
SCRIPT = "import own_package, sys\nprint('a script has', own_package.VERSION, sys.prefix)\n"
CELL = "import own_package\nprint('a cell has', own_package.VERSION)"
LOOK = "import importlib.util as u, sys\nprint(u.find_spec('own_package'), sys.prefix)"


def wheel(folder: Path) -> Path:
    """Of a package that nobody else has."""
    told = "own_package-1.0.dist-info"
    files = {
        "own_package.py": "VERSION = '1.0'\n",
        f"{told}/METADATA": "Metadata-Version: 2.1\nName: own_package\nVersion: 1.0\n",
        f"{told}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{told}/RECORD": "",
    }
    path = folder / "own_package-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def notebook(kernel: str, source: str) -> str:
    cell = {"cell_type": "code", "id": "one", "source": source, "metadata": {}, "outputs": [], "execution_count": None}
    metadata = {"kernelspec": {"name": kernel, "display_name": kernel, "language": "python"}}
    return json.dumps({"cells": [cell], "metadata": metadata, "nbformat": 4, "nbformat_minor": 5})


@pytest.fixture
def home(cloud: Any, member: Any) -> Iterator[Path]:
    """Of acme-member, as it was before, afterwards."""
    found: Path = cloud.state / "homes" / "acme-member"
    before = set(found.iterdir())
    package = wheel(found)
    yield found
    package.unlink()
    for path in set(found.iterdir()) - before - {found / ".forebay"}:
        path.unlink() if path.is_file() else None


def typed(member: Any, line: str, last: str) -> str:
    """What a new terminal of the server shows for a line that ends by printing ``last``."""
    root = f"/user/{member.name}/"
    headers = {"X-XSRFToken": member.xsrf(root)}
    name = member.web.post(f"{root}api/terminals", headers=headers).raise_for_status().json()["name"]
    cookies = "; ".join(f"{cookie.name}={cookie.value}" for cookie in member.web.cookies.jar if root.startswith(cookie.path))
    address = str(member.web.base_url.join(f"{root}terminals/websocket/{name}")).replace("http", "ws", 1)
    shown = ""
    with connect(address, additional_headers={"Cookie": cookies}, close_timeout=2, proxy=None) as terminal:
        terminal.send(json.dumps(["stdin", f"{line}; echo {last[:1]}''{last[1:]}\r"]))
        deadline = time.monotonic() + PATIENCE_SECONDS
        while last not in shown:
            kind, *said = json.loads(terminal.recv(timeout=max(0.0, deadline - time.monotonic())))
            shown += said[0] if kind == "stdout" else ""
    member.web.delete(f"{root}api/terminals/{name}", headers=headers).raise_for_status()
    return shown


def job(cloud: Any, token: str, file: str, **more: str) -> str:
    """What a job printed that succeeded."""
    headers, address = {"Authorization": f"token {token}"}, f"{cloud.url}/services/pool/api/jobs"
    body = {"kind": "notebook" if file.endswith(".ipynb") else "script", "file": file, "folder": "", "arguments": [], **more}
    number = httpx.post(address, headers=headers, json=body, timeout=30).raise_for_status().json()["id"]
    deadline, row = time.monotonic() + PATIENCE_SECONDS, {"state": "queued"}
    while row["state"] not in ("succeeded", "failed", "cancelled"):
        assert time.monotonic() < deadline, row
        time.sleep(0.1)
        row = httpx.get(f"{address}/{number}", headers=headers, timeout=30).raise_for_status().json()
    answer = httpx.get(f"{address}/{number}/output", headers=headers, timeout=30).raise_for_status().json()
    printed = "".join(piece["text"] for piece in answer["pieces"])
    assert row["state"] == "succeeded", printed
    return printed


@pytest.mark.full_sweep
def test_a_package_is_ones_own_in_kernels_terminals_and_jobs_and_is_there_after_a_restart(
    cloud: Any, member: Any, home: Path, kernel_type: Callable[..., Any]
) -> None:
    """A job of a notebook runs in the environment of its kernel, unless another is named."""
    default = home / ".forebay" / "environments" / "default"
    (home / "own.ipynb").write_text(notebook("python3", CELL))
    (home / "other.ipynb").write_text(notebook("forebay-other", LOOK))
    (home / "look.ipynb").write_text(notebook("python3", LOOK))
    (home / "look.py").write_text(LOOK)
    (home / "own.py").write_text(SCRIPT)
    kernel = kernel_type(member, "own.ipynb")
    assert "Successfully installed own-package-1.0" in kernel.run(f"%pip install --no-index ./{wheel(home).name}")
    assert kernel.run(CELL) == "a cell has 1.0\n"
    kernel.close()
    member.stop_server()
    member.spawn("dev.4gb")
    member.open_lab()
    kernel = kernel_type(member, "own.ipynb")
    assert kernel.run(CELL) == "a cell has 1.0\n"
    assert kernel.run("import torch; print(torch.ones(3, device='cuda:0').sum().item())") == "3.0\n"
    kernel.close()
    shown = typed(member, "forebay submit --env other own.py; command -v python; pip list --local; forebay env create other", "the-end")
    assert "There is no environment 'other'" in shown and "is queued" not in shown
    assert f"{default}/bin/python" in shown and "own_package 1.0" in shown and "other is made." in shown
    token = member.new_token()
    assert job(cloud, token, "own.py") == f"a script has 1.0 {default}\n"
    assert "a cell has 1.0\n" in job(cloud, token, "own.ipynb")
    for file, more in (("other.ipynb", {}), ("look.ipynb", {"environment": "other"}), ("look.py", {"environment": "other"})):
        assert f"None {default.with_name('other')}\n" in job(cloud, token, file, **more)
    kernels = member.web.get(f"/user/{member.name}/api/kernelspecs").raise_for_status().json()["kernelspecs"]
    names = {name: spec["spec"]["display_name"] for name, spec in kernels.items()}
    assert names == {"python3": "Python 3 (virtual GPU)", "forebay-other": "other: Python 3 (virtual GPU)"}
    typed(member, "forebay env remove other; forebay env remove default", "the-end")
    assert not list(default.glob("lib/python*/site-packages/own_package*")) and not default.with_name("other").exists()
