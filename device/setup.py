"""Builds the virtual device against the installed torch; pyproject.toml holds the rest."""

from __future__ import annotations

import os
from pathlib import Path

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

here = Path(__file__).resolve().parent
os.environ.setdefault("MAX_JOBS", "2")

setup(
    ext_modules=[
        CppExtension(
            "forebay._C",
            sorted(str(path.relative_to(here)) for path in (here / "csrc").glob("*.cpp")),
            include_dirs=[str(here.parent / "wire" / "forebay_wire" / "include")],
            extra_compile_args=["-O2", "-g0", "-std=c++20", "-Wall", "-Wextra", "-Wno-unused-parameter", "-fvisibility=hidden"],
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
