"""``compiler_standin.py LIBRARY``: stands for the process that makes libraries, at no cost.

It keeps the description beside the folder of libraries, and makes none.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

DESCRIBED = "described"


def main() -> int:
    described = Path(sys.argv[1]).parents[2] / DESCRIBED
    described.mkdir(exist_ok=True)
    number = len(list(described.iterdir()))
    part = described / f".{number}"
    part.write_bytes(sys.stdin.buffer.read())
    part.rename(described / f"{number}")
    print(json.dumps({"refused": "none is made here"}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
