"""Tools of `forebay mcp` that run code, in real kernels."""

from __future__ import annotations

import re
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest
from agent import ENDLESS, TORCH, Agent, Refusal, serving, until

pytestmark = pytest.mark.slow

LINE = r"forebay: device \d+\.\d+ s · waited \d+\.\d+ s · (< )?\d\.\d+ USD · dev\.\dgb"
MARK = "print('begun', flush=True)\n"


@pytest.fixture(autouse=True, scope="module")
def paid(agent: Agent) -> None:
    """What the tests run is of one experiment."""
    agent.budget("main", "5")


def begun(agent: Agent, kernel: str) -> bool:
    """Whether the run in a kernel has printed MARK's word."""
    rows = [row for row in agent.call("list_kernels") if row["name"] == kernel and row["runs"]]
    return bool(rows) and "begun" in agent.call("read_output", kernel=kernel)["text"]


def test_every_tool_tells_what_it_does_and_what_each_argument_means(agent: Agent) -> None:
    tools = {tool.name: tool for tool in agent.tools()}
    assert len(tools) >= 20 and {"run_code", "set_budget", "submit_job", "list_flavors"} <= set(tools)
    for name, tool in tools.items():
        assert tool.description and len(tool.description) > 20, name
        assert tool.output_schema, name
        unexplained = [key for key, value in tool.input_schema.get("properties", {}).items() if "description" not in value]
        assert not unexplained, (name, unexplained)


def test_a_kernel_keeps_its_variables_and_tells_device_time_and_cost(agent: Agent) -> None:
    first = agent.run(TORCH)
    assert (first["status"], first["output"], first["experiment"]) == ("ok", "90000.0\n", "main")
    assert len(first["device"]) == 1 and re.fullmatch(LINE, first["device"][0]), first
    second = agent.run("print(x.device, x.shape[0])\n1 + 1")
    assert (second["output"], second["run"], second["device"]) == ("cuda:0 300\n2\n", first["run"] + 1, [])
    failed = agent.run("1 / 0")
    assert (failed["status"], failed["error"]) == ("error", "ZeroDivisionError: division by zero")
    assert "ZeroDivisionError" in failed["output"] and "\x1b" not in failed["output"]


def test_long_output_is_kept_and_read_by_pages(agent: Agent) -> None:
    found = agent.run("for n in range(12_000): print(n)")
    whole = "".join(f"{n}\n" for n in range(12_000))
    assert found["output_length"] == len(whole) and len(found["output"]) == 20_000
    assert found["output"] == whole[found["output_start"] :]
    text, page = "", {"next": 0, "length": 1}
    while page["next"] < page["length"]:
        page = agent.call("read_output", kernel="main", run=found["run"], start=page["next"], limit=17_001)
        text += page["text"]
    assert text == whole
    assert agent.call("read_output", kernel="main", start=-5)["text"] == whole[-5:]
    with pytest.raises(Refusal, match="has no run 999"):
        agent.call("read_output", kernel="main", run=999)


def test_a_run_is_interrupted_when_its_time_is_over_and_progress_is_told(agent: Agent) -> None:
    agent.progress.clear()
    found = agent.run("kept = 7\nimport time\nprint('working', flush=True)\ntime.sleep(60)", timeout_seconds=2)
    assert found["status"] == "timed_out" and 2 <= found["seconds"] < 10, found
    assert "Variables and tensors stay" in found["explanation"]
    assert [message for _, message in agent.progress if message == "working"], agent.progress
    assert agent.run("kept + 1")["output"] == "8\n"


def test_an_interrupt_while_a_device_is_awaited_breaks_nothing_that_is_imported_meanwhile(agent: Agent, cloud: Any) -> None:
    assert agent.run("import torch", kernel="awaiting")["status"] == "ok"
    with cloud.device_held():
        found = agent.run("x = torch.ones(3).cuda()\n(x.square() + 1).sum().item()", kernel="awaiting", timeout_seconds=0.4)
        assert found["status"] == "timed_out", found
    found = agent.run("import torch.fx.experimental.symbolic_shapes\n(torch.ones(3).cuda().square() + 1).sum().item()", kernel="awaiting")
    assert (found["status"], found["error"]) == ("ok", None), found["output"]


