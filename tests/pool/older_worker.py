"""A worker of a release whose links had an earlier version: run as ``python older_worker.py PROTOCOL …`` in place of the worker."""

from __future__ import annotations

import runpy
import sys
from typing import Any

from forebay_wire import messages


def become(protocol: int) -> None:
    """Makes this process say that its links have this version."""
    for model in (messages.Ready, messages.ResumeWorker):
        _wrap(model, protocol)


def _wrap(model: Any, protocol: int) -> None:
    def encode(self: Any) -> str:
        return str(self.model_copy(update={"protocol": protocol}).model_dump_json())

    model.encode = encode


if __name__ == "__main__":
    become(int(sys.argv.pop(1)))
    runpy.run_module("forebay_worker", run_name="__main__", alter_sys=True)
