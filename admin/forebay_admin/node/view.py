"""The pool's view of a node: whether it is on the device map, and how it is drained. Needs an operator's token."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from forebay.errors import PoolRefused, PoolUnreachable
from forebay.service import TOKEN_VARIABLE, Service, service_at
from forebay.toolkit import pool

from forebay_admin.actions import part
from forebay_admin.node.invitation import Invitation, NodeError

Row = Mapping[str, Any]
TRUST_VARIABLE = "SSL_CERT_FILE"
LOOK_SECONDS = 0.5
TELL_SECONDS = 5.0
"""How often a wait says what it waits for, if nothing changes."""
PASSING = (502, 503, 504)
NO_TOKEN = f"Set {TOKEN_VARIABLE} to an operator's token"


class View:
    """``service`` is None without a token."""

    def __init__(self, invitation: Invitation, trust: Path) -> None:
        self.name = invitation.name
        if invitation.web_authority:
            os.environ.setdefault(TRUST_VARIABLE, str(trust))
        self._service = service_at(invitation.pool) if os.environ.get(TOKEN_VARIABLE) else None

    @property
    def is_told(self) -> bool:
        """Whether there is a token."""
        return self._service is not None

    def row(self) -> Row | None:
        """The node's on the device map, if it is there."""
        return next((row for row in pool.rows(self._asked(), "api/nodes") if row["node"] == self.name), None)

    def drain(self, drain: bool, grace_seconds: float | None = None) -> None:
        """Lets the pool lend nothing new there, or lend again."""
        body = {"drain": drain, "grace_seconds": grace_seconds}
        service = self._asked()
        pool.row(service, service.put(f"api/nodes/{part(self.name)}", body), "node")

    def _asked(self) -> Service:
        if self._service is None:
            raise NodeError(f"{NO_TOKEN}: the pool tells and drains nodes for operators alone.")
        return self._service

    def wait(self, until: Callable[[Row | None], bool], seconds_max: float) -> bool:
        """Says how the node stands whenever that changes, until it stands so; whether it came to that in time. A pool that does not answer
        for a while is asked again."""
        began, told, said = time.monotonic(), 0.0, ""
        while True:
            try:
                row = self.row()
                if until(row):
                    return True
                sentence = standing(row)
            except PoolUnreachable:
                sentence = "the pool does not answer"
            except PoolRefused as refused:  # or a proxy before it, while it starts
                if refused.status not in PASSING:
                    raise
                sentence = f"the pool does not answer (HTTP {refused.status})"
            now = time.monotonic()
            if sentence != said or now - told > TELL_SECONDS:
                sys.stdout.write(f"{now - began:4.0f} s: {sentence}\n")
                sys.stdout.flush()
                told, said = now, sentence
            if now - began > seconds_max:
                return False
            time.sleep(LOOK_SECONDS)


def standing(row: Row | None) -> str:
    """How a node stands, for people."""
    if row is None:
        return "the pool does not know this node yet"
    counts = f"{row['devices']} devices, {row['leases']} leases, {row['residents']} resident and {row['parked']} parked sessions"
    return f"{row['state']}, {counts}" + (f" ({row['moving']} on its way to another host)" if row["moving"] else "")
