"""The stand-in is what it says: asynchronous, closed to the host, limited, late with its errors; and it finds the mistakes it is there for.

Every program runs in a fork of a process that has loaded the back end, as some of them end by a signal.
"""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
from pathlib import Path

import fork_server
import pytest

from standin import build

SECONDS_MAX = 60
STANDIN = "standin:0"
"""An argument that says which server forks."""
LATE = {"FOREBAY_STANDIN_DELAY_MICROSECONDS": "200000"}


@pytest.fixture(scope="session")
def folder() -> Path:
    return build.built()


def run(folder: Path, program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a program with the stand-in, and gives back how it ended."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    environment |= {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", **variables}
    command = [fork_server.standin(folder), "-c", "import torch, time, ctypes\n" + program, STANDIN]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX)


def check(folder: Path, program: str, **variables: str) -> None:
    """The program ends well, and no mistake was found in it."""
    end = "\ntorch.accelerator.synchronize()\nassert torch.standin.finding_count() == 0\n"
    ended = run(folder, textwrap.dedent(program) + end, **variables)
    assert (ended.returncode, ended.stderr) == (0, ""), ended


def test_it_computes_what_the_host_computes(folder: Path) -> None:
    check(
        folder,
        """
        here, there = torch.nn.Linear(8, 4), torch.nn.Linear(8, 4).to("standin")
        there.load_state_dict(here.state_dict())
        x = torch.randn(5, 8)
        for model, device in ((here, "cpu"), (there, "standin")):
            model(x.to(device)).relu().square().sum().backward()
            torch.optim.AdamW(model.parameters(), lr=0.1).step()
        for one, other in zip(here.parameters(), there.parameters()):
            assert other.device.type == "standin" and torch.equal(one, other.cpu()) and torch.equal(one.grad, other.grad.cpu())
        """,
    )


def test_views_writes_in_place_growth_and_questions_act_on_the_storage(folder: Path) -> None:
    check(
        folder,
        """
        a = torch.arange(12.0, device="standin").view(3, 4)
        a[1].t().mul_(2)
        a[:, 1:3].fill_(-1)
        assert a.tolist() == [[0, -1, -1, 3], [8, -1, -1, 14], [8, -1, -1, 11]]
        assert a.nonzero().shape == (11, 2) and (a > 0).sum().item() == 5 and torch.equal(a, a.clone())
        out = torch.empty(0, device="standin")
        torch.add(a, 1, out=out)
        assert out.tolist() == (a.cpu() + 1).tolist()
        out.resize_(20)
        assert out[:12].tolist() == (a.cpu() + 1).flatten().tolist()
        c = torch.view_as_complex(torch.randn(3, 2)).to("standin")
        assert torch.equal(c.conj().cpu(), c.cpu().conj()) and torch.equal((c.conj() + c).cpu(), c.cpu().conj() + c.cpu())
        """,
    )


def test_work_runs_later_and_events_and_synchronisations_wait_for_it(folder: Path) -> None:
    check(
        folder,
        """
        a = torch.ones(4, device="standin") + 1  # kernels are known from here on
        torch.accelerator.synchronize()
        before = time.monotonic()
        started, ended = torch.Event("standin", enable_timing=True), torch.Event("standin", enable_timing=True)
        started.record()
        b = a + 1
        ended.record()
        assert not ended.query() and time.monotonic() - before < 0.1
        ended.synchronize()
        assert ended.query() and time.monotonic() - before > 0.2 and started.elapsed_time(ended) >= 0
        c = b + 1
        torch.accelerator.synchronize()
        assert time.monotonic() - before > 0.4 and c.tolist() == [4.0] * 4
        """,
        **LATE,
    )


def test_chance_depends_on_the_generators_seed_and_offset_at_the_call(folder: Path) -> None:
    check(
        folder,
        """
        def draws(seed):
            torch.manual_seed(seed)
            x = torch.rand(50, device="standin")
            return torch.cat([x, torch.nn.functional.dropout(torch.ones(50, device="standin")), torch.randn(50, device="standin")]).cpu()
        one, other = draws(1), draws(2)
        host = torch.rand(3)
        assert torch.equal(draws(1), one) and not torch.equal(one, other) and not torch.equal(one[:50], one[100:])
        g = torch.Generator("standin").manual_seed(7)
        state = g.get_state()
        x = torch.rand(5, device="standin", generator=g)
        y = torch.rand(5, device="standin", generator=g)
        g.set_state(state)
        assert torch.equal(torch.rand(5, device="standin", generator=g), x) and not torch.equal(x, y)
        """,
    )


