"""The reference models that come with this package, as programs in ``forebay/models``."""

from __future__ import annotations

import ast
import tomllib
from dataclasses import dataclass
from pathlib import Path

import forebay
from forebay.errors import ForebayError
from forebay.toolkit.flavor import unknown

FOLDER = Path(forebay.__file__).parent / "models"


@dataclass(frozen=True)
class ReferenceModel:
    """A program that trains a model."""

    name: str
    program: Path
    memory_bytes: int
    """What its training takes on a device, at its own batch."""

    @property
    def about(self) -> str:
        """One sentence, the first of the program."""
        return (ast.get_docstring(self._tree(self.program)) or "").partition("\n")[0]

    def files(self) -> list[Path]:
        """The program, and what it takes from files beside it."""
        found, left = [], [self.program]
        while left:
            path = left.pop()
            found.append(path)
            named = {node.module for node in ast.walk(self._tree(path)) if isinstance(node, ast.ImportFrom)}
            beside = [path.parent / f"{name}.py" for name in sorted(filter(None, named))]
            left += [one for one in beside if one.is_file() and one not in found and one not in left]
        return found

    @staticmethod
    def _tree(path: Path) -> ast.Module:
        return ast.parse(path.read_text(encoding="utf-8"))


def models() -> dict[str, ReferenceModel]:
    """All of them by name, in the order of the catalogue."""
    rows = tomllib.loads((FOLDER / "catalogue.toml").read_text(encoding="utf-8"))
    return {name: ReferenceModel(name, FOLDER / row["program"], row["memory_mib"] << 20) for name, row in rows.items()}


def model(name: str) -> ReferenceModel:
    """Raises ForebayError with the names that are nearest."""
    found = models()
    if name in found:
        return found[name]
    raise ForebayError(unknown(name, list(found), "model", "forebay models list"))
