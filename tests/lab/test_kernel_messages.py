"""What a kernel tells any front end of its device: lines below cells, magics, and the comm that the extension listens to."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from dashboards_installation import eventually
from kernel_client import Kernel, Shown, kernel, served
from lab_installation import environment
from nbclient import NotebookClient

pytestmark = [pytest.mark.slow]

LINE = r"forebay: device \d+\.\d+ s · waited \d+\.\d+ s · (< )?\d\.\d+ USD · dev\.\dgb"
ENTRY = "x.sum().item()"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernel-home")


@pytest.fixture(scope="module")
def notebook(cloud: Any, home: Path) -> Iterator[Kernel]:
    """A kernel with a tensor on the device, to which no extension has connected."""
    with kernel(environment(cloud, home)) as found:
        assert found.run("import torch").comms == [], "pages that were there before were told as the kernel started"
        found.run("x = torch.ones(500, 500, device='cuda')")
        yield found


@pytest.fixture
def extension(notebook: Kernel) -> Iterator[str]:
    """An extension's comm; it says goodbye after the test."""
    comm = notebook.open(locale="en")
    yield comm
    notebook._send("comm_close", {"comm_id": comm, "data": {}})


def test_a_cell_that_used_the_device_ends_with_a_line_as_text_and_as_html(notebook: Kernel) -> None:
    shown = notebook.run(ENTRY)
    assert shown.results == ["250000.0"]
    assert len(shown.lines) == 1 and re.fullmatch(LINE, shown.lines[0]), shown
    assert all(html.startswith('<div class="forebay-line') for html in shown.html)
    assert notebook.run("1 + 1").lines == [], "without device work there is none"


def test_a_cell_that_failed_has_its_line_too(notebook: Kernel) -> None:
    shown = notebook.run(f"1 / (0 if {ENTRY} else 1)")
    assert shown.errors == ["ZeroDivisionError: division by zero"] and re.fullmatch(LINE, shown.lines[0])


def test_a_line_is_mended_when_the_work_is_done_after_the_cells_end(notebook: Kernel) -> None:
    shown = notebook.run("y = x\nfor _ in range(120): y = (y @ x) / 500")
    assert "still computes" in shown.lines[0]
    notebook.until(shown, lambda shown: re.fullmatch(LINE, shown.lines[0]))
    assert len(shown.displays) == 1


def test_a_wait_is_text_where_no_extension_is_connected(notebook: Kernel, cloud: Any) -> None:
    with cloud.device_held():
        cell, shown = notebook.start(ENTRY), Shown()
        notebook.until(shown, lambda shown: "waiting for" in shown.streams.get("stderr", ""))
    notebook.finish(cell, shown)
    assert re.search(r"waiting for dev\.\dgb, next in line: .* is held", shown.streams["stderr"])
    assert "granted after" in shown.streams["stderr"]


def test_a_wait_is_one_display_that_goes_where_the_extension_is_connected(notebook: Kernel, cloud: Any, extension: str) -> None:
    with cloud.device_held():
        cell, shown = notebook.start(ENTRY), Shown()
        notebook.until(shown, lambda shown: shown.displays)
        told = notebook.until(shown, lambda shown: any(device(said)["state"] == "queued" for said in states(shown)))
        queued = next(device(said)["queued"] for said in states(told) if device(said)["state"] == "queued")
        assert queued["position"] == 1 and "is held" in queued["reason"] and queued["code"]
    notebook.finish(cell, shown)
    waited, used = shown.displays.values()
    assert "next in line" in waited[0] and waited[-1] == ""
    assert re.fullmatch(LINE, used[-1]) and not shown.streams


def test_an_interrupted_wait_leaves_the_queue_and_says_how_long_it_was(notebook: Kernel, cloud: Any, extension: str) -> None:
    with cloud.device_held():
        cell, shown = notebook.start(ENTRY), Shown()
        notebook.until(shown, lambda shown: shown.displays)
        notebook.interrupt()
        notebook.finish(cell, shown)
        assert cloud.ask("pool", "operator", "GET", "api/queue") == []
    assert re.fullmatch(r"forebay: stopped waiting after \d+\.\d s", shown.lines[0])
    assert shown.errors == ["KeyboardInterrupt: The wait for a device was stopped; run this again."]
    assert notebook.run(ENTRY).results == ["250000.0"]


