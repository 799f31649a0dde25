"""Builds the library that TensorFlow loads, against the TensorFlow that is installed; pyproject.toml holds the rest.

TensorFlow promises nothing of its C++ from one minor release to the next, so the library belongs to the one that it was built with. It
takes two minutes, and 2 GiB of memory.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).resolve().parent
FOLDER = "tensorflow-plugins"
"""Beside packages: TensorFlow loads each library in it."""


def tensorflow() -> Path:
    """Where it is installed. It is not imported: that would load the library as it is so far."""
    spec = find_spec("tensorflow")
    if spec is None or spec.origin is None:
        raise SystemExit("forebay-tensorflow is built against TensorFlow, which is not here: pip install 'tensorflow-cpu>=2.21,<2.22'")
    return Path(spec.origin).parent


INSTALLED = tensorflow()
INCLUDE = INSTALLED / "include"
THEIRS = (INCLUDE, *(INCLUDE / "external" / name for name in ("highwayhash", "farmhash_archive/src", "tf_runtime/include")))

library = Extension(
    f"{FOLDER}.forebay",
    sorted(str(path.relative_to(HERE)) for path in (HERE / "csrc").glob("*.cpp")),
    include_dirs=[str(HERE / "csrc"), str(HERE / "csrc" / "absent")],
    depends=sorted(str(path.relative_to(HERE)) for path in (HERE / "csrc").rglob("*.h")),
    define_macros=[("_GLIBCXX_USE_CXX11_ABI", "1"), ("EIGEN_MAX_ALIGN_BYTES", "64")],  # as tf.sysconfig.get_compile_flags() has them
    extra_compile_args=["-O1", "-g0", "-std=c++17", "-Wall", "-Wextra", "-fvisibility=hidden", *(f"-isystem{folder}" for folder in THEIRS)],
    library_dirs=[str(INSTALLED)],
    libraries=[":libtensorflow_cc.so.2", ":libtensorflow_framework.so.2"],
    extra_link_args=["-Wl,-rpath,$ORIGIN/../tensorflow"],
    language="c++",
)


class Build(build_ext):
    """No module of Python, so without the interpreter's tag in its name."""

    def get_ext_filename(self, name: str) -> str:
        return f"{name.replace('.', '/')}.so"


setup(ext_modules=[library], cmdclass={"build_ext": Build})
