"""How extensions of PyTorch are linked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SETUP = """
from forebay_wire.native_build import PrecompiledBuild
from setuptools import setup
from torch.utils.cpp_extension import CppExtension
setup(name="streams", ext_modules=[CppExtension("streams", ["streams.cpp"])], cmdclass={"build_ext": PrecompiledBuild})
"""
SOURCE = """
#include <Python.h>
#include <sstream>
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "streams", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};
PyMODINIT_FUNC PyInit_streams() {
  std::ostringstream out;
  out << 42L;
  PyObject* module = PyModule_Create(&definition);
  PyModule_AddStringConstant(module, "text", out.str().c_str());
  return module;
}
"""


def test_an_extension_shares_pytorch_s_cxx_library_where_the_compiler_finds_a_static_one_first(tmp_path: Path) -> None:
    """A stream of another copy of the library crashes where PyTorch writes to it."""
    found = subprocess.run(["g++", "-print-file-name=libstdc++.a"], capture_output=True, text=True, check=True).stdout.strip()
    static = tmp_path / "static"
    static.mkdir()
    (static / "libstdc++.a").symlink_to(Path(found).resolve())
    (tmp_path / "setup.py").write_text(SETUP, encoding="utf-8")
    (tmp_path / "streams.cpp").write_text(SOURCE, encoding="utf-8")
    environment = {**os.environ, "LDFLAGS": f"-L{static}", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    built = subprocess.run(build, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    (extension,) = tmp_path.glob("streams*.so")
    needed = subprocess.run(["readelf", "-d", str(extension)], capture_output=True, text=True, check=True).stdout
    assert "[libstdc++.so.6]" in needed
