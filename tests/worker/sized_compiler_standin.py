"""``sized_compiler_standin.py LIBRARY [ALIKE …]``: stands for the process that makes libraries, of segments that differ in rows alone.

What it makes of two of them is for up to 100 rows.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from forebay_worker import compiler, descriptions

ROWS_MAX = 100


def rows(body: bytes) -> int:
    geometry = descriptions.read(body).places[0].geometry
    return 0 if geometry is None else geometry.sizes[0]


def main() -> int:
    body = sys.stdin.buffer.read()
    what, *alike = sys.argv[1:]
    if what == compiler.SIZE:
        print(json.dumps({"size": rows(body)}))
        return 0
    Path(what).write_bytes(b"a library")
    made_of = {"alike": 0, "made_of": [rows(Path(alike[0]).read_bytes()), rows(body)], "sizes": [[2, ROWS_MAX]]} if alike else {}
    print(json.dumps(made_of))
    return 0


if __name__ == "__main__":
    sys.exit(main())
