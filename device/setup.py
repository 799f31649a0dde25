"""Builds the virtual device against the installed torch; pyproject.toml holds the rest."""

from __future__ import annotations

from pathlib import Path

from forebay_wire.native_build import PrecompiledBuild, extension_name
from setuptools import Extension, setup
from torch.utils.cpp_extension import CppExtension, include_paths

here = Path(__file__).resolve().parent

FLAGS = ["-O2", "-g0", "-std=c++20", "-Wall", "-Wextra", "-Wno-unused-parameter", "-fvisibility=hidden"]
SONAME = "libnvidia-ml.so.1"
LIBRARY = "nvml"
"""The extension that is no module of Python: a library for monitors."""
KINETO = Path(include_paths()[0]) / "kineto"


def sources(folder: str) -> list[str]:
    return sorted(str(path.relative_to(here)) for path in (here / folder).glob("*.cpp"))


extensions = [
    CppExtension(
        extension_name("forebay", "_C"),
        sources("csrc"),
        include_dirs=[str(here.parent / "wire" / "forebay_wire" / "include")],
        extra_compile_args=FLAGS,
    )
]
if KINETO.is_dir():
    extensions.append(
        CppExtension(
            extension_name("forebay", "_kineto"),
            sources("csrc/kineto"),
            include_dirs=[str(KINETO)],
            extra_compile_args=FLAGS,
            extra_link_args=["-Wl,-z,now"],  # what a build lacks is missed as it is loaded, not in the middle of a profile
        )
    )

extensions.append(
    Extension(
        extension_name("forebay", f"monitoring.{LIBRARY}"),
        sources("csrc/monitoring"),
        extra_compile_args=FLAGS,
        extra_link_args=[f"-Wl,-soname,{SONAME}"],
        language="c++",
    )
)


class Build(PrecompiledBuild):
    """The library for monitors has the name by which they look for it."""

    def get_ext_filename(self, name: str) -> str:
        *places, last = name.split(".")  # setuptools asks with and without the package
        return str(Path(*places, SONAME)) if last == LIBRARY else str(super().get_ext_filename(name))


setup(ext_modules=extensions, cmdclass={"build_ext": Build})