def test_the_line_is_turned_off_and_on_by_magic_and_by_the_extension(notebook: Kernel, extension: str) -> None:
    notebook.run("%gpu quiet")
    assert notebook.run(ENTRY).lines == []
    notebook.run("%gpu loud")
    assert len(notebook.run(ENTRY).lines) == 1
    notebook.say(extension, quiet=True)
    assert notebook.run(ENTRY).lines == []
    notebook.say(extension, quiet=False)
    assert len(notebook.run(ENTRY).lines) == 1


def test_gpu_tells_state_spend_and_the_last_cells(notebook: Kernel) -> None:
    notebook.run(ENTRY)
    text = notebook.run("%gpu").streams["stdout"]
    assert re.search(r"\| cuda:0 \| dev\.\dgb \| resident +\| 0\.\d+ USD/h +\| \d MiB", text), text
    assert re.search(r"This notebook: \d+\.\d+ s of device time, (< )?\d\.\d+ USD\.", text)
    assert re.search(r"\| \[\d+\] x\.sum\(\)\.item\(\) +\| dev\.\dgb \| +0?\d", text)


def test_words_that_a_magic_does_not_know_are_refused_with_its_usage(notebook: Kernel) -> None:
    for cell, sentence in (
        ("%gpu silent", "usage: %gpu [quiet | loud]"),
        ("%%gpu flaver=dev.4gb\n1", "usage: %%gpu [flavor=NAME]"),
        ("%flavor dev.5gb", "There is no flavor 'dev.5gb'; the nearest are"),
        ("%%gpu flavor=dev.5gb\n1", "There is no flavor"),
    ):
        shown = notebook.run(cell)
        assert sentence in shown.streams["stderr"] and not shown.errors, "said without a traceback through code that is not the user's"
        assert len(shown.streams["stderr"].splitlines()) == 1


def test_a_flavor_is_chosen_for_the_notebook_by_magic(notebook: Kernel, cloud: Any) -> None:
    assert "on from its next lease" not in notebook.run("%flavor dev.4gb").errors
    assert "dev.4gb" in notebook.run(ENTRY).lines[0]
    assert "| * | dev.4gb" in notebook.run("%flavor").streams["stdout"]
    assert cloud.ask("pool", "acme-member", "GET", "api/choice") == {"flavor": "dev.4gb"}, "later sessions begin with it"
    assert "dev.1gb" in notebook.run("%flavor dev.1gb").streams["stdout"]
    assert "dev.1gb" in notebook.run(ENTRY).lines[0]


def test_a_flavor_is_chosen_for_one_cell(notebook: Kernel) -> None:
    shown = notebook.run(f"%%gpu flavor=dev.4gb\nkept = {ENTRY}\nkept")
    assert shown.results == ["250000.0"] or shown.streams.get("stdout") == "250000.0\n"
    assert shown.lines[0].endswith("dev.4gb")
    assert notebook.run("kept + x.sum().item()").lines[0].endswith("dev.1gb")


FOREVER = "z = x\nwhile True:\n    z = (z @ x) / 500\n    z.sum().item()"


@pytest.mark.parametrize(("words", "said"), [("max_time=0.5s", "max_time"), ("max_cost=0.000001 max_time=60s", "max_cost")])
def test_a_cell_stops_at_its_bound_and_keeps_its_tensors(notebook: Kernel, words: str, said: str) -> None:
    shown = notebook.run(f"%%gpu {words}\n{FOREVER}")
    assert len(shown.errors) == 1 and shown.errors[0].startswith("CellStopped: Stopped") and said in shown.errors[0], shown
    assert notebook.run("(z.mean() == 1).item(), x.sum().item()").results == ["(True, 250000.0)"]


def test_a_cell_that_saves_as_it_is_stopped_is_told_all_the_same(notebook: Kernel) -> None:
    saves = f"try:\n{textwrap.indent(FOREVER, '  ')}\nexcept KeyboardInterrupt:\n  saved = z.cpu()"
    assert notebook.run(f"%%gpu max_time=0.3s\n{saves}").errors[0].startswith("CellStopped: Stopped after")
    assert notebook.run("saved.shape").results == ["torch.Size([500, 500])"]