def test_a_call_that_is_cancelled_interrupts_its_run(agent: Agent) -> None:
    call = agent.begin("run_code", code=f"{MARK}{TORCH}\n{ENDLESS}", experiment="main", kernel="cancelled")
    until(lambda: begun(agent, "cancelled"), "it does not begin")
    with pytest.raises(Refusal, match="is busy"):
        agent.run("1", kernel="cancelled")
    assert call.cancel()
    with pytest.raises(CancelledError):
        call.result()
    until(lambda: not any(row["busy"] for row in agent.call("list_kernels")), "it goes on")
    assert agent.call("read_output", kernel="cancelled")["status"] == "cancelled"
    assert agent.run("'alive'", kernel="cancelled")["output"] == "'alive'\n"


def test_a_kernel_is_interrupted_restarted_and_ended_by_name(agent: Agent) -> None:
    call = agent.begin("run_code", code=f"kept = 1\n{MARK}import time\ntime.sleep(60)", experiment="main", kernel="second")
    until(lambda: begun(agent, "second"), "it does not begin")
    assert agent.call("interrupt_kernel", name="second") == "It was interrupted."
    assert call.result()["status"] == "interrupted"
    assert agent.call("interrupt_kernel", name="second") == "Nothing was running."
    assert agent.call("restart_kernel", name="second")["runs"] == 0
    assert agent.run("kept", kernel="second")["error"] == "NameError: name 'kept' is not defined"
    agent.call("end_kernel", name="second")
    assert "second" not in [row["name"] for row in agent.call("list_kernels")]
    with pytest.raises(Refusal, match="There is no kernel 'second'"):
        agent.call("interrupt_kernel", name="second")


@pytest.mark.full_sweep
def test_a_kernel_that_dies_is_told_of_and_starts_anew(agent: Agent) -> None:
    died = agent.run("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", kernel="mortal")
    assert died["status"] == "died" and "restart_kernel" in died["explanation"]
    agent.call("restart_kernel", name="mortal")
    assert agent.run("1", kernel="mortal")["output"] == "1\n"


@pytest.mark.full_sweep
def test_a_kernel_begins_with_a_flavor_and_not_with_one_that_is_not_there(agent: Agent) -> None:
    assert agent.call("start_kernel", name="large", flavor="dev.4gb")["flavor"] == "dev.4gb"
    assert agent.run(TORCH, kernel="large")["device"][0].endswith("dev.4gb")
    with pytest.raises(Refusal, match="another flavor"):
        agent.call("start_kernel", name="large", flavor="dev.1gb")
    for bad in ("", "a/b", "x" * 65, "..", "a b"):
        with pytest.raises(Refusal, match="is no name of a kernel"):
            agent.call("start_kernel", name=bad)
    with pytest.raises(Refusal, match="There is no environment 'none'"):
        agent.call("start_kernel", name="other", environment="none")


def test_a_kernel_has_no_token_of_the_hub_and_ends_with_its_server(variables: dict[str, str]) -> None:
    with serving(variables | {"JUPYTERHUB_API_TOKEN": "of-the-notebook-server"}) as other:
        kernel, token = other.run("import os\nprint(os.getpid(), os.environ.get('JUPYTERHUB_API_TOKEN'))")["output"].split()
    assert token == "None"
    until(lambda: not Path(f"/proc/{kernel}").exists(), "the kernel outlives its server")


@pytest.mark.full_sweep
def test_a_kernel_ends_with_a_server_that_is_killed(variables: dict[str, str]) -> None:
    code = "import os\nprint(os.getpid(), os.getppid(), flush=True)\nos.kill(os.getppid(), 9)\nimport time\ntime.sleep(60)"
    with pytest.raises(Exception), serving(variables) as other:  # noqa: B017 - as the SDK has it
        call = other.begin("run_code", code=code, experiment="main")
        until(lambda: call.done(), "the call does not end with its server")
        call.result()
    left = [path for path in Path("/proc").glob("[0-9]*") if b"time.sleep(60)" in _command(path)]
    assert not left


def _command(path: Path) -> bytes:
    try:
        return (path / "cmdline").read_bytes()
    except OSError:
        return b""
