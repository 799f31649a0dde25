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


OWN_EXTENSIONS = ("kineto", "monitoring")
"""Folders of ``csrc`` that are built for themselves."""


def sources(*folders: str) -> list[str]:
    return sorted(str(path.relative_to(here)) for folder in folders for path in (here / "csrc" / folder).glob("*.cpp"))


floors = sorted(path.name for path in (here / "csrc").iterdir() if path.is_dir() and path.name not in OWN_EXTENSIONS)


extensions = [
    CppExtension(
        extension_name("forebay", "_C"),
        sources("", *floors),
        include_dirs=[str(here / "csrc"), str(here.parent / "wire" / "forebay_wire" / "include")],
        depends=["csrc/precompiled.h"],
        extra_compile_args=FLAGS,
    )
]
if KINETO.is_dir():
    extensions.append(
        CppExtension(
            extension_name("forebay", "_kineto"),
            sources("kineto"),
            include_dirs=[str(here / "csrc"), str(KINETO)],
            extra_compile_args=FLAGS,
            extra_link_args=["-Wl,-z,now"],  # what a build lacks is missed as it is loaded, not in the middle of a profile
        )
    )

extensions.append(
    Extension(
        extension_name("forebay", f"monitoring.{LIBRARY}"),
        sources("monitoring"),
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