def test_memory_is_limited_kept_in_a_cache_and_given_back(folder: Path) -> None:
    check(
        folder,
        """
        memory = lambda: (torch.standin.memory_allocated(0), torch.standin.memory_cached(0))
        a = torch.empty(1 << 20, dtype=torch.uint8, device="standin")
        assert memory() == (1 << 20, 0)
        del a
        assert memory() == (0, 1 << 20)
        torch.accelerator.empty_cache()
        assert memory() == (0, 0)
        torch.standin.set_per_process_memory_fraction(0.5, 0)
        kept = torch.empty(32 << 20, dtype=torch.uint8, device="standin")
        try:
            torch.empty(1, dtype=torch.uint8, device="standin")
        except torch.OutOfMemoryError as error:
            assert "has a limit of 32 MiB, of which 32 MiB are allocated" in str(error)
        else:
            raise AssertionError("no limit")
        del kept
        assert torch.empty(32 << 20, dtype=torch.uint8, device="standin").shape
        """,
        FOREBAY_STANDIN_MEMORY_BYTES=str(64 << 20),
    )


def test_new_memory_holds_neither_zeros_nor_what_was_there(folder: Path) -> None:
    check(folder, 'assert torch.empty(9, dtype=torch.uint8, device="standin").tolist() == [0xDB] * 9')


def test_a_wrong_value_is_told_late_and_costs_the_device(folder: Path) -> None:
    program = textwrap.dedent(
        """
        a, bad = torch.ones(3, device="standin"), torch.tensor([5], device="standin")
        a.index_select(0, bad)  # not here
        for use in (a.cpu, torch.accelerator.synchronize, lambda: a + 1):
            try:
                use()
            except torch.AcceleratorError as error:
                assert "the device is lost: index out of range" in str(error), error
            else:
                raise AssertionError("no error")
        """
    )
    ended = run(folder, program)
    assert (ended.returncode, ended.stderr) == (0, ""), ended


def test_a_missing_kernel_is_told_at_the_call_and_costs_nothing(folder: Path) -> None:
    check(
        folder,
        """
        try:
            torch.lgamma(torch.ones(3, dtype=torch.complex64, device="standin"))
        except NotImplementedError as error:
            assert "not implemented for 'ComplexFloat'" in str(error)
        else:
            raise AssertionError("no error")
        assert torch.ones(3, device="standin").sum().item() == 3
        """,
    )


def test_work_that_is_ordered_by_events_streams_and_records_is_no_mistake(folder: Path) -> None:
    check(
        folder,
        """
        side = torch.Stream("standin")
        a = torch.ones(1000, device="standin")
        ready = torch.Event("standin")
        ready.record()
        side.wait_event(ready)
        host = torch.empty(1000, pin_memory=True)
        with side:
            b = a + 1
            host.copy_(b, non_blocking=True)
        a.record_stream(side)
        del a, b
        side.synchronize()
        assert host.sum() == 2000
        host.fill_(3)
        c = host.to("standin", non_blocking=True)
        torch.accelerator.synchronize()
        host.fill_(4)
        assert c.sum().item() == 3000
        """,
    )


DEVICE = 'a = torch.ones(1000, device="standin")\ntorch.accelerator.synchronize()\n'
SIDE = DEVICE + 'side = torch.Stream("standin")\n'
PINNED = DEVICE + "host = torch.empty(1000, pin_memory=True)\n"