def test_a_cell_within_its_bounds_and_a_users_own_interrupt_are_as_without(notebook: Kernel) -> None:
    assert notebook.run(f"%%gpu max_time=60s max_cost=5\nkept = {ENTRY}\nkept").errors == []
    cell, shown = notebook.start(f"%%gpu max_time=60s\nprint('begun')\n{FOREVER}"), Shown()
    notebook.until(shown, lambda shown: "begun" in shown.streams.get("stdout", ""))
    notebook.interrupt()
    notebook.finish(cell, shown)
    assert shown.errors and shown.errors[0].startswith("KeyboardInterrupt")


def test_the_extension_is_told_flavors_rates_sessions_and_what_was_wrong(notebook: Kernel, cloud: Any, extension: str) -> None:
    with cloud.session(process="elsewhere.py"):
        value = notebook.ask(extension, "overview")["value"]
        offers = {row["name"]: row for row in value["flavors"]}
        assert offers["dev.1gb"]["chosen"] and offers["dev.1gb"]["price_nano_per_hour"] == 30_000_000 and offers["dev.1gb"]["servable"]
        assert {row["process"]: row["here"] for row in value["sessions"]}["elsewhere.py"] is False
        assert [row["here"] for row in value["sessions"]].count(True) == 1
    own = next(row["session"] for row in value["sessions"] if row["here"])
    assert "restart the kernel" in notebook.ask(extension, "release", session=own)["error"]
    assert "There is no flavor" in notebook.ask(extension, "choose", flavor="dev.5gb")["error"]
    assert "does not know 'dance'" in notebook.ask(extension, "dance")["error"]


def test_the_amounts_that_the_extension_shows_are_the_pools(notebook: Kernel, cloud: Any, extension: str) -> None:
    notebook.run(ENTRY)
    comm = notebook.open(locale="en")
    state = states(notebook.until(Shown(), states))[-1]
    session = device(state)["session"]

    def own() -> list[dict[str, Any]]:
        records = cloud.ask("billing", "acme-member", "GET", "api/usage?limit=200")["records"]
        return [record for record in records if record["session"] == session]

    eventually(lambda: sum(record["duration_ns"] for record in own()) == state["device_ns"])
    assert abs(sum(record["cost_nano"] for record in own()) - state["spent"][0]["nano"]) <= len(own())
    assert comm != extension


def test_lines_are_in_the_language_of_the_extension(notebook: Kernel) -> None:
    comm = notebook.open(locale="ko_KR")
    assert "장치" in notebook.run(ENTRY).lines[0]
    notebook.say(comm, locale="en")
    assert re.fullmatch(LINE, notebook.run(ENTRY).lines[0])


def test_before_pytorch_is_imported_the_extension_module_tells_what_a_device_will_be(cloud: Any, tmp_path: Path) -> None:
    with kernel(environment(cloud, tmp_path)) as fresh:
        fresh.run("%load_ext forebay.notebook")
        comm = fresh.open(locale="en")
        chosen = fresh.ask(comm, "choose", flavor="dev.4gb")
        assert chosen["value"]["name"] == "dev.4gb"
        state = states(fresh.until(Shown(), lambda shown: any(device(said)["flavor"] for said in states(shown))))[-1]
        assert device(state)["state"] == "idle" and device(state)["flavor"]["name"] == "dev.4gb"
        fresh.run("import sys; assert 'torch' not in sys.modules")
        assert "import torch" in fresh.run("%gpu").streams["stdout"]
        assert fresh.run("import torch\ntorch.ones(2, device='cuda').sum().item()").lines[0].endswith("dev.4gb")
        fresh.ask(comm, "choose", flavor="dev.1gb")


def test_a_kernel_without_a_service_says_so(cloud: Any, tmp_path: Path) -> None:
    bare = {name: value for name, value in environment(cloud, tmp_path).items() if not name.startswith("FOREBAY_")}
    with kernel(bare) as fresh:
        fresh.run("%load_ext forebay.notebook")
        fresh.open(locale="en")
        state = states(fresh.until(Shown(), states))[-1]
        assert state["configured"] is False and state["devices"][0]["state"] == "idle"
        assert "FOREBAY_URL is not set" in fresh.run("%gpu").streams["stdout"]


