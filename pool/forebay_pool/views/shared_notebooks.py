"""Shared notebooks as rows of the HTTP interface."""

from __future__ import annotations

from typing_extensions import TypedDict

from forebay_pool.store.shared_notebooks import SharedNotebook


class SharedNotebookRow(TypedDict):
    id: int
    tenant: str
    user: str
    name: str
    shared_at_ns: int
    expires_at_ns: int


class NewSharedNotebookRow(SharedNotebookRow):
    """``key`` goes into the link; it is told this once."""

    key: str


class NotebookPageRow(TypedDict):
    """HTML that somebody else made: to be shown only where it can run nothing."""

    page: str


def shared_notebook_row(shared: SharedNotebook) -> SharedNotebookRow:
    return {
        "id": shared.id,
        "tenant": shared.tenant,
        "user": shared.user,
        "name": shared.name,
        "shared_at_ns": shared.made_ns,
        "expires_at_ns": shared.expires_ns,
    }
