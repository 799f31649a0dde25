"""Compiles the stand-in once for each state of its sources and of PyTorch, into a folder that makes it importable.

``import torch`` finds it there by the entry points of an installed package, as any out-of-tree back end.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import torch
from torch.utils import cpp_extension

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent.parent / "build" / "standin"
FLAGS = ("-std=c++20", "-O1", "-g0", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-interference-size")
METADATA = "Metadata-Version: 2.1\nName: forebay-standin\nVersion: 0\n"
ENTRY_POINTS = "[torch.backends]\nstandin = forebay_standin:activate\n"


def built() -> Path:
    """The folder to put on ``PYTHONPATH``; compiles where there is none for these sources."""
    folder = CACHE / key(Path(__file__), *HERE.glob("csrc/*"), *HERE.glob("forebay_standin/*.py"))
    if not folder.is_dir():
        fresh = folder.with_name(f"{folder.name}.{os.getpid()}")
        compile_into(fresh)
        if folder.is_dir():
            shutil.rmtree(fresh)  # somebody else was faster
        else:
            fresh.rename(folder)
    return folder


def key(*sources: Path) -> str:
    """A hash of what is built from these files, with this PyTorch."""
    state = hashlib.sha256(f"{torch.__version__} {FLAGS}".encode())
    for path in sorted(sources):
        state.update(path.read_bytes())
    return state.hexdigest()[:16]


def compile_into(folder: Path) -> None:
    """Raises CalledProcessError with the compiler's words on standard error."""
    package = folder / "forebay_standin"
    shutil.copytree(HERE / "forebay_standin", package, ignore=shutil.ignore_patterns("__pycache__"))
    information = folder / "forebay_standin-0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(METADATA)
    (information / "entry_points.txt").write_text(ENTRY_POINTS)
    compiler = os.environ.get("CXX", "c++")
    flags = [*FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"]
    includes = [f"-I{path}" for path in (*cpp_extension.include_paths(), sysconfig.get_path("include"))]
    together = folder / "together.cpp"  # as one: most of the time goes into PyTorch's headers
    together.write_text("".join(f'#include "{source}"\n' for source in sorted(HERE.glob("csrc/*.cpp"))))
    libraries = [flag for path in cpp_extension.library_paths() for flag in (f"-L{path}", f"-Wl,-rpath,{path}")]
    linked = ["-shared", *libraries, "-lc10", "-ltorch_cpu", "-ltorch_python", "-ltorch", "-o", str(package / "libstandin.so")]
    subprocess.run([compiler, *flags, *includes, str(together), *linked], check=True)
    together.unlink()


if __name__ == "__main__":
    print(built())
