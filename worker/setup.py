"""Builds forebay_worker._executor against the PyTorch of this interpreter, which is also the one it will run with."""

from __future__ import annotations

from pathlib import Path

import forebay_wire
import pybind11
from forebay_wire.native_build import PrecompiledBuild, extension_name
from setuptools import setup
from torch.utils.cpp_extension import CppExtension

HERE = Path(__file__).parent
SOURCES = sorted(str(path.relative_to(HERE)) for path in HERE.glob("csrc/**/*.cpp"))

executor = CppExtension(
    extension_name("forebay_worker", "_executor"),
    SOURCES,
    include_dirs=[str(HERE / "csrc"), str(forebay_wire.include_dir()), pybind11.get_include()],
    depends=["csrc/precompiled.h"],
    extra_compile_args=["-O2", "-g0", "-std=c++20", "-Wall", "-Wextra", "-Wno-unused-parameter", "-fvisibility=hidden"],
)
executor.libraries = ["c10", "torch", "torch_cpu"]  # not torch_python: the executor runs without it

setup(
    ext_modules=[executor],
    cmdclass={"build_ext": PrecompiledBuild},
)
