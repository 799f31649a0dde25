"""How our extensions of PyTorch are compiled: by its own build, with its headers parsed once and not for each file.

They are what takes most of the time: a file that takes 9 s takes 4 with them precompiled. Used by ``setup.py`` of device and worker alone.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import torch
from torch.utils.cpp_extension import BuildExtension, get_cxx_compiler

JOBS = "2"
os.environ.setdefault("MAX_JOBS", JOBS)


class PrecompiledBuild(BuildExtension):
    """Compiles the ``precompiled.h`` that lies beside the sources first, and includes it in every file."""

    def build_extension(self, extension: Any) -> None:
        source = Path(extension.sources[0]).parent / "precompiled.h"
        if source.exists():
            extension.extra_compile_args += ["-include", str(self._precompiled(extension, source.read_text()))]
        super().build_extension(extension)

    def _precompiled(self, extension: Any, text: str) -> Path:
        """The header beside its precompiled form, which is made anew for another text or PyTorch."""
        header: Path = Path(self.build_temp).absolute() / extension.name / "precompiled.h"
        text = f"// PyTorch {torch.__version__}\n{text}"
        made = header.with_name(f"{header.name}.gch")
        if not made.exists() or header.read_text() != text:
            header.parent.mkdir(parents=True, exist_ok=True)
            made.unlink(missing_ok=True)
            header.write_text(text)
            subprocess.run([*self._command(extension), "-x", "c++-header", str(header), "-o", str(made)], check=True)
        return header

    def _command(self, extension: Any) -> list[str]:
        """The compiler with the flags that PyTorch's build gives it; others would make the precompiled header useless."""
        include = [*extension.include_dirs, *(self.include_dirs or ())]
        defines = [f"-D{name}" if value is None else f"-D{name}={value}" for name, value in extension.define_macros]
        flags = [*self.compiler.compiler_so[1:], *(f"-I{folder}" for folder in include), *defines, *extension.extra_compile_args]
        compiler: str = get_cxx_compiler()  # type: ignore[no-untyped-call] # PyTorch's
        return [compiler, *flags]
