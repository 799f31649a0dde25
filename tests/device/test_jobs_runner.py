"""The runner of a job, as a process: what it says to a pool that is away, refuses it, or is told of an end from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from forebay.errors import ForebayError
from forebay.toolkit.command import main, parser
from forebay.toolkit.jobs import submit
from forebay.toolkit.jobs.output import PIECE_CHARACTERS_MAX, PIECES_MAX, Output

PATIENCE_SECONDS = 60


class Pool:
    """What a runner says, and what it is answered: of each path a status; 200 unless a test says otherwise."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.said: list[tuple[str, dict[str, Any]]] = []
        self.statuses: dict[str, int] = {}
        pool = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                what = self.path.rpartition("/")[2]
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status = pool.statuses.get(what, 200)
                pool.said.append((what, {**body, "answered": status}))
                answer = json.dumps(job if status == 200 else {"error": {"code": "conflict", "message": "This run is over."}}).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/services/pool/"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def until(self, what: str, holds: Callable[[dict[str, Any]], object] = lambda _: True) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (found := [body for name, body in self.said if name == what and holds(body)]):
            assert time.monotonic() < deadline, self.said
            time.sleep(0.02)
        return found[0]

    @property
    def printed(self) -> str:
        kept = {piece["number"]: piece["text"] for name, body in self.said if name == "printed" for piece in body["pieces"]}
        return "".join(text for _, text in sorted(kept.items()))


Start = Callable[..., tuple[Pool, "subprocess.Popen[bytes]"]]


