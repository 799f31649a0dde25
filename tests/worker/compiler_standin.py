"""``compiler_standin.py LIBRARY``: stands for the process that makes libraries, at no cost.

It keeps the description beside the folder of libraries, and makes none, but where one lies there that is called ``any.so``: then every
second time that one, which is of another segment, and each ``REAL_EVERY``-th time a real one.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from forebay_worker import compiler

REAL_EVERY = 240
DESCRIBED = "described"


def main() -> int:
    library = Path(sys.argv[1])
    folder = library.parents[2]
    described, prebuilt = folder / DESCRIBED, folder / "any.so"
    described.mkdir(exist_ok=True)
    number = len(list(described.iterdir()))
    if prebuilt.exists() and number % REAL_EVERY == REAL_EVERY - 1:
        (described / f"{number}").touch()
        return compiler.main()
    part = described / f".{number}"
    part.write_bytes(sys.stdin.buffer.read())
    part.rename(described / f"{number}")
    if prebuilt.exists() and number % 2:
        shutil.copy(prebuilt, library)
        print(json.dumps({}))
    else:
        print(json.dumps({"refused": "none is made here"}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
