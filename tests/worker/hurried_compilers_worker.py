"""A worker, as ``python -m forebay_worker``, whose compiler is ``hurried_compiler.py``."""

from __future__ import annotations

import sys
from pathlib import Path

from forebay_worker import __main__, compile_queue

if __name__ == "__main__":
    compile_queue.COMPILER = (sys.executable, str(Path(__file__).with_name("hurried_compiler.py")))
    sys.exit(__main__.main())
