"""How many bytes of files may go, as an argument of a command."""

from __future__ import annotations

import argparse

LIMIT_BYTES = 2 * 2**30
"""Where nothing is said."""
UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def bytes_of(text: str) -> int:
    """``500M`` as bytes. Raises ArgumentTypeError."""
    number, unit = (text[:-1], text[-1].lower()) if text[-1:].lower() in UNITS else (text, "")
    if not number.isdecimal() or not int(number):
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 500M or 10G")
    return int(number) * UNITS[unit]
