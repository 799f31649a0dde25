"""``python -m forebay_worker.remote.cell NAME…``: runs the notebook cell in this folder with the variables that it is given.

It leaves the variables of these names, for the notebook."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path

from forebay_wire.remote import values
from forebay_wire.remote.values import ValueRefused

FILE, GIVEN, MADE = "cell.py", Path("given"), Path("made")


def main() -> None:
    """Exits with status 1 where the cell does not make what it is asked for; an error of the cell's is its own."""
    names = sys.argv[1:]
    source = Path(FILE).read_text(encoding="utf-8")
    linecache.cache[FILE] = (len(source), None, source.splitlines(keepends=True), FILE)
    try:
        space = {"__name__": "__main__", **values.read(GIVEN)}
    except ValueRefused as refused:
        sys.exit(f"What the cell is given cannot be read on the device's host: {refused}.")
    exec(compile(source, FILE, "exec"), space)  # noqa: S102 the user's own code, in the sandbox
    missing = [name for name in names if name not in space]
    if missing:
        sys.exit(f"The cell makes no {', '.join(missing)}.")
    try:
        values.write(MADE, {name: space[name] for name in names})
    except ValueRefused as refused:
        sys.exit(f"What the cell made cannot come back: {refused}.")


if __name__ == "__main__":
    main()
