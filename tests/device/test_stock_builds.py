"""What differs between builds of PyTorch: which one the extension is for, whose kernels and functions serve ``cuda:0``, GPUs of the host.

``make test-wheels`` runs these on a CPU build and on builds with CUDA.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from forebay.pytorch_build import BUILT_FOR

NOBODY = {"FOREBAY_URL": "http://127.0.0.1:9/", "FOREBAY_TOKEN": "a-token-of-the-test"}
GPUS = 2
MANAGEMENT_LIBRARY = f"""
extern "C" int nvmlInit() {{ return 0; }}
extern "C" int nvmlDeviceGetCount_v2(int* count) {{ *count = {GPUS}; return 0; }}
"""
"""What PyTorch asks of NVIDIA's libnvidia-ml.so.1 to count GPUs."""


def test_an_extension_for_another_release_of_torch_is_refused_by_both_versions_before_it_is_loaded(run_python: Any, tmp_path: Path) -> None:
    import forebay

    copy = tmp_path / "site" / "forebay"
    shutil.copytree(Path(forebay.__file__).parent, copy)
    extension = next(copy.glob("torch_*/_C.*.so"))
    code = extension.read_bytes()
    found = BUILT_FOR.search(code)
    assert found is not None
    other = re.sub(rb"\d", b"9", found[1])
    extension.write_bytes(code.replace(found[0], found[0].replace(found[1], other)))
    program = "import sys, torch; print(torch.ones(2).sum().item(), torch.cuda.is_available(), 'forebay._C' in sys.modules)"
    done = run_python(program, FOREBAY_URL="local", PYTHONPATH=f"{copy.parent}:{os.environ.get('PYTHONPATH', '')}")
    assert (done.returncode, done.stdout) == (0, "2.0 False False\n"), done.stderr
    assert f"built for torch {other.decode()}, and torch {torch.__version__} is installed" in done.stderr and done.stderr.count("\n") == 1


def test_a_forebay_without_a_build_for_this_release_of_torch_names_those_that_it_has(run_python: Any, tmp_path: Path) -> None:
    import forebay

    copy = tmp_path / "site" / "forebay"
    shutil.copytree(Path(forebay.__file__).parent, copy)
    (built,) = copy.glob("torch_*")
    shutil.copytree(built, copy / "torch_9_10")
    built.rename(copy / "torch_9_9")
    program = "import torch; print(torch.ones(2).sum().item(), torch.cuda.is_available())"
    done = run_python(program, FOREBAY_URL="local", PYTHONPATH=f"{copy.parent}:{os.environ.get('PYTHONPATH', '')}")
    assert (done.returncode, done.stdout) == (0, "2.0 False\n"), done.stderr
    assert f"built for torch 9.9, 9.10, and torch {torch.__version__} is installed" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("missing", ["torch.cuda.nvtx", "torch.cuda.memory"])
def test_a_pytorch_that_is_not_known_is_refused_in_one_sentence_and_has_no_device(run_python: Any, missing: str) -> None:
    """A later release may lack what the façade replaces, in whichever of its parts."""
    done = run_python(
        f"""
import torch
del {missing}
from forebay import activation
activation.activate()
x = torch.ones(2, requires_grad=True)
torch.manual_seed(1)
(x * 2).sum().backward()
print(x.grad.tolist(), torch.cuda.is_available(), torch.cuda.device_count(), torch.accelerator.is_available())
try:
    torch.ones(1, device="cuda")
except Exception as error:
    print(error)
""",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
        **NOBODY,
    )
    state, error = done.stdout.splitlines()
    assert state == "[2.0, 2.0] False 0 False"
    assert any(words in error for words in ("the virtual device is off", "not compiled with CUDA", "libcudart functions unavailable"))
    said = f"forebay: the virtual device is off: this forebay does not know torch {torch.__version__} ("
    assert done.stderr.startswith(said) and done.stderr.count("\n") == 1, done.stderr


