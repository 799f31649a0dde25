"""Builds the plug-in, a library that JAX loads; pyproject.toml holds the rest. It needs neither PyTorch nor JAX to be built."""

from __future__ import annotations

from pathlib import Path

import forebay_wire
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).resolve().parent

plugin = Extension(
    "forebay_jax.plugin",
    sorted(str(path.relative_to(HERE)) for path in (HERE / "csrc").glob("*.cpp")),
    include_dirs=[str(HERE / "csrc"), str(forebay_wire.include_dir())],
    depends=sorted(str(path.relative_to(HERE)) for path in (HERE / "csrc").glob("*.h")),
    extra_compile_args=["-O2", "-g0", "-std=c++20", "-Wall", "-Wextra", "-fvisibility=hidden"],
    language="c++",
)


class Build(build_ext):
    """No module of Python, so without the interpreter's tag in its name."""

    def get_ext_filename(self, name: str) -> str:
        return f"{name.replace('.', '/')}.so"


setup(ext_modules=[plugin], cmdclass={"build_ext": Build})
