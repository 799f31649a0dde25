"""``torch.profiler`` shows when the worker carried out what the program launched."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from forebay import _C
from torch.profiler import ProfilerActivity, profile, record_function, schedule

BOTH = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
ROWS, WIDTH = 512, 256
CLOCKS_NS_MAX = 2_000_000
"""How far the worker's clock may be off the program's on a busy host."""


def training() -> Callable[[], torch.Tensor]:
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.randn(ROWS, WIDTH, device="cuda"), torch.randint(0, 10, (ROWS,), device="cuda")

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    step().item()
    return step


def trace_of(profiled: Any, folder: Path) -> list[dict[str, Any]]:
    profiled.export_chrome_trace(str(folder / "trace.json"))
    events: list[dict[str, Any]] = json.loads((folder / "trace.json").read_text())["traceEvents"]
    return events


def test_operators_show_the_time_that_the_worker_took_for_them() -> None:
    step = training()
    busy_ns = _C.statistics()["busy_ns"]
    with profile(activities=BOTH) as profiled:
        with record_function("a step"):
            step()
        torch.cuda.synchronize()
    busy_us = (_C.statistics()["busy_ns"] - busy_ns) / 1e3
    averages = {event.key: event for event in profiled.key_averages()}
    products = averages["aten::addmm"]
    assert products.count == 2 and products.self_device_time_total > 0
    assert averages["aten::linear"].device_time_total == pytest.approx(products.device_time_total)
    assert averages["AddmmBackward0"].device_time_total >= averages["aten::mm"].self_device_time_total > 0, "the engine's thread, too"
    assert averages["aten::_fused_adamw_" if "aten::_fused_adamw_" in averages else "aten::_foreach_lerp_"].self_device_time_total > 0
    assert averages["a step"].device_time_total >= averages["aten::linear"].device_time_total
    whole = sum(event.self_device_time_total for event in profiled.key_averages() if event.device_type == torch.autograd.DeviceType.CUDA)
    assert 0.05 * busy_us < whole <= busy_us, "calls are a part of what a worker does, where others want processors a small one"
    table = profiled.key_averages().table(sort_by="cuda_time_total", row_limit=-1)
    assert "Self CUDA time total" in table and table.index("aten::addmm") > 0


def test_a_trace_shows_the_calls_on_the_device_where_they_ran(tmp_path: Path) -> None:
    step = training()
    with profile(activities=BOTH) as profiled:
        step()
    events = trace_of(profiled, tmp_path)
    calls = [event for event in events if event.get("cat") == "kernel"]
    operators = {event["args"]["External id"]: event for event in events if event.get("cat") == "cpu_op"}
    assert {"addmm", "mm", "relu"} <= {call["name"] for call in calls}
    for call in calls:
        operator = operators[call["args"]["External id"]]
        assert call["pid"] == 0 and call["dur"] > 0
        assert call["ts"] >= operator["ts"] - CLOCKS_NS_MAX / 1e3, "a call runs after it was launched"
    ends = [call["ts"] + call["dur"] for call in calls]
    assert all(call["ts"] >= end - 1 for call, end in zip(calls[1:], ends, strict=False)), "a worker does one thing after the other"
    names = {event["args"]["name"] for event in events if event.get("name") == "process_name"}
    assert "cuda:0" in names


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")
def test_a_schedule_profiles_its_active_steps_alone() -> None:
    step = training()
    seen: list[float] = []

    def take(profiled: Any) -> None:
        found = {event.key: event for event in profiled.key_averages()}
        seen.append(found["aten::addmm"].count)
        assert found["aten::addmm"].self_device_time_total > 0

    with profile(activities=BOTH, schedule=schedule(wait=1, warmup=1, active=2, repeat=2), on_trace_ready=take) as profiled:
        for _ in range(8):
            step()
            profiled.step()
    assert seen == [4, 4]


def test_the_older_profiler_takes_cuda_as_its_device() -> None:
    step = training()
    with torch.autograd.profiler.profile(use_device="cuda") as profiled:
        step()
    found = {event.key: event for event in profiled.key_averages()}
    assert found["aten::addmm"].self_device_time_total > 0


def test_what_other_threads_launch_is_theirs_in_the_profile() -> None:
    x = torch.randn(ROWS, ROWS, device="cuda")
    (x @ x).sum().item()
    with profile(activities=BOTH) as profiled:
        y = x @ x
        thread = threading.Thread(target=lambda: (x + 1).sum().item())
        thread.start()
        thread.join()
        y.sum().item()
    found = {event.key: event for event in profiled.key_averages()}
    assert found["aten::mm"].count == 1 and found["aten::mm"].self_device_time_total > 0


def test_the_profiler_of_the_host_alone_asks_nothing_of_the_worker() -> None:
    x = torch.randn(4, 4, device="cuda")
    (x @ x).sum().item()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        (x @ x).sum().item()
    found = {event.key: event for event in profiled.key_averages()}
    assert found["aten::mm"].self_device_time_total == 0
    assert not any(event.device_type == torch.autograd.DeviceType.CUDA for event in profiled.events())


def test_a_device_that_failed_ends_a_profile_with_its_failure_and_the_next_one_works() -> None:
    x = torch.randn(4, 4, device="cuda")
    x[torch.tensor([1], device="cuda")]  # the first call of its kind waits
    with pytest.raises(RuntimeError, match="index"), profile(activities=BOTH):
        x[torch.tensor([9], device="cuda")]
        torch.cuda.synchronize()
    with profile(activities=BOTH) as profiled:
        (x @ x).sum().item()
    assert {event.key: event for event in profiled.key_averages()}["aten::mm"].self_device_time_total > 0


def test_supported_activities_name_cuda() -> None:
    assert {ProfilerActivity.CPU, ProfilerActivity.CUDA} <= torch.profiler.supported_activities()
