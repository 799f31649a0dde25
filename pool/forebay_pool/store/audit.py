"""Who changed what: what operators do is written down in the transaction of the change itself."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from forebay_service.audit import SUBJECT_CHARACTERS_MAX
from sqlalchemy import Connection, insert

from forebay_pool.store.tables import AUDIT


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """What somebody does. ``before`` is None where there was nothing, ``after`` what there is then, or what was asked for."""

    who: str
    action: str
    """A kind of thing and a verb, such as ``device.set``."""
    subject: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any]
    at_unix_ns: int = field(default_factory=time.time_ns)


def append(connection: Connection, deed: AuditEntry) -> None:
    """Writes the deed down."""
    row = {
        "at_unix_ns": deed.at_unix_ns,
        "who": deed.who,
        "action": deed.action,
        "subject": deed.subject[:SUBJECT_CHARACTERS_MAX],
        "before": None if deed.before is None else json.dumps(deed.before),
        "after": json.dumps(deed.after),
    }
    connection.execute(insert(AUDIT).values(row))
