"""A profile says where a program's time went, and adds up."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import fork_server
import pytest
import torch
from forebay import _C
from forebay.profile import Profile, Profiler
from forebay.toolkit.profiling import report

STEPS = 7
PRODUCTS = 40


def profile_of(work: Callable[[], object]) -> Profile:
    profiler = Profiler()
    profiler.start()
    try:
        work()
    finally:
        profile, failure = profiler.stop()
    assert failure is None
    return profile


def read_in_a_loop() -> None:
    x = torch.ones(4, device="cuda")
    for _ in range(STEPS):
        x = x + 1
        x.sum().item()  # the line that waits


def line_of(mark: str) -> int:
    return next(number for number, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.endswith(mark))


def test_an_item_in_a_loop_is_named_with_its_line_and_count() -> None:
    profile = profile_of(read_in_a_loop)
    (wait,) = (wait for wait in profile.waits if wait.kind == "item")
    assert (wait.file, wait.line, wait.function) == (__file__, line_of("# the line that waits"), "read_in_a_loop")
    assert (wait.count, wait.bytes, wait.device) == (STEPS, 4 * STEPS, 0)
    assert 0 < wait.longest_ns <= wait.ns <= STEPS * wait.longest_ns
    assert "x.sum().item()" in report.text(profile, 10)
    assert not [wait for wait in profile.waits if wait.kind == "read"], "an item is not told twice"


def test_the_rounds_of_a_loop_are_told_as_one_segment_that_came_so_often() -> None:
    read_in_a_loop()
    profile = profile_of(read_in_a_loop)
    segment = profile.segments[0]
    assert (segment.times, segment.calls, segment.births, segment.varying) == (STEPS - 1, 2, 2, 0), (
        "the first round begins with what it adds to"
    )
    assert segment.came_before and segment.tier == 1
    assert segment.identity in report.text(profile, 10)
    assert profile.as_json()["segments"][0]["tier"] == 1
    again = profile_of(read_in_a_loop).segments[0]
    assert (again.identity, again.times) == (segment.identity, STEPS - 1)


def test_what_came_once_is_of_tier_0() -> None:
    x = torch.ones(7, 3, device="cuda")
    profile = profile_of(lambda: (x.atan() / 3).cosh().sum().item())
    assert {(segment.times, segment.tier) for segment in profile.segments} == {(1, 0)}
    assert sum(segment.calls for segment in profile.segments) == 4


def test_calls_are_counted_by_operator_and_device() -> None:
    profile = profile_of(read_in_a_loop)
    calls = {operator.name: operator.calls for operator in profile.operators}
    assert calls["aten::add.Tensor"] == STEPS
    (use,) = profile.devices
    assert use.calls == sum(calls.values()) and use.device == 0
    assert all(operator.recording_ns > 0 for operator in profile.operators)


def test_the_parts_make_up_the_whole() -> None:
    x = torch.ones(500, 500, device="cuda")

    def work() -> None:
        y = x
        for _ in range(PRODUCTS):
            y = (y @ x).clamp(max=1)
        y.cpu()

    profile = profile_of(work)
    waited = sum(wait.ns for wait in profile.waits)
    assert profile.program_ns > 0
    assert profile.program_ns + profile.recording_ns + waited == profile.wall_ns
    (use,) = profile.devices
    assert waited / 2 < use.busy_ns < profile.wall_ns, "the program waited for products, so its device worked"
    (read,) = (wait for wait in profile.waits if wait.kind == "read")
    assert read.bytes == x.nbytes <= use.bytes_down < x.nbytes + 8192


def test_bytes_up_are_told_and_those_that_were_held() -> None:
    data = torch.randn(1 << 18)

    def work() -> None:
        first = data.to("cuda")
        torch.cuda.synchronize()
        second = data.to("cuda")
        torch.cuda.synchronize()
        del first, second

    (use,) = profile_of(work).devices
    assert data.nbytes <= use.bytes_up < 2 * data.nbytes
    assert use.bytes_held == data.nbytes


def test_work_of_before_is_not_the_stretchs() -> None:
    x = torch.ones(600, 600, device="cuda")
    for _ in range(PRODUCTS):
        x = (x @ x).clamp(max=1)
    profile = profile_of(lambda: torch.ones(1, device="cuda").item())
    (use,) = profile.devices
    before = next(wait for wait in profile.waits if wait.kind == "synchronize")
    assert use.busy_ns < before.ns, "the products ran while the profile waited to begin"
    assert {operator.name for operator in profile.operators} == {"aten::fill_.Scalar"}


def test_a_backward_pass_is_told_by_the_line_that_began_it() -> None:
    class Peek(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
            assert gradient.sum().item() == 3.0  # in backward
            return gradient

    x = torch.ones(3, device="cuda", requires_grad=True)
    profile = profile_of(lambda: Peek.apply(x).sum().backward())
    assert line_of("# in backward") in {wait.line for wait in profile.waits if wait.kind == "item"}


def test_nothing_is_noted_while_nobody_asks() -> None:
    read_in_a_loop()
    assert _C.end_profile() == []
    _C.begin_profile()
    assert _C.end_profile() == []


def test_two_profiles_at_a_time_are_refused_and_the_first_goes_on() -> None:
    profiler = Profiler()
    profiler.start()
    with pytest.raises(RuntimeError, match="a profile is being taken already"):
        Profiler().start()
    read_in_a_loop()
    profile, _ = profiler.stop()
    assert profile.operators


def test_threads_are_in_one_profile() -> None:
    def work() -> None:
        threads = [threading.Thread(target=read_in_a_loop) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    profile = profile_of(work)
    (wait,) = (wait for wait in profile.waits if wait.kind == "item")
    assert wait.count == 3 * STEPS


def test_a_failure_that_nothing_waited_for_comes_with_the_profile() -> None:
    index = torch.tensor([9], device="cuda")
    table = torch.ones(3, device="cuda")
    table.gather(0, index - 7)  # the first call of a kind would be waited for
    profiler = Profiler()
    profiler.start()
    table.gather(0, index)
    profile, failure = profiler.stop()
    assert "out of" in str(failure)
    assert profile.operators


LEASES = """
import torch, sys
from forebay.profile import Profiler
profiler = Profiler()
profiler.start()
def first():
    return torch.ones(3, device="cuda")
first()
profile, _ = profiler.stop()
(lease,) = (wait for wait in profile.waits if wait.kind == "lease")
assert lease.function == "first" and lease.count == 1, lease
assert lease.ns == profile.lease_ns > profile.recording_ns, profile
assert lease.ns < profile.wall_ns
"""


def test_the_wait_for_a_lease_is_told_apart(tmp_path: Path) -> None:
    script = tmp_path / "lease.py"
    script.write_text(LEASES)
    done = subprocess.run([fork_server.programs(), str(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


DEVICES = """
import json, torch
from forebay.profile import Profiler
profiler = Profiler()
profiler.start()
torch.ones(3, device="cuda:1").sum().item()
torch.ones(5, device="cuda:0").sum()
print(json.dumps(profiler.stop()[0].as_json()))
"""


def test_each_device_is_told_by_itself(tmp_path: Path) -> None:
    script = tmp_path / "devices.py"
    script.write_text(DEVICES)
    environment = {**os.environ, "FOREBAY_DEVICES": "2"}
    done = subprocess.run([fork_server.programs(), str(script)], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    profile = json.loads(done.stdout)
    assert [device["device"] for device in profile["devices"]] == [0, 1]
    assert [wait["device"] for wait in profile["waits"] if wait["kind"] == "item"] == [1]
