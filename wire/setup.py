"""Builds forebay_wire._stream; everything else is in pyproject.toml."""

from pathlib import Path

from pybind11.setup_helpers import Pybind11Extension
from setuptools import setup

setup(
    ext_modules=[
        Pybind11Extension(
            "forebay_wire._stream",
            ["csrc/stream.cpp"],
            include_dirs=["forebay_wire/include"],
            depends=["forebay_wire/include/forebay/wire.h", "forebay_wire/include/forebay/traces.h"],
            cxx_std=17,
            extra_compile_args=[f"-ffile-prefix-map={Path.cwd().parent}=forebay"],  # the same bytes wherever it is built
        )
    ]
)
