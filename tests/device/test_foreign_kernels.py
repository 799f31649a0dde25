"""Packages that bring CUDA kernels of their own fall back on PyTorch's operators on the virtual device, or are refused in a sentence."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from forebay.errors import NotOnVirtualDevice
from forebay.facade.foreign_kernels import COMPILED, ForeignKernels

QUANTISER = {
    "__init__.py": "",
    "backends/__init__.py": "",
    "backends/cuda/__init__.py": "",
    "backends/cuda/ops.py": "raise OSError('libcudart.so.12: cannot open shared object file')\n",
    "cuda_specs.py": "def get_cuda_specs():\n    return 'a runtime of CUDA 12.8'\n",
    "cextension.py": """
import ctypes
from bitsandbytes.cuda_specs import get_cuda_specs
specs = get_cuda_specs()
class Library:
    _lib = ctypes.CDLL(None)
    def __getattr__(self, name):
        return getattr(self._lib, name)
lib = Library()
""",
}
"""What of bitsandbytes' layout matters: where it looks for CUDA, what registers kernels, what it calls."""


@pytest.fixture
def finder(monkeypatch: pytest.MonkeyPatch) -> ForeignKernels:
    finder = ForeignKernels()
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    for name in [name for name in sys.modules if name.partition(".")[0] == "bitsandbytes"]:
        monkeypatch.delitem(sys.modules, name)
    return finder


@pytest.fixture
def load(finder: ForeignKernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports modules of a package that is laid out as bitsandbytes."""
    for name, text in QUANTISER.items():
        path = tmp_path / "bitsandbytes" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    def load(name: str) -> ModuleType:
        __import__(name)
        monkeypatch.setitem(sys.modules, name, sys.modules[name])
        return sys.modules[name]

    return load


@pytest.mark.parametrize(("name", "package"), COMPILED.items())
def test_compiled_kernels_of_an_installed_package_say_what_to_use_instead(
    name: str, package: str, finder: ForeignKernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert importlib.util.find_spec(package) is None, "a program that looks for what is not installed is told so"
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.util.find_spec(package) is not None
    with pytest.raises(ImportError, match=rf"^{package} is not available .*scaled_dot_product_attention.*sdpa"):
        importlib.import_module(name)
    sys.modules.pop(package, None)


def test_a_quantiser_sees_no_cuda_runtime_and_registers_no_cuda_kernels(load: Callable[[str], ModuleType]) -> None:
    assert load("bitsandbytes.cextension").specs is None
    assert "Left empty" in str(load("bitsandbytes.backends.cuda.ops").__doc__)


def test_its_library_serves_the_cpu_and_refuses_gpus_by_name(load: Callable[[str], ModuleType]) -> None:
    library = load("bitsandbytes.cextension").lib
    assert library.abs(-3) == 3
    with pytest.raises(NotOnVirtualDevice, match=r"bitsandbytes' cadam32bit_grad_fp32 is not available .* 4-bit and 8-bit layers"):
        library.cadam32bit_grad_fp32(1)
    assert library["cquantize"] is not None


def test_no_other_module_is_looked_at(finder: ForeignKernels) -> None:
    assert finder.find_spec("json", None) is None
    assert finder.find_spec("bitsandbytes", None) is None
