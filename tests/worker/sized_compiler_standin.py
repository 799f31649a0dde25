"""``sized_compiler_standin.py LIBRARY [ALIKE …]``: stands for the process that makes libraries, of segments that differ in rows or columns.

What it makes of two that differ in rows alone is for up to 100 rows. A library takes a millisecond for each row.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from forebay_worker import compiler, descriptions

ROWS_MAX = 100
SECONDS_A_ROW = 1e-3
ALONE = "it differs in rows and columns"


def sizes(body: bytes) -> tuple[int, ...]:
    geometry = descriptions.read(body).places[0].geometry
    return () if geometry is None else geometry.sizes


def main() -> int:
    rows, columns = sizes(sys.stdin.buffer.read())
    what, *alike = sys.argv[1:]
    others = [sizes(Path(one).read_bytes()) for one in alike]
    told: dict[str, Any] = {"alone": ALONE} if others else {}
    if what == compiler.TIME:
        print(json.dumps({"seconds": SECONDS_A_ROW * rows} if Path(os.environ[compiler.LIBRARY]).exists() else {}))
        return 0
    if what != compiler.SIZE:
        Path(what).write_bytes(b"a library")
    elif others[0][1] == columns:
        told = {"size": rows}
    for number, other in enumerate(others):
        if what != compiler.SIZE and other[1] == columns:
            told = {"alike": number, "made_of": [other[0], rows], "sizes": [[2, ROWS_MAX]]}
            break
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
