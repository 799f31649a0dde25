"""A worker that is told what its devices and the links between them can do.

``rated_forebay_worker.py LINK_BYTES_PER_SECOND …``, and the worker's options.
"""

from __future__ import annotations

import argparse
import struct
import sys
from typing import TYPE_CHECKING, Any

from forebay_worker import __main__ as worker

if TYPE_CHECKING:
    from forebay_worker._executor import Server

FLOAT, DOUBLE = 6, 7
FLOPS_PER_SECOND = {FLOAT: 1e9, DOUBLE: 1e9}
BYTES_PER_SECOND, CALL_SECONDS, LINK_SECONDS = 10e9, 2e-6, 5e-5
SLOW, FAST = "2e7", "1e12"
"""Links with which stages are quicker than all else for a small deep model, and with which they are not."""


def packed(link_bytes_per_second: float) -> bytes:
    """As workers pass them on (``worker/csrc/gang/device_rates.h``)."""
    products = b"".join(struct.pack("<Bd", *one) for one in FLOPS_PER_SECOND.items())
    others = struct.pack("<4d", BYTES_PER_SECOND, CALL_SECONDS, link_bytes_per_second, LINK_SECONDS)
    return bytes([len(FLOPS_PER_SECOND)]) + products + others


def main() -> int:
    rates, made = packed(float(sys.argv.pop(1))), worker.server_of

    def rated(device: Any, others: list[tuple[str, bytes]], options: argparse.Namespace) -> Server:
        server = made(device, others, options)
        server.take_rates(rates)
        return server

    worker.server_of = rated
    return worker.main()


if __name__ == "__main__":
    sys.exit(main())
