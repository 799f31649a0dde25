"""``FOREBAY_URL=local`` from end to end: a real embedded pool, a real worker, nothing configured."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fork_server
import psutil
import pytest
from jupyter_client import BlockingKernelClient
from jupyter_client.manager import KernelManager

WAIT_SECONDS_MAX = 60.0

Environment = dict[str, str]


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Environment]:
    """Of a user without any service: own home, own temporary directory (with a short name, as sockets want it)."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "JUPYTER", "JPY_"))}
    home = tmp_path / "home"
    home.mkdir()
    with tempfile.TemporaryDirectory(prefix="fb-") as temporary:
        yield kept | {"HOME": str(home), "TMPDIR": temporary, "OMP_NUM_THREADS": "1"}


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(environment: Environment, tmp_path: Path) -> Iterator[Start]:
    """Starts ``forebay run`` on a script with the given text; afterwards nothing of it may be left."""
    yield from _starting(sys.executable, environment, tmp_path)


@pytest.fixture
def fork(environment: Environment, tmp_path: Path) -> Iterator[Start]:
    """The same, with forks of processes that have imported what program, pool and worker need."""
    yield from _starting(fork_server.programs(), environment, tmp_path)


def _starting(python: str | Path, environment: Environment, folder: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def begin(text: str, *arguments: str) -> subprocess.Popen[str]:
        script = folder / f"script{len(started)}.py"
        script.write_text(text)
        command = [str(python), "-m", "forebay", "run", str(script), *arguments]
        process = subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    assert_nothing_is_left(environment)


def assert_nothing_is_left(environment: Environment) -> None:
    """No process that was started under this temporary directory, and no file in it or at home."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while (left := processes_of(environment)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []
    assert list(Path(environment["TMPDIR"]).glob("forebay-*")) == []
    assert list(Path(environment["HOME"]).glob("[!.]*")) == []


def processes_of(environment: Environment) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TMPDIR") == environment["TMPDIR"] and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, err = process.communicate(timeout=WAIT_SECONDS_MAX)
    return out, err


TRAIN = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).to("cuda:0")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
inputs = torch.randn(64, 8, device="cuda")
targets = inputs.sum(1, keepdim=True)
losses = []
for step in range(60):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    losses.append(loss)
print(torch.cuda.get_device_name(), losses[0].item() > 10 * losses[-1].item())
"""


def test_a_training_script_runs_and_leaves_nothing(start: Start) -> None:
    process = start(TRAIN)
    out, err = finish(process)
    assert (process.returncode, out) == (0, "Forebay dev.1gb (virtual) True\n"), err


FIRST = """
import sys, torch
from forebay.facade import compiling
spared = [function for function in compiling._untraced() if vars(function).get("__dynamo_disable") is function]
a = torch.ones(3, 4, device="cuda:0")
b = ((a + 1) * 2 - a / 4).tanh().addcmul_(a, a)
print(round(torch.softmax(b @ b.T, -1).sum().item(), 4), (b > 1).sum().item(), b.mean(0).argmax().item())
print(len(spared) > 100, sorted({"torch._dynamo", "sympy"} & set(sys.modules)))
print(torch.nn.functional.celu(-a).mean().item() < 0, "torch._dynamo" in sys.modules)
compiled = torch.compile(lambda x: torch.nn.functional.celu(x) + 1, backend="eager")
print(compiled(a).sum().item(), "torch._dynamo" in sys.modules)
print([function.__name__ for function in spared if vars(function).get("__dynamo_disable") is function])
"""


def test_a_first_result_imports_neither_torchdynamo_nor_sympy_and_what_is_not_traced_stays_so(start: Start) -> None:
    out, err = finish(start(FIRST))
    assert out.splitlines() == ["3.0 12 0", "True []", "True False", "24.0 True", "[]"], err


def test_a_script_without_device_work_starts_no_pool(start: Start) -> None:
    process = start("import os, torch; print(torch.cuda.is_available(), torch.ones(2).sum().item(), os.environ['FOREBAY_URL'])")
    assert finish(process) == ("True 2.0 local\n", "")


def test_what_torch_cuda_says_of_memory_and_time_is_so(fork: Start) -> None:
    process = fork("""
import torch
x = torch.empty(1024, 1024, device="cuda")
assert torch.cuda.memory_allocated() == 4 * 2**20, torch.cuda.memory_allocated()
del x
assert torch.cuda.memory_allocated() == 0 and torch.cuda.max_memory_allocated() == 4 * 2**20
torch.cuda.reset_peak_memory_stats()
assert torch.cuda.max_memory_allocated() == 0
assert torch.cuda.memory_stats()["allocation.all.freed"] == 1
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
a = torch.randn(700, 700, device="cuda")
for round in range(2):
    start.record()
    for _ in range(10):
        a = a @ a
    end.record()
    torch.cuda.synchronize()
assert start.elapsed_time(end) > 1, f"recording took {start.elapsed_time(end)} ms, and nothing waited for the work"
free, total = torch.cuda.mem_get_info()
assert total == 2**30 and total - free == torch.cuda.memory_allocated() == torch.accelerator.memory_allocated()
""")
    _, err = finish(process)
    assert process.returncode == 0, err


def test_old_habits_work_on_the_device(fork: Start) -> None:
    process = fork("""
import torch
Tensor = torch.cuda.FloatTensor
x = Tensor([1, 2])
assert isinstance(x, Tensor) and Tensor(2, 3).shape == (2, 3) and x.type() == "torch.cuda.FloatTensor"
assert torch.ones(2).type(Tensor).device == torch.device("cuda:0") and torch.cuda.LongTensor(torch.ones(2)).dtype == torch.int64
model = torch.nn.DataParallel(torch.nn.Linear(4, 2)).cuda()
assert model(torch.ones(3, 4).cuda()).shape == (3, 2)
scaler = torch.amp.GradScaler("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with torch.autocast("cuda", dtype=torch.bfloat16):
    loss = model(torch.ones(3, 4).cuda()).sum()
scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    y = x * 2
torch.cuda.current_stream().wait_stream(stream)
y.record_stream(stream)
assert y.tolist() == [2, 4]
generator = torch.Generator("cuda").manual_seed(3)
first = torch.rand(4, device="cuda", generator=generator).tolist()
assert torch.rand(4, device="cuda", generator=generator.manual_seed(3)).tolist() == first
""")
    _, err = finish(process)
    assert process.returncode == 0, err


def test_saving_profiling_and_compiling_work_on_the_device(fork: Start, tmp_path: Path) -> None:
    process = fork(
        """
import sys, torch
from torch.profiler import ProfilerActivity, profile
model = torch.nn.Linear(3, 2).cuda()
torch.save({"model": model.state_dict(), "x": torch.arange(3.0)}, sys.argv[1])
for place in (None, "cpu", "cuda"):
    loaded = torch.load(sys.argv[1], map_location=place)
    assert loaded["model"]["weight"].device.type == (place or "cuda") and loaded["x"].device.type == (place or "cpu")
    assert torch.equal(loaded["model"]["weight"].cpu(), model.weight.detach().cpu())
assert torch.UntypedStorage(5, device="cuda").nbytes() == 5 and torch.UntypedStorage(5).device.type == "cpu"
x = torch.ones(4, 3, device="cuda")
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
    model(x).sum().item()
assert any(event.key == "aten::linear" for event in profiled.key_averages())
with profile(activities=[ProfilerActivity.CUDA]):
    model(x)
compiled = torch.compile(model)
compiled(x).sum().backward()
assert model.weight.grad.shape == (2, 3) and torch.equal(compiled(x), model(x))
with torch.cuda.Stream() as stream:
    assert torch.cuda.current_stream() == stream
assert torch.cuda.current_stream() == torch.cuda.default_stream()
""",
        str(tmp_path / "model.pt"),
    )
    out, err = finish(process)
    assert process.returncode == 0, out + err
    assert "Failed to record CUDA event" not in err


def test_after_a_dead_worker_and_after_a_dead_pool_the_next_work_begins_afresh(fork: Start) -> None:
    process = fork("""
import os, psutil, torch
os.environ["FOREBAY_JOURNAL_BYTES"] = "0"  # a session that ends with its worker
from forebay.service import service_at
x = torch.ones(3, device="cuda")
assert x.sum().item() == 3
def ours(name):
    found = []
    for p in psutil.process_iter():
        try:
            if p.environ().get("TMPDIR") == os.environ["TMPDIR"] and name in " ".join(p.cmdline()):
                found.append(p)
        except psutil.Error:
            pass
    return found
for name in ("forebay_worker", "forebay_pool"):
    for process in ours(name):
        process.kill()
        process.wait()
    try:
        for _ in range(1000):
            (x + 1).sum().item()
    except RuntimeError as error:
        print("lost:", error)
    for attempt in range(3):
        try:
            y = torch.ones(4, device="cuda")
            print(y.sum().item())
            break
        except RuntimeError as error:
            assert "lost" in str(error) or "not connected" in str(error), error
    try:
        x.sum().item()
    except RuntimeError as error:
        print("still lost:", error)
    x = y
""")
    out, err = finish(process)
    assert process.returncode == 0, out + err
    lines = out.splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["lost", "4.0", "still lost"] * 2, out


WAITER = """
import os, torch
torch.ones(1, device="cuda").item()
print("got it", flush=True)
"""
HOLDER = """
import os, signal, subprocess, sys, time, torch
x = torch.ones(1, device="cuda")
x.item()
with open(sys.argv[1] + ".log", "w+") as log:
    waiter = subprocess.Popen([sys.executable, sys.argv[1]], stdout=log, stderr=log)
    deadline = time.monotonic() + 50
    def seen():
        return open(log.name).read()
    while "next in line" not in seen() and waiter.poll() is None and time.monotonic() < deadline:
        x += 1
        x.item()
    first = seen().strip()
    waiter.send_signal(signal.SIGINT)
    waiter.wait()
    print("got it" in seen(), "KeyboardInterrupt" in seen(), waiter.returncode, first)
subprocess.run([sys.executable, sys.argv[1]], check=True)
"""


def test_child_processes_share_the_pool_and_a_wait_can_be_interrupted(fork: Start, tmp_path: Path) -> None:
    waiter = tmp_path / "waiter.py"
    waiter.write_text(WAITER)
    process = fork(HOLDER, str(waiter))
    out, err = finish(process)
    assert process.returncode == 0, out + err
    interrupted, afterwards = out.splitlines()
    assert interrupted.startswith(f"False True {-signal.SIGINT} forebay: waiting for dev.1gb, next in line: "), interrupted
    assert afterwards == "got it"


def test_ctrl_c_in_a_computation_ends_everything(fork: Start) -> None:
    process = fork("""
import torch
x = torch.randn(400, 400, device="cuda")
x.sum().item()
print("computing", flush=True)
while True:
    x = x @ x
    x = x / x.abs().max()
    x.sum().item()
""")
    assert process.stdout is not None and process.stdout.readline() == "computing\n"
    process.send_signal(signal.SIGINT)
    _, err = finish(process)
    assert process.returncode == -signal.SIGINT and "KeyboardInterrupt" in err


def test_a_killed_program_takes_its_pool_with_it(start: Start, environment: Environment) -> None:
    process = start("import time, torch\ntorch.ones(1, device='cuda').item()\nprint('ready', flush=True)\ntime.sleep(60)\n")
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.kill()
    process.communicate()
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while processes_of(environment) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_of(environment) == []
    for directory in Path(environment["TMPDIR"]).glob("forebay-*"):
        shutil.rmtree(directory)


@pytest.fixture
def kernel(environment: Environment) -> Iterator[Callable[[str], tuple[str, str]]]:
    """Runs a cell in a real IPython kernel; gives standard output and error."""
    manager = KernelManager()
    manager.kernel_spec.argv[0] = sys.executable
    manager.start_kernel(env=environment | {"FOREBAY_URL": "local", "JPY_SESSION_NAME": "/home/me/digits.ipynb"})
    client: BlockingKernelClient = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=WAIT_SECONDS_MAX)

    def run(code: str) -> tuple[str, str]:
        streams = {"stdout": "", "stderr": ""}

        def collect(message: dict[str, Any]) -> None:
            if message["header"]["msg_type"] == "stream":
                streams[message["content"]["name"]] += message["content"]["text"]

        reply = client.execute_interactive(code, timeout=WAIT_SECONDS_MAX, output_hook=collect)
        assert reply["content"]["status"] == "ok", reply["content"]
        return streams["stdout"], streams["stderr"]

    yield run
    client.stop_channels()
    manager.shutdown_kernel()
    manager.cleanup_resources()
    assert_nothing_is_left(environment)


def test_each_cell_is_a_span_that_ends_with_it(kernel: Callable[[str], tuple[str, str]]) -> None:
    leases = "print(json.dumps([row['span'] for row in service_at(os.environ['FOREBAY_URL']).get('api/leases')]))"
    kernel("import json, os, torch\nfrom forebay.service import service_at\nx = torch.ones(3, device='cuda')\nassert x.sum().item() == 3")
    out, _ = kernel(f"import time\ntime.sleep(0.3)\n{leases}")
    assert json.loads(out) == [], "the lease ended with its cell, long before it would have been idle for long enough"
    first = json.loads(kernel(f"y = (x * 2).sum().item()\n{leases}")[0])
    second = json.loads(kernel(f"assert (x + y).sum().item() == 21\n{leases}")[0])
    spans = [span for found in (first, second) for span in found]
    assert [(span["kind"], span["label"], span["cell"]) for span in spans] == [("cell", "digits.ipynb", 3), ("cell", "digits.ipynb", 4)]
    assert spans[0]["id"] != spans[1]["id"]
