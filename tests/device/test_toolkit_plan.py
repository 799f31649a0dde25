"""``forebay plan`` as people use it: its report, JSON and page, and one sentence for all that is wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import fork_server
import pytest
from forebay.toolkit import flavor
from forebay.toolkit.command import main
from rest_pool import TOKEN, served

PROGRAMS = Path(__file__).resolve().parent / "planned_programs.py"
TRAINING = """\
import torch
model = torch.nn.Linear(8, 2).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(COUNT):
    x = torch.randn(ROWS, 8).to("cuda")
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    MORE
"""

Plan = Callable[..., int]
PYTHON = sys.executable


@pytest.fixture(autouse=True)
def quick_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(fork_server.programs()))
    monkeypatch.delenv("FOREBAY_URL", raising=False)


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., str]:
    def write(more: str = "pass", rows: int = 16, count: int = 10) -> str:
        path = tmp_path / "train.py"
        path.write_text(TRAINING.replace("COUNT", str(count)).replace("ROWS", str(rows)).replace("MORE", more))
        return str(path)

    return write


def test_a_scripts_plan_is_told_on_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--devices", "8", "--device", "h100", str(PROGRAMS), "language", "64"]) == 0
    told = capfd.readouterr().out
    assert told.startswith("Plan for 8 x H100 of 80 GiB on 1 host: ")
    for expected in (
        "  why: the fastest that fits; ",
        "on the 64 rows of the batch",
        "optimizer states: 2.6 MiB",
        "| activations",
        "| in all",
    ):
        assert expected in told
    assert re.search(r"^Rejected\n  \S.*: \S", told, re.MULTILINE), "what was rejected, and why"
    assert "450 GB/s between devices of a host" in told and "NVIDIA H100 SXM data sheet" in told
    assert "nothing was computed, and nothing measured" in told and "What the product does of it today" in told


def test_a_plan_is_given_as_json_and_as_a_page(tmp_path: Path, capfd: pytest.CaptureFixture[str], script: Callable[..., str]) -> None:
    page, network = tmp_path / "plan.html", tmp_path / "network.json"
    network.write_text('{"host": {"latency_us": 5, "gigabytes_per_second": 300}, "switch": {"latency_us": 9, "gigabytes_per_second": 40}}')
    options = ["--devices", "4", "--memory", "24GiB", "--per-host", "2", "--network", str(network), "--json", "--html", str(page)]
    assert main(["plan", *options, script()]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["step"]["weight_bytes"] == told["step"]["gradient_bytes"] == 4 * (8 * 2 + 2)
    assert told["step"]["state_bytes"] == 0 and told["step"]["rows"] == 16
    assert told["machine"]["memory_bytes"] == 24 << 30 and told["machine"]["network"]["host"]["bytes_per_second"] == 3e11
    assert sum(size for part, size in told["chosen"]["memory_bytes"].items() if part != "total") == told["chosen"]["memory_bytes"]["total"]
    text = page.read_text()
    assert told["chosen"]["name"] in text and all(one["why"] in text for one in told["rejected"])
    assert not re.search(r"(src|href)=|https?:|@import|url\(", text), "nothing from elsewhere"
    assert text.count("<li>") == 4, "each device of the mesh"
    HTMLParser().feed(text)


def test_a_plan_in_stages_says_what_is_on_paper_alone(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    assert main(["plan", "--devices", "128", "--html", str(page), str(PROGRAMS), "transformer", "64"]) == 0
    told = capfd.readouterr().out
    stages = re.search(r"^Plan for 128 x MI250 .*, (\d+) stages", told)
    assert stages is not None and f"  mesh: stage {stages[1]} x copy " in told
    assert "| stages without work" in told and "| Memory of the largest stage" in told
    assert "stages of layers, tensor groups beside other parts of the batch" in told
    assert "<li>127: " not in page.read_text() and "and 64 more, alike" in page.read_text()
    assert "stages without work" in page.read_text() and "a device of the largest stage" in page.read_text()


def test_micro_batches_of_the_program_are_told(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--devices", "4", str(PROGRAMS), "perceptron", "64", "accumulated"]) == 0
    assert "  the program divides its batch into 4 micro-batches itself; repeated layers: none found" in capfd.readouterr().out


def test_a_stream_is_recorded_once(tmp_path: Path, capfd: pytest.CaptureFixture[str], script: Callable[..., str]) -> None:
    stream = tmp_path / "train.stream"
    assert main(["plan", "--devices", "2", "--json", "--stream", str(stream), script()]) == 0
    first = capfd.readouterr()
    assert main(["plan", "--devices", "2", "--json", "--stream", str(stream)]) == 0
    assert capfd.readouterr() == (first.out, "")


def test_a_script_is_ended_after_three_steps_and_its_own_words_go_to_standard_error(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, script: Callable[..., str]
) -> None:
    """With zeros for what it reads. In an interpreter of its own: a fork ends a little later than what stands for it, and says how."""
    monkeypatch.setattr(sys, "executable", PYTHON)
    assert main(["plan", "--devices", "2", "--json", script("print(number, loss.item(), flush=True)", count=10**9)]) == 0
    told = capfd.readouterr()
    assert json.loads(told.out)["step"]["rows"] == 16
    assert told.err.startswith("0 0.0\n1 0.0\n2 0.0\n") and "Traceback" not in told.err


def test_a_script_that_ends_by_itself_is_planned_too(capfd: pytest.CaptureFixture[str], script: Callable[..., str]) -> None:
    assert main(["plan", "--devices", "2", "--json", "--iterations", "5", script(count=4)]) == 0
    assert json.loads(capfd.readouterr().out)["step"]["rows"] == 16


def test_a_flavors_devices_are_planned_for(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], script: Callable[..., str]
) -> None:
    with served() as pool:
        pool.choice = "medium.128gb"
        monkeypatch.setenv("FOREBAY_URL", pool.url)
        monkeypatch.setenv("FOREBAY_TOKEN", TOKEN)
        assert main(["plan", script()]) == 0
    assert capfd.readouterr().out.startswith("Plan for one MI250 of 128 GiB on 1 host: one device")


def test_no_more_memory_is_planned_with_than_a_flavor_has_of_a_device(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], script: Callable[..., str]
) -> None:
    quarter = [{"model": "A100", "count": 1, "share_milli": 250}]
    monkeypatch.setattr(flavor, "row_of", lambda name: {"name": name, "memory_bytes": 20 << 30, "equivalents": quarter})
    with served() as pool:
        monkeypatch.setenv("FOREBAY_URL", pool.url)
        monkeypatch.setenv("FOREBAY_TOKEN", TOKEN)
        for options, told in ((), "A100 of 20 GiB"), (("--memory", "10GiB"), "A100 of 10 GiB"), (("--device", "h100"), "H100 of 80 GiB"):
            assert main(["plan", *options, script()]) == 0
            assert capfd.readouterr().out.startswith(f"Plan for one {told} on 1 host")


NO_STEP = "No training step was found: no upload came again and again"
WRONG = {
    "without devices": ([], "pass", "How many devices? Give --devices N"),
    "too many devices": (["--devices", "70000"], "pass", "--devices is 70000; it must be from 1 to 65,536."),
    "no devices": (["--devices", "0"], "pass", "--devices is 0; it must be from 1 to 65,536."),
    "a model that nobody knows": (["--devices", "2", "--device", "MI9000"], "pass", "There is no model 'MI9000'; there are MI210, "),
    "no size": (["--devices", "2", "--memory", "much"], "pass", "--memory is 'much'; it must be a size like 64GiB, from 1 MiB on."),
    "no table": (["--devices", "2", "--network", __file__], "pass", "test_toolkit_plan.py is no table of a network; it must be like {"),
    "no such table": (["--devices", "2", "--network", "none.json"], "pass", "The network's table none.json cannot be read: No such file"),
    "one step": (["--devices", "2", "--iterations", "1"], "pass", "--iterations is 1; it must be at least 2."),
    "rows": (["--devices", "5"], "pass", "The batch has 16 rows, which 5 devices cannot have equal parts of"),
    "no steps alike": (["--devices", "2"], "break", NO_STEP),
    "a script that fails": (["--devices", "2"], "raise SystemExit(7)", "The script ended with status 7 before its step had come 3 times"),
    "too slow": (["--devices", "2", "--seconds", "2"], "import time; time.sleep(60)", "had not come often enough after 2 s"),
    "sizes that computing tells": (["--devices", "2"], "x[x > 0].sum()", "The script ended with status 1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_told_in_one_sentence(case: str, capfd: pytest.CaptureFixture[str], script: Callable[..., str]) -> None:
    options, more, expected = WRONG[case]
    assert main(["plan", *options, script(more)]) == 1
    told = capfd.readouterr()
    assert told.out == "" and expected in told.err.splitlines()[-1]
    assert told.err.splitlines()[-1].startswith("forebay: ")
    assert ("cannot tell the sizes of this operator's result" in told.err) == (case == "sizes that computing tells")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["none.py"], "There is no file none.py; give a script's path, or -m and a module's name."),
        ([], "Nothing to plan: give a script's path, or -m and a module's name."),
        (["--stream", "none.stream"], "Nothing to plan: there is no file none.stream, so give a script's path"),
    ],
)
def test_what_is_not_there_is_told(words: list[str], expected: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--devices", "2", *words]) == 1
    assert expected in capfd.readouterr().err


def test_planning_a_known_stream_imports_no_pytorch(tmp_path: Path, script: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    stream = tmp_path / "train.stream"
    assert main(["plan", "--devices", "2", "--stream", str(stream), script()]) == 0
    monkeypatch.setattr(sys, "executable", PYTHON)
    code = f"import sys; from forebay.toolkit.command import main; main(['plan', '--devices', '2', '--stream', {str(stream)!r}])"
    done = subprocess.run([sys.executable, "-c", f"{code}; sys.exit('torch' in sys.modules)"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