@pytest.fixture
def start(tmp_path: Path, free_port: int) -> Iterator[Start]:
    """Starts a runner of a program; the pool that it speaks to."""
    begun: list[tuple[Pool, subprocess.Popen[bytes]]] = []

    def go(program: str, statuses: dict[str, int] | None = None, **job: Any) -> tuple[Pool, subprocess.Popen[bytes]]:
        (tmp_path / "program.py").write_text(program)
        known = {"id": 7, "kind": "script", "file": "program.py", "folder": "", "arguments": [], "flavor": None, "attempt": 1}
        pool = Pool({**known, "label": "job 7: program.py", "time_limit_seconds": None, **job})
        pool.statuses = statuses or {}
        address = f"http://127.0.0.1:{free_port}/user/ada/job-7/"
        told = {"FOREBAY_URL": pool.url, "FOREBAY_TOKEN": "ada", "JUPYTERHUB_SERVER_NAME": "job-7", "JUPYTERHUB_SERVICE_URL": address}
        told |= {"JUPYTERHUB_API_URL": pool.url, "JUPYTERHUB_USER": "ada"}
        command = [sys.executable, "-I", "-m", "forebay.toolkit.jobs"]
        environment = {**os.environ, **told, "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        begun.append((pool, subprocess.Popen(command, env=environment, cwd=tmp_path)))
        return begun[-1]

    yield go
    if all(process.poll() is not None for _, process in begun):
        assert not list(tmp_path.glob("forebay-*")), "what a run needed is gone with it"
    for pool, process in begun:
        process.kill()
        process.wait()
        pool.close()


@pytest.fixture
def free_port() -> int:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        return server.server_port


def test_output_and_end_are_said_again_until_a_pool_that_was_away_takes_them(start: Start, free_port: int) -> None:
    pool, process = start("import os, sys\nprint('one', os.environ['FOREBAY_LABEL'])\nsys.exit(3)", {"printed": 503, "end": 503})
    pool.until("begin")
    with urllib.request.urlopen(f"http://127.0.0.1:{free_port}/user/ada/job-7/", timeout=10) as page:
        assert page.status == 200 and b"A job runs here" in page.read()
    pool.until("printed")
    pool.statuses = {}
    end = pool.until("end", lambda body: body["answered"] == 200)
    assert (end["exit_status"], end["reason"]) == (3, "exit_status")
    assert pool.printed == "one job 7: program.py\n"
    assert process.wait(PATIENCE_SECONDS) == 0
    assert len({body["key"] for what, body in pool.said if what != "activity"}) == 1


def test_a_run_that_waits_for_a_budget_says_so_once_and_one_that_is_refused_for_it_ends_so(start: Start, tmp_path: Path) -> None:
    waits = "from forebay import service\nservice.tell_runner('budget\\nThe budget of 2026-11 is used up.')\n"
    goes_on = "import time\nwhile not __import__('os').path.exists('raised'): time.sleep(0.02)\nservice.forget_budget()\n"
    pool, process = start(f"{waits}{goes_on}time.sleep(3)\nraise SystemExit(4)")
    pool.until("printed", lambda body: body.get("waits") == "budget")
    (tmp_path / "raised").touch()
    assert pool.until("end")["reason"] == "exit_status", "there was a budget again"
    assert len([body for _, body in pool.said if body.get("waits")]) == 1
    assert process.wait(PATIENCE_SECONDS) == 0
    pool, process = start(f"{waits}raise SystemExit(1)")
    end = pool.until("end")
    assert (end["exit_status"], end["reason"]) == (1, "budget")
    assert "this run is stopped by a budget: The budget of 2026-11 is used up." in pool.printed
    assert process.wait(PATIENCE_SECONDS) == 0


def test_a_runner_that_is_refused_runs_nothing_and_one_that_is_given_up_ends_its_program(start: Start, tmp_path: Path) -> None:
    program = "import os, time, pathlib\npathlib.Path('pid').write_text(str(os.getpid()))\nprint('x', flush=True)\ntime.sleep(600)"
    _, refused = start(program, {"begin": 409})
    assert refused.wait(PATIENCE_SECONDS) == 1 and not (tmp_path / "pid").exists()


def test_a_program_ends_with_the_run_that_was_given_up(start: Start, tmp_path: Path) -> None:
    begins = "import os, time, pathlib\npathlib.Path('pid').write_text(str(os.getpid()))\n"
    program = begins + "[print('x', flush=True) or time.sleep(0.2) for _ in range(3000)]"
    pool, process = start(program)
    pool.until("printed", lambda body: body["pieces"])
    pool.statuses = {"printed": 409}
    assert process.wait(PATIENCE_SECONDS) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.parametrize(("limit", "stops", "reason"), [(1, False, "time_limit"), (None, True, "server_stopped")])
def test_a_program_is_interrupted_at_its_time_limit_and_when_its_server_is_stopped(
    start: Start, limit: int | None, stops: bool, reason: str
) -> None:
    program = "import time\nprint(1, flush=True)\ntry:\n    time.sleep(600)\nexcept KeyboardInterrupt:\n    print('saved')\n    raise"
    pool, process = start(program, time_limit_seconds=limit)
    if stops:
        pool.until("printed", lambda body: body["pieces"])
        process.send_signal(signal.SIGINT)
    assert pool.until("end")["reason"] == reason
    assert list(pool.until("activity")["servers"]) == ["job-7"], "said to the hub"
    assert not stops or "saved\n" in pool.printed
    assert process.wait(PATIENCE_SECONDS) == 0


def test_a_run_has_the_packages_of_the_environment_that_was_named(start: Start, tmp_path: Path) -> None:
    made = tmp_path / ".forebay" / "environments" / "work" / "bin" / "python"
    made.parent.mkdir(parents=True)
    made.write_text('#!/bin/sh\necho "$VIRTUAL_ENV" "$@"\n')
    made.chmod(0o755)
    pool, _ = start("", environment="work")
    assert pool.until("end")["reason"] is None
    assert pool.printed == f"{made.parents[1]} -P -m forebay run {tmp_path / 'program.py'}\n"


@pytest.mark.parametrize("kind", ["script", "notebook"])
def test_an_environment_that_is_not_there_is_told_of_and_nothing_runs(start: Start, tmp_path: Path, kind: str) -> None:
    cells = [{"cell_type": "code", "id": "a", "source": "1", "metadata": {}, "outputs": [], "execution_count": None}]
    kernel = {"name": "forebay-gone", "display_name": "gone"}
    notebook = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "cells.ipynb").write_text(json.dumps(notebook))
    given = {"environment": "gone"} if kind == "script" else {"file": "cells.ipynb"}
    pool, _ = start("print('ran')", kind=kind, **given)
    end = pool.until("end")
    if kind == "script":
        assert (end["reason"], pool.printed) == (
            "unstartable", "forebay: There is no environment 'gone'; `forebay env list` shows yours, and `forebay env create` makes one.\n",
        )  # fmt: skip
    else:
        assert (end["exit_status"], "is to run in the environment 'gone', and there is none" in pool.printed) == (2, True)
        assert "Traceback" not in pool.printed and not list(tmp_path.glob("cells-job-*"))


