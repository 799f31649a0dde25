"""The command ``forebay`` against an HTTP server that answers as docs/reference/http.md says, and against the embedded pool."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from forebay.toolkit import device, table
from forebay.toolkit.command import main
from forebay.toolkit.flavor import SEVERAL
from forebay.toolkit.table import counted
from rest_pool import DEV, MEDIUM, SESSIONS, TOKEN, RestPool


def test_smi_shows_devices_and_processes(rest_pool: RestPool, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smi"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert rows[0] == ["Device", "Flavor", "Model", "Memory usage", "Total memory", "Last image", "State"]
    assert rows[1] == ["0", "dev.1gb", "MI250", "300 MiB", "1,024 MiB", rows[1][5], "active"]
    assert rows[1][5].startswith("24 MiB, ") and rows[1][5].endswith(" s ago")
    assert rows[2] == ["1", "dev.1gb", "1 x cpu-dev", "0 MiB", "1,024 MiB", "-", "queued, position 2: all devices are held"]
    assert rows[3] == ["Device", "Session", "User", "Process", "Memory usage"]
    assert rows[4][:3] == ["0", "s-1", "acme-member"] and rows[4][3].endswith("…") and rows[4][4] == "300 MiB"
    assert rows[5] == ["1", "s-2", "acme-member", "digits.ipynb", "0 MiB"]


def test_smi_gives_json_to_programs(rest_pool: RestPool, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smi", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == SESSIONS


def test_smi_without_sessions_says_so(rest_pool: RestPool, capsys: pytest.CaptureFixture[str]) -> None:
    rest_pool.answers["api/sessions"] = []
    assert main(["smi"]) == 0
    assert capsys.readouterr().out == "No process of yours has a virtual device now.\n"


def test_flavor_list_marks_the_choice_and_says_rate_and_why_not(rest_pool: RestPool, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["flavor", "list"]) == 0
    out = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in out.splitlines() if line.startswith("|")]
    assert rows[1] == ["*", "dev.1gb", "1,024 MiB", "not billed", "1 x cpu-dev", "process", "torch, exec", "all are held"]
    assert len(rows) == 2 and out.endswith("\n\n1 more flavor, which this installation cannot serve: see `forebay flavor list --all`.\n")
    waits = {0.0: "free now", 52.0: "wait: about a minute", 521.0: "wait: about 9 min", None: "all are held"}
    for seconds, words in waits.items():
        rest_pool.answers["api/flavors"] = [DEV | {"wait_seconds": seconds}, MEDIUM]
        assert main(["flavor", "list"]) == 0 and f"| {words} " in capsys.readouterr().out
    rest_pool.answers["api/flavors"] = [MEDIUM, MEDIUM | {"name": "other"}]
    assert main(["flavor", "list"]) == 0 and "No device here can be lent. 2 more flavors, which" in capsys.readouterr().out
    rest_pool.answers["api/flavors"], rest_pool.choice = [DEV, MEDIUM], "medium.128gb"
    assert main(["flavor", "list"]) == 0
    assert "Your choice, medium.128gb, cannot be had: medium.128gb needs 1 MI250" in capsys.readouterr().out
    assert main(["flavor", "list", "--all"]) == 0
    out = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in out.splitlines() if line.startswith("|")]
    served_by = "1 x MI250 or 2 x MI210 or 0.25 x A100"
    assert rows[2] == ["*", "medium.128gb", "131,040 MiB", "2.99 USD/h", served_by, "process", "", "no"], "an older pool says nothing"
    assert out.endswith("Not available:\n  medium.128gb needs 1 MI250; this installation has 1 cpu-dev.\n")
    pair = [{"model": "cpu-dev", "count": 2, "share_milli": 1000, "devices": 2}]
    rest_pool.answers["api/flavors"] = [DEV | {"equivalents": pair}, MEDIUM]
    assert main(["flavor", "list"]) == 0
    assert capsys.readouterr().out.split("\n\n")[1] == f"{SEVERAL} This holds for dev.1gb."
    rest_pool.answers["api/flavors"] = [DEV | {"parked_nano_per_gib_hour": 50_000, "currency": "USD"}]
    assert main(["flavor", "list"]) == 0
    assert capsys.readouterr().out.endswith("\n\nEach GiB of images, and of tensors that are parked, costs 0.00005 USD/h more.\n")


def test_flavor_set_keeps_the_choice_at_the_pool(rest_pool: RestPool, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["flavor", "set", "medium.128gb"]) == 0
    assert rest_pool.choice == "medium.128gb"
    assert "medium.128gb: 131,040 MiB, 2.99 USD/h" in capsys.readouterr().out
    assert main(["flavor", "list", "--json"]) == 0
    assert [flavor["chosen"] for flavor in json.loads(capsys.readouterr().out)] == [False, True]


def switch(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, answer: str | None, *words: str) -> tuple[int, str, str]:
    """What `forebay switch flavor` says, on a terminal on which a person types the answer; None: there is no terminal."""
    keyboard, terminal = os.openpty()
    os.write(keyboard, f"{answer}\n".encode())
    with os.fdopen(terminal) as typed, open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing if answer is None else typed)
        status = main(["switch", "flavor", *words])
    os.close(keyboard)
    said = capsys.readouterr()
    return status, said.out, said.err


def test_switch_asks_a_person_and_takes_a_number_or_a_name(
    rest_pool: RestPool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, out, _ = switch(capsys, monkeypatch, "2")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in out.splitlines() if line.startswith("|")]
    assert rows[0][:5] == ["No.", "", "Flavor", "Memory", "Rate"]
    assert [row[:5] for row in rows[1:]] == [
        ["1", "*", "dev.1gb", "1,024 MiB", "not billed"],
        ["2", "", "medium.128gb", "131,040 MiB", "2.99 USD/h"],
    ]
    assert status == 0 and "Your new sessions get medium.128gb: 131,040 MiB, 2.99 USD/h." in out
    assert rest_pool.choice == "medium.128gb"
    assert switch(capsys, monkeypatch, "dev.1gb")[0] == 0 and rest_pool.choice == "dev.1gb"
    status, out, _ = switch(capsys, monkeypatch, "")
    assert status == 0 and out.endswith("Your choice stays as it is.\n") and rest_pool.choice == "dev.1gb"
    assert switch(capsys, monkeypatch, None, "2")[0] == 0 and rest_pool.choice == "medium.128gb"


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ("3", "There is no flavor 3; the numbers are 1 to 2."),
        ("0", "There is no flavor 0; the numbers are 1 to 2."),
        ("medium", "There is no flavor 'medium'; the nearest are medium.128gb."),
        (None, "There is nobody to ask: give a flavor's name, as `forebay flavor list` shows it."),
    ],
)
def test_switch_refuses_what_is_no_flavor(
    rest_pool: RestPool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, answer: str | None, sentence: str
) -> None:
    status, _, error = switch(capsys, monkeypatch, answer)
    assert (status, error, rest_pool.choice) == (1, f"forebay: {sentence}\n", "dev.1gb")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Medium128", "forebay: There is no flavor 'Medium128'; the nearest are medium.128gb.\n"),
        ("zzzz", "forebay: There is no flavor 'zzzz'; `forebay flavor list` shows all.\n"),
    ],
)
def test_a_wrong_flavor_is_one_sentence(rest_pool: RestPool, capsys: pytest.CaptureFixture[str], name: str, sentence: str) -> None:
    assert main(["flavor", "set", name]) == 1
    assert capsys.readouterr().err == sentence
    assert rest_pool.choice == "dev.1gb"


@pytest.mark.parametrize("command", ["run", "profile"])
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("large.256gb", "needs 1 MI300X; this installation has none. Choose another flavor (`forebay flavor list`).\n"),
        ("zzzz", "forebay: There is no flavor 'zzzz'; `forebay flavor list` shows all.\n"),
    ],
)
def test_a_program_is_not_begun_on_a_flavor_that_nothing_serves(
    rest_pool: RestPool, capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str, name: str, sentence: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('it began')")
    reason = "large.256gb needs 1 MI300X; this installation has none."
    rest_pool.answers["api/flavors"] = [DEV, {**MEDIUM, "name": "large.256gb", "servable": False, "reason": reason}]
    assert main([command, "--flavor", name, str(script)]) == 1
    assert capsys.readouterr().err.endswith(sentence)
    assert "FOREBAY_FLAVOR" not in os.environ


def test_the_pools_refusal_is_passed_on(rest_pool: RestPool, capsys: pytest.CaptureFixture[str]) -> None:
    rest_pool.refusal = (409, b'{"error": {"code": "quota", "message": "acme may hold 2 devices at a time."}}')
    assert main(["smi"]) == 1
    assert capsys.readouterr().err == "forebay: acme may hold 2 devices at a time.\n"


def test_a_stale_token_is_said(rest_pool: RestPool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_TOKEN", "stale")
    assert main(["smi"]) == 1
    assert "does not accept this token; set FOREBAY_TOKEN" in capsys.readouterr().err


@pytest.mark.parametrize("body", [b"<html>a web site</html>", b'{"hello": "world"}', b'["row"]', b"[" * 100_000])
def test_an_address_that_is_no_pool_is_said(rest_pool: RestPool, capsys: pytest.CaptureFixture[str], body: bytes) -> None:
    rest_pool.refusal = (200, body)
    assert main(["smi"]) == 1
    assert "is not a Forebay pool; check FOREBAY_URL" in capsys.readouterr().err


LISTINGS = {"smi": "api/sessions", "flavor list": "api/flavors"}


@pytest.mark.parametrize(
    ("words", "row"),
    [
        *((words, {}) for words in LISTINGS),
        ("smi", {**SESSIONS[0], "memory_bytes": "much"}),
        ("flavor list", {**DEV, "equivalents": [7]}),
        ("flavor list", {**DEV, "price_nano_per_hour": [1]}),
    ],
)
def test_a_row_of_another_shape_is_one_sentence(
    rest_pool: RestPool, capsys: pytest.CaptureFixture[str], words: str, row: dict[str, Any]
) -> None:
    rest_pool.answers[LISTINGS[words]] = [row]
    assert main(words.split()) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("forebay: The ") and said.err.count("\n") == 1
    assert f"at {rest_pool.url}/ answered what this release of forebay cannot read (" in said.err


def test_a_fault_of_the_command_itself_is_blamed_on_no_service(rest_pool: RestPool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["smi"]) == 0
    monkeypatch.setattr(device, "text", lambda flavors: flavors[99])
    with pytest.raises(IndexError):
        main(["device", "list"])


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-x\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\n" + 101 * b"A: b\r\n" + b"\r\n",
    ],
)
def test_what_speaks_no_http_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: bytes
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def say_it() -> None:
            with server.accept()[0] as peer:
                peer.recv(65_536)
                peer.sendall(answer)

        thread = threading.Thread(target=say_it)
        thread.start()
        monkeypatch.setenv("FOREBAY_URL", f"http://127.0.0.1:{server.getsockname()[1]}/")
        monkeypatch.setenv("FOREBAY_TOKEN", TOKEN)
        assert main(["smi"]) == 1
        thread.join()
    said = capsys.readouterr().err
    assert said.startswith("forebay: The pool at http://127.0.0.1:") and "cannot be reached: " in said and said.count("\n") == 1


@pytest.mark.parametrize("url", ["http://a..b/", "http://127.0.0.1:1/x y/", "http://127.0.0.1:1/\u00e9/"])
def test_an_address_that_leads_nowhere_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    monkeypatch.setenv("FOREBAY_URL", url)
    monkeypatch.setenv("FOREBAY_TOKEN", TOKEN)
    assert main(["smi"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"forebay: The pool at {url} (FOREBAY_URL) cannot be reached: ") and said.count("\n") == 1


@pytest.mark.parametrize("words", ["smi", "smi --json", "flavor list"])
def test_output_that_nobody_reads_ends_a_command_without_a_word(rest_pool: RestPool, words: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as output:
        done = subprocess.run(command(*words.split()), stdout=output, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (141, "")


def test_output_that_cannot_be_written_is_one_sentence(rest_pool: RestPool) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command("smi"), stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "forebay: [Errno 28] No space left on device.\n")


def test_ctrl_c_is_one_word(no_service: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        environment = {**os.environ, "FOREBAY_URL": f"http://127.0.0.1:{silent.getsockname()[1]}/", "FOREBAY_TOKEN": TOKEN}
        with subprocess.Popen(command("smi"), stderr=subprocess.PIPE, text=True, env=environment) as process:
            with silent.accept()[0] as peer:
                peer.recv(65_536)
                process.send_signal(signal.SIGINT)
                assert process.communicate(timeout=30)[1] == "forebay: Interrupted.\n"
    assert process.returncode == 130


@pytest.mark.parametrize("url", [None, "local"])
def test_smi_without_a_service_says_what_to_do(
    no_service: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str | None
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if url is not None:
        monkeypatch.setenv("FOREBAY_URL", url)
    assert main(["smi"]) == 0
    out = capsys.readouterr().out
    assert "FOREBAY_URL" in out and "forebay run" in out and out.count("\n") == 1


def test_smi_shows_programs_on_this_machines_own_pools(
    rest_pool: RestPool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FOREBAY_URL")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name, url in (("forebay-alive", rest_pool.url), ("forebay-killed", "http://127.0.0.1:9/")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pool.json").write_text(json.dumps({"url": url, "token": TOKEN, "pid": 1}))
    (tmp_path / "forebay-starting").mkdir()
    (tmp_path / "forebay-starting" / "pool.json").write_text("{")
    assert main(["smi", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == SESSIONS


@pytest.mark.parametrize("url", [None, "local"])
def test_a_choice_needs_a_service_that_keeps_it(
    no_service: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str | None
) -> None:
    if url is not None:
        monkeypatch.setenv("FOREBAY_URL", url)
    assert main(["flavor", "set", "dev.1gb"]) == 1
    error = capsys.readouterr().err
    assert "FOREBAY_URL" in error and "`forebay run --flavor dev.1gb script.py`" in error and error.count("\n") == 1


@pytest.mark.parametrize("url", ["ftp://pool/", "pool.example.org", "http://", "http://host:99999/"])
def test_an_address_that_cannot_be_read_is_one_sentence(
    no_service: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    monkeypatch.setenv("FOREBAY_URL", url)
    assert main(["smi"]) == 1
    assert f"FOREBAY_URL is {url!r}; it must be `local` or an address" in capsys.readouterr().err


def devices_of(capsys: pytest.CaptureFixture[str]) -> list[str | None]:
    """What `forebay device list` says now."""
    capsys.readouterr()
    assert main(["device", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["device"] for row in rows] == [f"cuda:{index}" for index in range(len(rows))]
    return [row["flavor"] for row in rows]


def test_devices_are_added_switched_removed_and_kept(
    rest_pool: RestPool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("FOREBAY_DEVICES", raising=False)
    assert devices_of(capsys) == [None]
    assert main(["device", "add", "medium.128gb"]) == main(["device", "add"]) == main(["device", "switch", "2", "dev.1gb"]) == 0
    assert devices_of(capsys) == [None, "medium.128gb", "dev.1gb"]
    assert main(["device", "rm", "0"]) == 0
    assert devices_of(capsys) == ["medium.128gb", "dev.1gb"]
    for wrong, words in ((["rm", "7"], "no device 7"), (["add", "medium"], "medium.128gb"), (["switch", "-1", "dev.1gb"], "no device -1")):
        assert main(["device", *wrong]) == 1
        assert words in capsys.readouterr().err
    assert main(["device", "rm", "1"]) == 0 and main(["device", "rm", "0"]) == 1
    assert "only device" in capsys.readouterr().err
    monkeypatch.setenv("FOREBAY_DEVICES", "a, ,b")
    assert devices_of(capsys) == ["a", None, "b"]
    for wrong_value in ("0", "17", ",".join("x" * 17)):
        monkeypatch.setenv("FOREBAY_DEVICES", wrong_value)
        assert main(["device", "list"]) == 1
        assert "1 to 16 virtual devices" in capsys.readouterr().err


def test_rates_are_exact() -> None:
    assert (table.rate(None, None), table.rate(None, "KRW")) == ("not billed", "no price in KRW")
    assert table.rate(1, "EUR") == "0.000000001 EUR/h"
    assert table.rate(0, "USD") == "0.00 USD/h"
    assert table.rate(2_000_000_000, "USD") == "2.00 USD/h"
    assert table.rate(2**62, "USD") == "4611686018.427387904 USD/h"


def test_the_embedded_pool_lists_its_flavors_and_leaves_nothing(
    no_service: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["flavor", "list"]) == 0
    out, err = capsys.readouterr()
    assert "dev.1gb" in out and err.startswith("forebay: No service is configured (FOREBAY_URL)")
    assert list(tmp_path.iterdir()) == []


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "forebay", *arguments]


def test_run_passes_arguments_and_exit_status_through(no_service: None, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os, sys\nprint(sys.argv[1:], os.environ['FOREBAY_URL'], os.environ.get('FOREBAY_FLAVOR'))\nsys.exit(7)\n")
    done = subprocess.run(
        command("run", "--flavor", "dev.4gb", str(script), "--lr", "0.1", "-m"), capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (7, "['--lr', '0.1', '-m'] local dev.4gb\n")


def test_run_takes_a_module_and_keeps_the_configured_service(no_service: None, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("import os; print(__name__, os.environ['FOREBAY_URL'])\n")
    environment = {**os.environ, "FOREBAY_URL": "http://127.0.0.1:9/", "FOREBAY_TOKEN": "t"}
    done = subprocess.run(command("run", "-m", "job"), capture_output=True, text=True, timeout=60, cwd=tmp_path, env=environment)
    assert done.stdout == "__main__ http://127.0.0.1:9/\n", done.stderr


@pytest.mark.full_sweep
def test_a_reference_model_trains_on_the_embedded_pool(no_service: None) -> None:
    words = ("models", "run", "--flavor", "dev.4gb", "dlrm", "--steps", "3", "--batch", "2")
    done = subprocess.run(command(*words), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    *steps, last = done.stdout.splitlines()
    assert [step.split()[1] for step in steps] == ["1/3", "2/3", "3/3"]
    assert " samples per second on Forebay dev.4gb (virtual), at most " in last


def test_run_says_that_a_script_is_missing(capsys: pytest.CaptureFixture[str], no_service: None) -> None:
    assert main(["run", "no-such-script.py"]) == 1
    assert "There is no file no-such-script.py" in capsys.readouterr().err


def test_ctrl_c_during_run_is_the_programs(no_service: None, tmp_path: Path) -> None:
    script = tmp_path / "long.py"
    script.write_text(
        "import time\ntry:\n    print('started', flush=True)\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    raise SystemExit(3)\n"
    )
    with subprocess.Popen(command("run", str(script)), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 3


def test_doctor_without_a_service_says_so_and_fails(run_python: Any) -> None:
    done = run_python("from forebay.toolkit.command import main; raise SystemExit(main(['doctor']))")
    assert done.returncode == 1
    assert "FAIL  environment FOREBAY_URL is not set" in done.stdout


def test_doctor_finds_the_step_that_fails(run_python: Any, scripted_pool: Any) -> None:
    code = "import torch\nfrom forebay.toolkit.command import main; raise SystemExit(main(['doctor']))"
    done = run_python(code, FOREBAY_URL="http://127.0.0.1:9/", FOREBAY_TOKEN="t")
    assert done.returncode == 1
    assert "FAIL  pool        The pool at http://127.0.0.1:9/ (FOREBAY_URL) cannot be reached" in done.stdout
    assert "session" not in done.stdout


def test_doctor_is_content_with_the_embedded_pool(run_python: Any) -> None:
    done = run_python("from forebay.toolkit.command import main; raise SystemExit(main(['doctor']))", FOREBAY_URL="local")
    assert done.returncode == 0, done.stdout + done.stderr
    names = [line.split()[1] for line in done.stdout.splitlines()]
    assert names == ["environment", "torch", "extension", "activation", "pool", "token", "flavor", "session"]


@pytest.mark.parametrize(("count", "said"), [(0, "0 steps were"), (1, "1 step was"), (2, "2 steps were"), (1_200, "1,200 steps were")])
def test_one_of_a_thing_is_said_as_one(count: int, said: str) -> None:
    assert counted(count, "step was", "steps were") == said
