"""``hurried_compiler.py LIBRARY``: the process that makes libraries, but that it gives way within its session alone: tests wait for it."""

from __future__ import annotations

import sys

from forebay_worker import compiler, confinement

if __name__ == "__main__":
    confinement.AUTOGROUP_ATTEMPTS = 0
    sys.exit(compiler.main())
