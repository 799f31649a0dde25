"""Whether leases may open at all."""

from __future__ import annotations

from forebay_pool.model.types import Session


class Admission:
    """What keeps the whole pool from opening leases."""

    __slots__ = ("accepting", "awaited", "awaited_until_ns", "stopping")

    def __init__(self) -> None:
        self.accepting = True
        """Whether the database takes what is written: nothing new may be owed while it does not."""
        self.stopping = False
        """Whether the pool shuts down; once it does, it never opens a lease again."""
        self.awaited: dict[str, Session] = {}
        """Sessions that waited when the pool before this one stopped, and have not asked again: no lease opens before they have, or before
        ``awaited_until_ns``."""
        self.awaited_until_ns = 0

    @property
    def opens_leases(self) -> bool:
        """Whether leases may open now, for those who ask already."""
        return self.accepting and not self.awaited