def test_a_notebooks_output_is_what_its_cells_print_and_no_warning_of_jupyters(start: Start, tmp_path: Path) -> None:
    """Its kernel is spoken to in encrypted messages, which the warning asks for: others may be on the machine."""
    cell = {"cell_type": "code", "id": "a", "source": "print('one')", "metadata": {}, "outputs": [], "execution_count": None}
    kernel = {"name": "python3", "display_name": "Python 3"}
    notebook = {"cells": [cell], "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "cells.ipynb").write_text(json.dumps(notebook))
    pool, _ = start("", kind="notebook", file="cells.ipynb")
    assert pool.until("end")["exit_status"] == 0
    assert pool.printed == "\n--- cell 1 of 1 ---\none\n"


def test_an_output_that_nobody_takes_is_bounded_and_keeps_its_end() -> None:
    output = Output()
    for number in range(2 * PIECES_MAX):
        output.write(f"{number:05}".encode() * (PIECE_CHARACTERS_MAX // 5))
    first = output.waiting()[0]
    assert int(str(first["number"])) > PIECES_MAX - 2
    while pieces := output.waiting():
        last = pieces[-1]
        output.sent(pieces)
    assert str(last["text"]).endswith(f"{2 * PIECES_MAX - 1:05}")


def test_letters_that_come_in_two_parts_are_whole_and_what_no_text_holds_is_replaced() -> None:
    output = Output()
    for part in ("한".encode()[:1], "한".encode()[1:], b"\xff\0"):
        output.write(part)
    assert [piece["text"] for piece in output.waiting()] == ["한\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"]


# The command line


def body_of(*words: str) -> dict[str, Any]:
    return submit.body_of(parser().parse_args(["submit", *words]))


@pytest.mark.parametrize("outside", ["0", "1"])
def test_who_submits_from_another_machine_is_told_that_no_file_goes_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], outside: str
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "train.py").touch()
    pool = Pool({"id": 7, "name": "train.py", "kind": "script"})
    for name, value in {"HOME": str(tmp_path), "FOREBAY_URL": pool.url, "FOREBAY_TOKEN": "ada", "FOREBAY_OUTSIDE": outside}.items():
        monkeypatch.setenv(name, value)
    try:
        for folder, where in ((tmp_path / "work", "~/work"), (tmp_path, "~")):
            monkeypatch.chdir(folder)
            assert main(["submit", "--no-upload", str(tmp_path / "work" / "train.py")]) == 0
            said = f"forebay: No file of this machine is sent: it runs in {where} of your home at the hub, with what is there.\n"
            out, err = capsys.readouterr()
            assert out.startswith("Job 7 (train.py) is queued.") and err == (said if outside == "1" else "")
    finally:
        pool.close()


def test_what_is_submitted_is_named_from_the_home_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").touch()
    (work / "cells.ipynb").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(work)
    plain = {"kind": "script", "file": "work/train.py", "folder": "work", "arguments": ["--flavor", "mine"]}
    assert body_of("train.py", "--flavor", "mine") == plain, "what follows the program is the program's"
    more = {"flavor": "dev.1gb", "retries_max": 0, "time_limit_seconds": 5_400, "name": "n", "notify": "failures"}
    given = ("--flavor", "dev.1gb", "--retries", "0", "--time-limit", "90m", "--name", "n", "--notify", "failures")
    assert body_of(*given, "./train.py") == {**plain, "arguments": [], **more}
    assert body_of("-m", "package.train", "x") == {"kind": "module", "file": "package.train", "folder": "work", "arguments": ["x"]}
    assert body_of("cells.ipynb")["kind"] == "notebook"
    assert body_of("python", "-c", "1")["file"] == "python", "a command on PATH"
    for name in ("default", "work"):
        (tmp_path / ".forebay" / "environments" / name / "bin").mkdir(parents=True)
        (tmp_path / ".forebay" / "environments" / name / "bin" / "python").touch()
    assert body_of("--env", "work", "train.py") == {**plain, "arguments": [], "environment": "work"}
    notebook = {"metadata": {"kernelspec": {"name": "forebay-work"}}, "cells": []}
    (work / "own.ipynb").write_text(json.dumps(notebook))
    (work / "lost.ipynb").write_text(json.dumps(notebook).replace("-work", "-gone"))
    assert "environment" not in body_of("own.ipynb"), "its kernel says it"
    assert body_of("--env", "work", "lost.ipynb")["environment"] == "work"
    for words, why in (
        (("--env", "gone", "train.py"), "There is no environment 'gone'; `forebay env list`"),
        (("--env", "../work", "train.py"), "There is no environment"),
        (("lost.ipynb",), "lost.ipynb is to run in the environment 'gone', and there is none; `forebay env create gone`"),
        (("cells.ipynb", "x"), "A notebook takes no arguments"),
        (("none.py",), "There is no file none.py"),
        (("/etc/hosts",), "is not in your home"),
    ):
        with pytest.raises(ForebayError, match=why):
            body_of(*words)
