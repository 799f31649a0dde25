"""``compiler_standin.py LIBRARY``: stands for the process that makes libraries, at no cost.

It keeps the description beside the folder of libraries, and gives a copy of the library that lies there, or none. Where it is told a number
there (``EVERY``), the real one makes each so many-th, the first one too, which is then the one that is copied.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

DESCRIBED = "described"
GIVEN, EVERY = "given.so", "every"
REFUSED = "none is made here"
REAL = (sys.executable, str(Path(__file__).with_name("hurried_compiler.py")))


def main() -> int:
    made = Path(sys.argv[1])
    beside = made.parents[2]
    described, given, every = beside / DESCRIBED, beside / GIVEN, beside / EVERY
    described.mkdir(exist_ok=True)
    number, body = len(list(described.iterdir())), sys.stdin.buffer.read()
    part = described / f".{number}"
    part.write_bytes(body)
    part.rename(described / f"{number}")
    if every.exists() and number % int(every.read_text()) == 0:
        said = subprocess.run([*REAL, str(made)], input=body, stdout=subprocess.PIPE, check=True).stdout
        shutil.copy(made, given)
        print(said.decode())
    elif given.exists():
        shutil.copy(given, made)
        print(json.dumps({}))
    else:
        print(json.dumps({"refused": REFUSED}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
