"""The pool, on a host where NVIDIA's driver is loaded as far as the pool can tell: this file stands for the driver's."""

from __future__ import annotations

import sys
from functools import partial

from forebay_pool import service
from forebay_pool.__main__ import main
from forebay_pool.hosts import probes

service.probes_of = partial(probes.probes_of, drivers=probes.Drivers(nvidia=__file__))

if __name__ == "__main__":
    sys.exit(main())
