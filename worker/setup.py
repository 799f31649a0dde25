"""Builds forebay_worker._executor against the PyTorch of this interpreter, which is also the one it will run with."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import forebay_wire
import pybind11
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

os.environ.setdefault("MAX_JOBS", "2")
HERE = Path(__file__).parent
SOURCES = sorted(str(path.relative_to(HERE)) for path in HERE.glob("csrc/*.cpp"))

executor = CppExtension(
    "forebay_worker._executor",
    SOURCES,
    include_dirs=[str(forebay_wire.include_dir()), pybind11.get_include()],
    extra_compile_args=["-O2", "-g0", "-std=c++20", "-Wall", "-Wextra", "-Wno-unused-parameter", "-fvisibility=hidden"],
)
executor.libraries = ["c10", "torch", "torch_cpu"]  # not torch_python: the executor runs without it

setup(
    ext_modules=[executor],
    cmdclass={"build_ext": BuildExtension.with_options(use_ninja=importlib.util.find_spec("ninja") is not None)},
)