def test_no_kernel_of_pytorch_is_left_under_the_device_s_keys(run_python: Any) -> None:
    """Process groups (c10d) are no kernels: they pass tensors on, in builds without CUDA too."""
    done = run_python(
        """
import re, torch
core, left = torch._C, []
for name in core._dispatch_get_all_op_names():
    for key in ("CUDA", "SparseCUDA", "SparseCsrCUDA", "QuantizedCUDA", "NestedTensorCUDA"):
        if not name.startswith("c10d::") and core._dispatch_has_kernel(name) and core._dispatch_has_kernel_for_dispatch_key(name, key):
            active = re.search(rf"^{key}(?!.*inactive).*$", core._dispatch_dump(name), re.MULTILINE)[0]
            if "kernel_table.h" not in active:
                left.append(active)
assert core._dispatch_has_kernel_for_dispatch_key("aten::add.Tensor", "CUDA")
assert left == [], left
""",
        **NOBODY,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_where_a_kernel_gave_way_to_a_composite_one_the_parts_have_the_derivative(run_forked: Any) -> None:
    """The kernel's own derivative would ask for another kernel for GPUs."""
    done = run_forked(
        """
import torch
from forebay import _C
core, recorded, whole = torch._C, set(_C.recorded()), []
for name in core._dispatch_get_all_op_names():
    if not core._dispatch_has_kernel(name) or name.removeprefix("aten::") in recorded:
        continue
    if all(core._dispatch_has_kernel_for_dispatch_key(name, key) for key in ("CUDA", "CompositeImplicitAutograd")):
        lines = dict(line.split(": ", 1) for line in core._dispatch_dump_table(name).splitlines() if ": " in line)
        if "kernel_table.h" not in lines["AutogradCUDA"]:
            whole.append((name, lines["AutogradCUDA"]))
assert whole == [], whole
""",
        **NOBODY,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_no_function_for_gpus_is_left_as_the_build_brought_it(run_python: Any) -> None:
    done = run_python(
        """
import torch
before = dict(vars(torch._C))
decorated = [name for name in torch.cuda.__all__ if hasattr(getattr(torch.cuda, name), "__wrapped__")]
from forebay import activation, process
activation.activate()
assert process.active
left = [name for name, function in before.items() if name.startswith(("_cuda_", "_nccl_")) and getattr(torch._C, name) is function]
assert all(isinstance(before[name], type) for name in left), left
assert "use_mem_pool" in decorated  # torch.compile lists such functions and what they decorate
assert [name for name in decorated if not hasattr(getattr(torch.cuda, name), "__wrapped__")] == []
assert not torch.backends.cudnn.is_available() and torch.backends.cudnn.version() is None
assert torch.cuda.device_count() == 1 and torch.ones(1).pin_memory().is_pinned()
""",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
        **NOBODY,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_no_compiler_of_pytorch_takes_the_device_for_a_gpu_of_this_host(run_forked: Any) -> None:
    """A build with CUDA would compile for ``cuda:0`` here, and ask for the driver, which only hosts with a GPU have."""
    done = run_forked(
        """
import torch
from torch.utils._triton import has_triton
assert torch.cuda.is_available() and not has_triton() and not torch._C._jit_can_fuse_on_gpu()
torch._C._jit_override_can_fuse_on_gpu(True)  # as programs of old do
assert not torch._C._jit_can_fuse_on_gpu()
""",
        **NOBODY,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


@pytest.mark.skipif(torch.version.cuda is None, reason="a build of PyTorch without CUDA sees no GPU")
@pytest.mark.parametrize("configured", [True, False])
def test_where_the_host_has_gpus_the_process_is_told_whose_cuda_it_sees(run_python: Any, tmp_path: Path, configured: bool) -> None:
    (tmp_path / "nvml.cpp").write_text(MANAGEMENT_LIBRARY)
    subprocess.run(["c++", "-shared", "-fPIC", "-o", tmp_path / "libnvidia-ml.so.1", tmp_path / "nvml.cpp"], check=True)
    program = "import torch; print(torch.cuda.device_count())"
    done = run_python(program, LD_LIBRARY_PATH=str(tmp_path), **(NOBODY if configured else {}))
    assert (done.returncode, done.stdout) == (0, "1\n" if configured else f"{GPUS}\n"), done.stderr
    said = f"cuda:0 is the virtual device of FOREBAY_URL={NOBODY['FOREBAY_URL']}, not one of this machine's GPUs ({GPUS})"
    assert (said in done.stderr) == configured and done.stderr.count("\n") == int(configured), done.stderr


def test_a_worker_never_has_a_virtual_device_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "forebay_worker", "--describe"], env={**os.environ, **NOBODY}, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert not any("virtual" in device["model"] for device in json.loads(done.stdout)["devices"]), done.stdout
