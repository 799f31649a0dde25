"""``hurried_compiler.py LIBRARY``: the process that makes libraries, but that it gives way within its session alone: tests wait for it.

It takes the processor's word for the vectors that it has, which are otherwise compiled for one after the other.
"""

from __future__ import annotations

import os
import sys

from forebay_worker import compiler, confinement

if __name__ == "__main__":
    confinement.AUTOGROUP_ATTEMPTS = 0
    os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "1"
    sys.exit(compiler.main())
