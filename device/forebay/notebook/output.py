"""Output of cells, published from any thread: the kernel's own publisher knows the cell of the main thread alone."""

from __future__ import annotations

import contextlib
import logging
import sys
import uuid
from collections.abc import Mapping
from typing import Any

Header = Mapping[str, Any]
"""Of the request to execute a cell: what its output belongs to."""

NOWHERE: Header = {}

log = logging.getLogger(__name__)


class Output:
    """What an IPython shell shows. Without a kernel (in a terminal) displays are printed, and cannot be changed later."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._kernel = getattr(shell, "kernel", None)

    @property
    def updates(self) -> bool:
        """Whether a display can be changed later."""
        return self._kernel is not None

    def header(self) -> Header:
        """Of the cell that runs now; to be called in its thread."""
        return dict(getattr(self._shell.display_pub, "parent_header", None) or NOWHERE)

    def show(self, data: Mapping[str, str], header: Header) -> str:
        """A new display below the cell of ``header``; its id."""
        name = uuid.uuid4().hex
        if self._kernel is None:
            self._shell.display_pub.publish(dict(data))
        else:
            self._publish("display_data", data, header, name)
        return name

    def change(self, name: str, data: Mapping[str, str], header: Header) -> None:
        """Other data in the place of a display's."""
        if self._kernel is not None:
            self._publish("update_display_data", data, header, name)

    def send(self, kind: str, content: Mapping[str, Any], topic: bytes, header: Header = NOWHERE) -> None:
        """Any message to the front ends. Does nothing where the kernel is on its way out."""
        kernel = self._kernel
        if kernel is None or kernel.session is None or sys.is_finalizing():
            return
        try:
            kernel.session.send(kernel.iopub_socket, kind, dict(content), parent=dict(header), ident=topic)
        except Exception as error:  # of whichever library closed its socket first
            log.info("a message was not sent: %s", error, extra={"action": "send", "kind": kind})

    def _publish(self, kind: str, data: Mapping[str, str], header: Header, name: str) -> None:
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        self.send(kind, {"data": dict(data), "metadata": {}, "transient": {"display_id": name}}, b"display_data", header)
