"""``torch.cuda`` on a stock build, in processes of its own. The pool is scripted: it tells the flavor and grants nothing."""

from __future__ import annotations

from typing import Any

import pytest
from forebay_wire import messages

TOKEN = "a-token-of-the-test"


class Notebook:
    """Runs code in a process whose FOREBAY_URL is the scripted pool's."""

    def __init__(self, run_python: Any, pool: Any) -> None:
        self._run = run_python
        self.pool = pool

    def run(self, code: str, **environment: str) -> str:
        """What the code printed. Fails the test if the code fails, or if it asked for a lease."""
        done = self._run("import torch\n" + code, FOREBAY_URL=self.pool.url, FOREBAY_TOKEN=TOKEN, **environment)
        assert done.returncode == 0, done.stdout + done.stderr
        assert not any(isinstance(message, messages.Acquire) for message in self.pool.received), "a lease was asked for"
        return str(done.stdout)


@pytest.fixture
def notebook(run_forked: Any, scripted_pool: Any) -> Notebook:
    return Notebook(run_forked, scripted_pool)


def test_without_forebay_url_torch_is_as_it_was(run_python: Any) -> None:
    code = """
import sys, torch
assert not torch.cuda.is_available() and torch.cuda.device_count() == 0
assert torch.accelerator.current_accelerator(check_available=True) is None
loaded = sorted(name for name in sys.modules if name.startswith("forebay"))
ours = ["forebay", "forebay.activation", "forebay.errors", "forebay.process", "forebay.service", "forebay.service.sign_in"]
assert loaded == [*ours, "forebay_wire", "forebay_wire.torch_builds"], loaded
"""
    done = run_python(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_import_torch_alone_activates_and_loads_nothing_of_the_network(run_python: Any, scripted_pool: Any) -> None:
    notebook = Notebook(run_python, scripted_pool)
    notebook.run("""
import sys
assert torch.cuda.is_available() and torch.cuda.device_count() == 1
assert torch.accelerator.current_accelerator() == torch.device("cuda"), torch.accelerator.current_accelerator()
for module in ("websockets", "pydantic", "forebay_wire.messages", "forebay.session"):
    assert module not in sys.modules, module
""")
    assert notebook.pool.received == []


@pytest.mark.parametrize("url", ["nonsense", "http://"])
def test_a_wrong_forebay_url_is_one_line_and_torch_still_works(run_python: Any, url: str) -> None:
    done = run_python("import torch; print(torch.ones(2).sum().item(), torch.cuda.is_available())", FOREBAY_URL=url)
    assert (done.returncode, done.stdout) == (0, "2.0 False\n")
    assert done.stderr.startswith(f"forebay: the virtual device is off: FOREBAY_URL is '{url}'") and done.stderr.count("\n") == 1


def test_an_extension_that_cannot_be_loaded_is_one_line_even_with_warnings_as_errors(run_python: Any) -> None:
    code = """
import sys, warnings
warnings.simplefilter("error")
sys.modules["forebay._C"] = None
import torch
assert not torch.cuda.is_available()
"""
    done = run_python(code, FOREBAY_URL="local")
    assert done.returncode == 0, done.stderr
    assert "the extension forebay._C cannot be loaded" in done.stderr and done.stderr.count("\n") == 1


def test_an_unreachable_pool_does_not_disturb_what_needs_no_pool(run_python: Any) -> None:
    code = """
import torch
assert torch.cuda.is_available() and torch.cuda.is_bf16_supported() and torch.cuda.get_device_capability() == (8, 0)
try:
    torch.cuda.get_device_name()
except RuntimeError as error:
    print(error)
"""
    done = run_python(code, FOREBAY_URL="http://127.0.0.1:9/", FOREBAY_TOKEN=TOKEN)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("The pool at http://127.0.0.1:9/ (FOREBAY_URL) cannot be reached")


def test_the_device_has_the_flavors_name_and_size(notebook: Notebook) -> None:
    notebook.run("""
assert torch.cuda.get_device_name() == torch.cuda.get_device_name("cuda:0") == "Forebay dev.1gb (virtual)"
properties = torch.cuda.get_device_properties(0)
assert properties.name == "Forebay dev.1gb (virtual)" and properties.total_memory == 2**30
assert (properties.major, properties.minor) == torch.cuda.get_device_capability() == (8, 0)
assert properties.multi_processor_count > 0 and properties.warp_size == 32
assert repr(properties).startswith("_CudaDeviceProperties(name='Forebay dev.1gb (virtual)', major=8"), properties
assert torch.cuda.mem_get_info() == (2**30, 2**30) == torch.accelerator.get_memory_info()
try:
    torch.cuda.get_device_properties(1)
except AssertionError as error:
    assert "Invalid device id" in str(error)
""")
    assert [type(message) for message in notebook.pool.received] == [messages.Hello]


def test_one_device_can_be_selected_and_no_other(notebook: Notebook) -> None:
    notebook.run("""
assert torch.cuda.current_device() == torch.accelerator.current_device_index() == 0
for device in (0, "cuda:0", torch.device("cuda:0"), -1):
    torch.cuda.set_device(device)
with torch.cuda.device(0), torch.cuda.device_of(torch.ones(1)), torch.cuda.device("cuda:0"):
    assert torch.cuda.current_device() == 0
torch.accelerator.set_device_index(0)
for select in (torch.cuda.set_device, torch.accelerator.set_device_index):
    try:
        select(1)
    except RuntimeError as error:
        assert "there is one virtual device, cuda:0" in str(error), error
    else:
        raise AssertionError(select)
assert not torch.cuda.can_device_access_peer(0, 0)
assert torch.cuda.is_initialized() and torch.cuda.init() is None
""")


def test_streams_and_events_keep_their_protocol(notebook: Notebook) -> None:
    notebook.run("""
import threading
default = torch.cuda.current_stream()
assert default == torch.cuda.default_stream() and default.cuda_stream == 0
stream, other = torch.cuda.Stream(), torch.cuda.Stream(device="cuda:0", priority=-1)
assert isinstance(stream, torch.Stream) and stream != other != default and stream.device == torch.device("cuda:0")
assert len({stream, other, default, torch.cuda.current_stream()}) == 3
assert "torch.cuda.Stream device=cuda:0" in repr(stream)
with torch.cuda.stream(stream):
    assert torch.cuda.current_stream() == stream
    elsewhere = []
    thread = threading.Thread(target=lambda: elsewhere.append(torch.cuda.current_stream()))
    thread.start(); thread.join()
    assert elsewhere == [default], "the current stream is the thread's own"
    with torch.cuda.stream(None):
        assert torch.cuda.current_stream() == stream
assert torch.cuda.current_stream() == default
stream.wait_stream(other); other.synchronize(); assert stream.query()
event = stream.record_event()
assert isinstance(event, torch.Event) and event.query()
other.wait_event(event); event.wait(); event.synchronize()
first, second = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
first.record(); second.record(stream)
assert 0 <= first.elapsed_time(second) < 1000
for wrong in (lambda: event.elapsed_time(second), lambda: first.elapsed_time(torch.cuda.Event(enable_timing=True))):
    try:
        wrong()
    except ValueError:
        continue
    raise AssertionError("a time without two timed records")
assert torch.cuda.is_current_stream_capturing() is False
assert torch._C._cuda_getCurrentRawStream(0) == 0
torch.cuda.synchronize(); torch.cuda.synchronize("cuda:0"); torch.accelerator.synchronize()
""")


def test_seeds_and_generator_states_are_the_devices(notebook: Notebook) -> None:
    notebook.run("""
torch.manual_seed(7)
assert torch.cuda.initial_seed() == 7
torch.cuda.manual_seed(8); assert torch.cuda.initial_seed() == 8
torch.cuda.manual_seed_all(9); assert torch.cuda.default_generators[0].initial_seed() == 9
state = torch.cuda.get_rng_state()
torch.cuda.manual_seed(10); torch.cuda.set_rng_state(state); assert torch.cuda.initial_seed() == 9
torch.cuda.set_rng_state_all(torch.cuda.get_rng_state_all())
torch.cuda.seed(); torch.cuda.seed_all(); assert torch.cuda.initial_seed() != 9
with torch.random.fork_rng():
    torch.manual_seed(1)
assert torch.cuda.initial_seed() != 1
assert torch.Generator("cuda").device.type == "cuda"
""")


def test_memory_statistics_begin_at_nothing(notebook: Notebook) -> None:
    notebook.run("""
for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
    assert getattr(torch.cuda, name)() == getattr(torch.accelerator, name)() == 0, name
assert torch.cuda.device_memory_used() == 0
assert torch.cuda.memory_stats()["allocated_bytes.all.current"] == 0
assert "PyTorch CUDA memory summary" in torch.cuda.memory_summary() and torch.cuda.memory_summary(abbreviated=True)
torch.cuda.reset_peak_memory_stats(); torch.cuda.reset_accumulated_memory_stats(); torch.cuda.empty_cache(); torch.cuda.ipc_collect()
torch.accelerator.reset_peak_memory_stats(); torch.accelerator.empty_cache()
assert torch.cuda.get_allocator_backend() == "forebay"
assert torch.cuda.get_per_process_memory_fraction() == 1.0
torch.cuda.set_per_process_memory_fraction(0.5)
assert torch.cuda.get_per_process_memory_fraction() == 0.5
torch.cuda.set_per_process_memory_fraction(1.0)
assert issubclass(torch.cuda.OutOfMemoryError, RuntimeError)
""")


def test_flags_and_profiling_marks_are_harmless(notebook: Notebook) -> None:
    notebook.run("""
torch.backends.cudnn.benchmark = True
torch.backends.cudnn.deterministic = True
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True
torch.set_float32_matmul_precision("high")
with torch.backends.cudnn.flags(enabled=False):
    pass
assert torch.backends.cuda.is_built()
with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
    pass
with torch.cuda.nvtx.range("step"):
    assert torch.cuda.nvtx.range_push("inner") == 1 and torch.cuda.nvtx.range_pop() == 1
torch.cuda.nvtx.mark("here"); torch.cuda.nvtx.range_end(torch.cuda.nvtx.range_start("wide"))
torch.cuda.profiler.start(); torch.cuda.profiler.stop()
assert torch.amp.GradScaler("cuda").is_enabled()
assert torch.cuda.get_sync_debug_mode() == 0
torch.cuda.set_sync_debug_mode("default")
assert torch.cuda.get_arch_list() == [] and torch.cuda.get_gencode_flags() == ""
with torch.autocast("cuda", dtype=torch.bfloat16):
    assert torch.get_autocast_dtype("cuda") == torch.bfloat16
""")


def test_first_use_does_not_judge_the_device_by_this_installations_kernels(notebook: Notebook) -> None:
    notebook.run("""
checks = {call.__name__ for call, _ in torch.cuda._queued_calls} & {"_check_capability", "_check_cubins"}
assert not checks, f"{checks} warn of a device that this build of PyTorch has no kernels for"
torch.cuda.init()
""")


def test_pinned_memory_and_data_loaders_work(notebook: Notebook) -> None:
    notebook.run("""
from torch.utils.data import DataLoader, TensorDataset
assert torch.randn(3).pin_memory().is_pinned() and torch.empty(3, pin_memory=True).is_pinned() and not torch.empty(3).is_pinned()
data = TensorDataset(torch.arange(8.0))
for workers in (0, 2):
    batches = [batch for (batch,) in DataLoader(data, batch_size=4, pin_memory=True, num_workers=workers)]
    assert all(batch.is_pinned() for batch in batches) and torch.cat(batches).tolist() == list(range(8))
""")


def test_legacy_types_say_what_a_tensor_is(notebook: Notebook) -> None:
    notebook.run("""
assert not isinstance(torch.ones(1), torch.cuda.FloatTensor)
assert torch.cuda.FloatTensor.dtype is torch.float32 and torch.cuda.LongTensor.dtype is torch.int64
""")


def test_every_public_name_of_torch_cuda_is_there_or_refused_with_a_reason(notebook: Notebook) -> None:
    """Calls each function with plain arguments: none may say that torch was built without CUDA."""
    out = notebook.run("""
import warnings
from forebay.errors import NotOnVirtualDevice
from forebay.facade.refusals import REFUSED
warnings.simplefilter("ignore")
ARGUMENTS = {
    "can_device_access_peer": (0, 0), "check_error": (0,), "device": (0,), "device_of": (torch.ones(1),), "manual_seed": (1,),
    "manual_seed_all": (1,), "set_device": (0,), "set_per_process_memory_fraction": (1.0,), "set_rng_state": (torch.cuda.get_rng_state(),),
    "set_rng_state_all": ([torch.cuda.get_rng_state()],), "set_stream": (torch.cuda.Stream(),), "set_sync_debug_mode": (0,),
    "stream": (None,), "StreamContext": (None,), "ExternalStream": (1,), "caching_allocator_enable": (True,), "CudaError": (1,),
    "graph": (torch.cuda.CUDAGraph(),), "make_graphed_callables": ((), ()), "export_dot": ("graph.dot",),
}
needs_a_lease = {name for name in torch.cuda.__all__ if name.endswith(("Tensor", "Storage"))}
wrong = []
for name in sorted(set(torch.cuda.__all__) - needs_a_lease):
    thing = getattr(torch.cuda, name)
    if not callable(thing):
        continue
    try:
        thing(*ARGUMENTS.get(name, ()))
        outcome = "works"
    except NotOnVirtualDevice as error:
        outcome = "refused"
        assert name in str(error), error
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"
    expected = "refused" if name in REFUSED or name == "ExternalStream" else "works"
    if outcome != expected:
        wrong.append(f"{name}: {outcome}, not {expected}")
print("\\n".join(wrong))
""")
    assert out.strip() == ""


def test_every_function_of_the_core_that_library_code_calls_is_there(notebook: Notebook) -> None:
    """Every ``torch._C._cuda_*`` and ``_accelerator_*`` name in PyTorch's own Python files."""
    out = notebook.run("""
import pathlib, re
root = pathlib.Path(torch.__file__).parent
called = set()
for path in root.rglob("*.py"):
    called |= set(re.findall(r"torch\\._C\\.(_(?:cuda|accelerator)_\\w+)", path.read_text(errors="ignore")))
ONLY_ON_ROCM = {"_cuda_getHipblasltVersion"}
TYPES = {"_cuda_CUDAAllocator_AllocatorState"}
assert len(called) > 90, len(called)
print(sorted(name for name in called - ONLY_ON_ROCM - TYPES if not hasattr(torch._C, name)))
""")
    assert out.strip() == "[]"


def test_a_forked_child_of_a_process_that_only_looked_may_use_a_session_of_its_own(notebook: Notebook) -> None:
    notebook.run("""
import os
name = torch.cuda.get_device_name()
child = os.fork()
if child == 0:
    os._exit(0 if torch.cuda.get_device_name() == name and not torch.cuda._is_in_bad_fork() else 1)
assert os.waitpid(child, 0)[1] == 0
assert torch.cuda.get_device_name() == name
""")
    assert len(notebook.pool.of(messages.Hello, 2)) == 2