FAULTS = {
    "a host that reads the device's memory": (DEVICE + "ctypes.string_at(a.data_ptr(), 1)", "the host touched device memory"),
    "a host that writes to the device's memory": (DEVICE + "ctypes.memset(a.data_ptr(), 0, 1)", "the host touched device memory"),
    "a copy to the host that nobody waits for": (
        PINNED + "host.copy_(a, non_blocking=True)\ntime.sleep(0.1)\nhost.sum()",
        "the host touched pinned memory that a copy from the device writes to, without waiting for the copy: a synchronisation is missing",
    ),
    "a copy to the host whose target is freed before anybody waits": (
        PINNED + "host.copy_(a, non_blocking=True)\ndel host\ntorch.accelerator.synchronize()",
        "the host freed pinned memory that a copy from the device writes to, without waiting for the copy: a synchronisation is missing",
    ),
    "a source that changes under a copy": (
        PINNED + "a.copy_(host, non_blocking=True)\nhost.fill_(1)\ntorch.accelerator.synchronize()",
        "the host changed 4000 bytes of pinned memory that a copy to the device",
    ),
    "a read on a stream that does not wait for the write": (
        SIDE + "a.add_(1)\nwith side: b = a.clone()",
        "reads a block of 4000 bytes of device 0 that aten::add",
    ),
    "a write on a stream that does not wait for the read": (
        SIDE + "b = a.clone()\nwith side: a.add_(1)",
        "nothing makes it wait: an event or a synchronisation is missing",
    ),
    "an event that was recorded too early": (
        SIDE + 'early = torch.Event("standin")\nearly.record()\na.add_(1)\nside.wait_event(early)\nwith side: b = a.clone()',
        "nothing makes it wait: an event or a synchronisation is missing",
    ),
    "memory that is freed while another stream's copy runs": (
        SIDE + PINNED.removeprefix(DEVICE) + 'with side: host.copy_(a, non_blocking=True)\ndel a\nb = torch.ones(1, device="standin")',
        "a block of 4000 bytes of device 0 was freed while a copy to the host",
    ),
}


@pytest.mark.parametrize("fault", list(FAULTS))
def test_a_planted_mistake_is_found_and_named(folder: Path, fault: str) -> None:
    program, sentence = FAULTS[fault]
    ended = run(folder, program)
    assert ended.returncode in (1, -signal.SIGSEGV), ended
    assert sentence in ended.stderr and "standin: " in ended.stderr, ended


def test_the_same_programs_without_the_mistake_are_left_alone(folder: Path) -> None:
    """Each is mended by waiting for the device between any two of its lines, and by reading a copy."""
    lines = [line for program, _ in FAULTS.values() for line in [*program.splitlines(), "torch.accelerator.synchronize()"]]
    mended = "\ntorch.accelerator.synchronize()\n".join(lines)
    for touch, instead in (("ctypes.string_at(a.data_ptr(), 1)", "a.tolist()"), ("ctypes.memset(a.data_ptr(), 0, 1)", "a.zero_()")):
        mended = mended.replace(touch, instead)
    check(folder, mended)


GRAPH = """
graph, side = torch.standin.CUDAGraph(), torch.Stream(device="standin:0")
own = torch.Generator("standin:0").manual_seed(3)
graph.register_generator_state(own)
default = torch.standin.default_generators[0]

def recorded(run):
    before, kept = torch.accelerator.current_stream(), default.graphsafe_get_state()
    default.graphsafe_set_state(own)
    torch.accelerator.set_stream(side)
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        return run()
    finally:
        torch.accelerator.set_stream(side)
        try:
            graph.capture_end()
        finally:
            torch.accelerator.set_stream(before)
            default.graphsafe_set_state(kept)
"""


def test_a_graph_is_not_carried_out_when_it_is_recorded_but_each_time_it_is_replayed(folder: Path) -> None:
    check(
        folder,
        GRAPH
        + """
x = torch.ones(4, device="standin")
torch.nn.functional.dropout(x + 1), x.mul_(1)  # each operator ran before
torch.standin.synchronize()

def step():
    x.mul_(2)
    return torch.nn.functional.dropout(x + 1, 0.5)

y = recorded(step)
assert x.tolist() == [1] * 4
for times in (1, 2):
    own.manual_seed(7).set_offset(12)
    graph.replay()
    assert x.tolist() == [2.0**times] * 4
    default.manual_seed(7).set_offset(12)
    assert torch.equal(y.cpu(), torch.nn.functional.dropout(x + 1, 0.5).cpu())
""",
    )


@pytest.mark.parametrize(
    ("program", "finding"),
    [
        ("recorded(lambda: x.sum().item())", "a copy to the host is not permitted while a stream is recorded"),
        ("recorded(lambda: torch.standin.synchronize())", "a synchronisation is not permitted while a stream is recorded"),
        ("y = torch.ones(4, device='standin'); recorded(lambda: x + y); del y; graph.replay()", "uses memory that is not allocated"),
    ],
)
def test_what_a_graph_cannot_hold_is_refused(folder: Path, program: str, finding: str) -> None:
    prepared = GRAPH + 'x = torch.ones(4, device="standin")\nx + x, x.sum().item()\n'
    ended = run(folder, prepared + program)
    assert ended.returncode != 0 and finding in ended.stderr, ended
