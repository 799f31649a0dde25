"""A worker, as ``python -m forebay_worker``, whose compiler is ``compiler_standin.py``, and whose folder of libraries is small."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from forebay_worker import __main__, offers
from forebay_worker.libraries import Libraries

BYTES_MAX = 8 << 20

if __name__ == "__main__":
    offers.COMPILER = (sys.executable, str(Path(__file__).with_name("compiler_standin.py")))
    offers.Libraries = functools.partial(Libraries, bytes_max=BYTES_MAX)  # type: ignore[misc,assignment] # as its users call it
    sys.exit(__main__.main())
