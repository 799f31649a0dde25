"""How our extensions of PyTorch are compiled: by its own build, with its headers parsed once, and several files at a time.

Headers take most of the time. A file that takes 9 s takes 4 with them precompiled, 2 of which instantiate their templates,
whatever is in the file: so files are compiled in groups, and no two of a package may give two things one name. Used by
``setup.py`` of device and worker alone.
"""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import torch
from torch.utils.cpp_extension import BuildExtension, get_cxx_compiler

from forebay_wire.torch_builds import folder_of

JOBS = "2"
SHARED_CXX_LIBRARY = "-l:libstdc++.so.6"
"""The one that PyTorch's libraries use. Some compilers find only the static one, whose streams crash where PyTorch writes to them."""
FILES_MAX = 8
"""In a group, which is compiled again when one of them changes."""
os.environ.setdefault("MAX_JOBS", JOBS)


def extension_name(package: str, name: str) -> str:
    """Where an extension lies in its package: in the folder of the PyTorch that it is built for."""
    return f"{package}.{folder_of(torch.__version__)}.{name}"


def unplaced(checkout: Path) -> list[str]:
    """Flags of the compiler that keep this machine's paths out of what is built, so that it has the same bytes wherever that is done."""
    places = {checkout: "forebay", Path(sysconfig.get_path("purelib")): "site-packages"}  # of several that fit, the last counts
    return [f"-ffile-prefix-map={place}={name}" for place, name in places.items()]


class PrecompiledBuild(BuildExtension):
    """Compiles the ``precompiled.h`` that an extension depends on first, and includes it in every group of files."""

    def build_extension(self, extension: Any) -> None:
        extension.extra_compile_args += unplaced(Path.cwd().parent)
        extension.extra_link_args += [SHARED_CXX_LIBRARY]
        for header in map(Path, extension.depends):
            extension.extra_compile_args += ["-include", str(self._precompiled(extension, header.read_text()))]
            extension.sources = self._groups(extension)
        super().build_extension(extension)

    def _groups(self, extension: Any) -> list[str]:
        """Files that include the sources, as many in each as in the others; those that hold what they held are not touched."""
        sources = [str(Path(source).absolute()) for source in extension.sources]
        count = -(-len(sources) // FILES_MAX)
        groups = []
        for number in range(count):
            group = Path(self.build_temp).absolute() / extension.name / f"group_{number}.cpp"
            text = "".join(f'#include "{source}"\n' for source in sources[number::count])
            if not group.exists() or group.read_text() != text:
                group.parent.mkdir(parents=True, exist_ok=True)
                group.write_text(text)
            groups.append(str(group))
        return groups

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
