"""What the pool knows: flavors, sessions, who waits, and the user's choice."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException
from typing import Any, Literal, NamedTuple

from forebay.client.calls import Calls, refusals, segment
from forebay.client.models.pool import Choice, FlavorRow, QueueRow, QuotaRow, ReceiptPage, SessionRow
from forebay.service import Service

SILENCE_SECONDS_MAX = 60.0
"""The pool says every 15 s that an event stream is still there."""


class PoolEvent(NamedTuple):
    """A row that changed: a ``session`` or a ``lease``, for operators also a ``device`` or a ``node``."""

    kind: str
    row: Mapping[str, Any]
    """The changed row as the pool has it now; at its end it holds ``removed: True``."""


class PoolCalls(Calls):
    """Calls to the pool."""

    def flavors(self) -> list[FlavorRow]:
        """All flavors: whether they can be had and why not, what they cost, and who waits for them."""
        return self._read(list[FlavorRow], self._pool, "api/flavors")

    def sessions(self) -> list[SessionRow]:
        """The user's sessions; an operator's token sees all."""
        return self._read(list[SessionRow], self._pool, "api/sessions")

    def end_session(self, session: str) -> None:
        """Ends a session; its tensors are lost."""
        self._change(type(None), self._pool, "DELETE", f"api/sessions/{segment(session)}", None)

    def queue(self) -> list[QueueRow]:
        """What of the user's waits for a lease, by position, and why; an operator's token sees all."""
        return self._read(list[QueueRow], self._pool, "api/queue")

    def receipts(self, month: str, *, after: str | None = None) -> ReceiptPage:
        """Signed receipts of the user's leases of a month that are over, of 500 at most behind the one ``after``, and of their prices."""
        return self._read(ReceiptPage, self._pool, "api/receipts", month=month, after=after)

    def chosen_flavor(self) -> str:
        """The name of the flavor that the user's new sessions begin with."""
        return self._read(Choice, self._pool, "api/choice").flavor

    def choose_flavor(self, flavor: str) -> str:
        """Has the user's new sessions begin with this flavor; returns its name."""
        return self._change(Choice, self._pool, "PUT", "api/choice", {"flavor": flavor}).flavor

    def quotas(self) -> list[QuotaRow]:
        """What the tenant and its members are held to, and have of it; for its owner and who pays for it."""
        return self._read(list[QuotaRow], self._pool, "api/quotas")

    def quota(self, tenant: str, user: str | None = None) -> QuotaRow:
        """What the tenant, or one of its members, is held to, whether anything is set or not."""
        return self._read(QuotaRow, self._pool, _quota_path(tenant, user))

    def set_quota(
        self,
        tenant: str,
        user: str,
        *,
        devices_milli: int | None = None,
        device_seconds: int | None = None,
        window_seconds: int | None = None,
        on_exhausted: Literal["wait", "revoke"] = "wait",
        priority_max: int | None = None,
        weight: int = 1,
        parked_bytes: int | None = None,
        on_parked_full: Literal["stay", "end"] = "stay",
        etag: str | None = None,
    ) -> QuotaRow:
        """Replaces what a member is held to; what is left out has no bound but the tenant's. For the tenant's owner.

        Raises Forbidden where an operator set it; with an ``etag`` only what has it is replaced, else raises PreconditionFailed.
        """
        body = {
            "devices_milli": devices_milli,
            "device_seconds": device_seconds,
            "window_seconds": window_seconds,
            "on_exhausted": on_exhausted,
            "priority_max": priority_max,
            "weight": weight,
            "parked_bytes": parked_bytes,
            "on_parked_full": on_parked_full,
        }
        return self._change(QuotaRow, self._pool, "PUT", _quota_path(tenant, user), body, etag)

    @contextmanager
    def events(self) -> Iterator[Iterator[PoolEvent]]:
        """What changes from the beginning of the ``with`` block on, as it does: ``with client.events() as events: for event in events: …``.

        The pool ends it for a reader that falls far behind; read all anew then.
        """
        with refusals():
            response = self._pool.stream("api/events", SILENCE_SECONDS_MAX)
        with response:
            yield _events(response, self._pool)


def _quota_path(tenant: str, user: str | None) -> str:
    return "/".join(["api/quotas", segment(tenant), *([] if user is None else [segment(user)])])


def _events(lines: Iterable[bytes], pool: Service) -> Iterator[PoolEvent]:
    kind = ""
    try:
        for line in lines:
            name, _, text = line.decode().strip().partition(": ")
            if name == "event":
                kind = text
            elif name == "data":
                yield PoolEvent(kind, json.loads(text))
    except (OSError, HTTPException) as error:
        raise pool.unreachable(error) from None
