"""The syntax trees of the source, for tests that read it: each file is parsed once in a run of tests."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path


@cache
def tree_of(path: Path) -> ast.Module:
    """Parsed without the garbage collector, which took two thirds of the time: what grows here is no garbage."""
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        gc.enable()
