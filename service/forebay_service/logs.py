"""Logs of the services: a record is one line, whoever chose the names in it, so that no name can be read as another record."""

from __future__ import annotations

import logging
import re
import sys
from typing import Any

FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
_UNFIT = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def one_line(text: str) -> str:
    """The text with what would break or turn a line written as Python writes it."""
    return _UNFIT.sub(lambda found: ascii(found[0])[1:-1], text)


class OneLine(logging.Formatter):
    """Escapes messages; what failed stands below them, indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = one_line(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        lines = super().formatException(ei).splitlines()
        return "\n".join(f"  | {one_line(line)}" for line in lines)


def log_to_stderr(level: str) -> None:
    """Sets up the root logger of a service."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine(FORMAT))
    logging.basicConfig(level=level, handlers=[handler], force=True)
