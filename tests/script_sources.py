"""What the TypeScript of the extension imports and defines, told by the compiler that builds it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

LAB = Path(__file__).resolve().parent.parent / "lab"
READER = Path(__file__).with_name("script_sources.cjs")


class ScriptFunction(TypedDict):
    """A function with a body: its own lines, those of functions inside it included."""

    name: str
    lines: int


class ScriptClass(TypedDict):
    """A class with the numbers of its methods, accessors included, and its fields."""

    name: str
    methods: int
    members: int


class Script(TypedDict):
    """A file; imports as they are written."""

    file: str
    imports: list[str]
    functions: list[ScriptFunction]
    classes: list[ScriptClass]


def scripts(paths: Sequence[Path]) -> list[Script]:
    """Every file as the compiler reads it. Needs what ``npm ci`` installs in ``lab``, as set-up does."""
    node = shutil.which("node")
    if node is None or not (LAB / "node_modules" / "typescript").is_dir():
        raise RuntimeError("there is no Node.js or no lab/node_modules; run: python3 deploy/local/install.py --dev")
    told = subprocess.run([node, READER, LAB, *paths], capture_output=True, text=True, check=True, timeout=60)
    found: list[Script] = json.loads(told.stdout)
    return found


def imported(script: Script) -> list[Path]:
    """The TypeScript files of its own that a file imports."""
    bases = [(Path(script["file"]).parent / name).resolve() for name in script["imports"] if name.startswith(".")]
    return [path for base in bases for path in (base.with_name(base.name + ".ts"), base.with_name(base.name + ".tsx")) if path.is_file()]