def test_a_notebook_that_is_executed_without_a_front_end_keeps_the_lines(cloud: Any, tmp_path: Path, monkeypatch: Any) -> None:
    for name, value in served(environment(cloud, tmp_path)).items():
        monkeypatch.setenv(name, value)
    cells = [nbformat.v4.new_code_cell(code) for code in ("import torch", "torch.ones(3).cuda().sum().item()")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    texts = [output["data"]["text/plain"] for output in notebook.cells[1].outputs if output["output_type"] == "display_data"]
    assert len(texts) == 1 and re.fullmatch(LINE, texts[0]), json.dumps(notebook.cells[1], indent=1)


def states(shown: Shown) -> list[dict[str, Any]]:
    return [said["data"] for said in shown.comms if said["data"].get("type") == "state"]


def device(state: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = state["devices"][0]
    return found


MODELS = """
import torch
def train(model, steps):
    for step in range(steps):
        x = torch.randn(4096, 512).to("cuda")
        model(x).square().mean().backward()
        model.zero_grad()
    torch.cuda.synchronize()
plain = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512)).to("cuda")
normed = torch.nn.Sequential(*(torch.nn.BatchNorm1d(512) for _ in range(4))).to("cuda")
"""
PRODUCTS = "x = torch.ones(1200, 1200, device='cuda')\nfor _ in range(40): y = (x @ x) / 1200\nassert y[0, 0].item() == 1"
ALONE = r"forebay: \d+ % of the time on 1 of the 2 devices of cuda:0: (.*)"


@pytest.mark.full_sweep
def test_a_cell_says_where_one_of_two_devices_did_most_of_it(cloud: Any, tmp_path: Path) -> None:
    cloud.make_pair()
    with kernel(environment(cloud, tmp_path) | {"FOREBAY_FLAVOR": "pair"}) as found:
        found.run(MODELS)
        comm = found.open(locale="en")
        shown = found.run(PRODUCTS)
        used, alone = shown.lines[0].split("\n")
        match = re.fullmatch(ALONE, alone)
        assert used.endswith(" · pair") and match and match[1] == "no batch of rows came again"
        assert 'class="forebay-line forebay-alone"' in shown.html[0]
        told = found.until(shown, lambda shown: any(device(state)["alone"] for state in states(shown)))
        assert device(states(told)[-1])["alone"] == {"devices": 2, "percent": 100, "causes": ["no_batch"]}
        found.run("train(plain, 12)")
        shown = found.run("train(plain, 30)")
        assert "\n" not in shown.lines[0], "it is divided"
        found.until(shown, lambda shown: states(shown) and device(states(shown)[-1])["alone"] is None)
        found.run("train(normed, 4)")
        normed = re.search(ALONE, found.run("train(normed, 20)").lines[0])
        assert normed and "native_batch_norm_backward" in normed[1] and "native_batch_norm" in normed[1].split(", ")
        found.say(comm, locale="ko")
        assert "장치 2개 중 1개" in found.run("train(normed, 20)").lines[0]


LOOP = """
import torch
weight = torch.ones(64, 64, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], 0.1, momentum=0.9)
def train(steps):
    for _ in range(steps):
        loss = ((weight @ weight / 64).relu() + weight.sin() * weight.cos() - weight.exp()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    loss.item()
train(10)
"""


def test_a_program_that_asks_to_be_compiled_is_told_the_tier_of_what_came_again(cloud: Any, tmp_path: Path) -> None:
    with kernel(environment(cloud, tmp_path) | {"FOREBAY_COMPILE": "1"}) as found:
        found.open(locale="en")
        found.run(LOOP)
        loop = ("calls", 20), ("times", 10)  # a state that comes early tells of what precedes the loop alone

        def tells_of_the_loop(shown: Any) -> bool:
            told = [segment for state in states(shown) for segment in device(state)["segments"][:1]]
            return any(all(segment[name] > least for name, least in loop) for segment in told)

        shown = found.until(found.run("train(30)"), tells_of_the_loop)
        first, *others = device(states(shown)[-1])["segments"]
        assert first["calls"] > 20 and first["times"] > 10 and first["tier"] == 1
        assert first["why"] in ("no library was made of it yet", "its library is being made")
        assert len(others) < 3
