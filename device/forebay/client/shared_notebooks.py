"""Notebooks that are shared within the tenant, to be read."""

from __future__ import annotations

from forebay.client.calls import Calls, segment
from forebay.client.models.pool import NewSharedNotebookRow, NotebookPageRow, SharedNotebookRow


class SharedNotebookCalls(Calls):
    """Calls to the pool."""

    def shared_notebooks(self, *, everybody: bool = False) -> list[SharedNotebookRow]:
        """Those that are shared, the newest first; ``everybody``: all of the tenant's, for its owners, or all there are, for operators."""
        return self._read(list[SharedNotebookRow], self._pool, "api/shared-notebooks", everybody=everybody)

    def share_page(self, name: str, page: str, *, days: int = 30) -> NewSharedNotebookRow:
        """Shares HTML under a name within the tenant; its ``key`` is told this once. ``forebay share`` makes the page of a notebook."""
        return self._change(
            NewSharedNotebookRow, self._pool, "POST", "api/shared-notebooks", {"name": name, "page": page, "days": days}
        )

    def shared_notebook(self, shared: int, *, key: str | None = None) -> SharedNotebookRow:
        """What a link opens; who shares it needs no key."""
        return self._read(SharedNotebookRow, self._pool, f"api/shared-notebooks/{segment(shared)}", key=key)

    def shared_page(self, shared: int, *, key: str | None = None) -> str:
        """Its HTML, which another user made: show it only where it can run nothing."""
        path = f"api/shared-notebooks/{segment(shared)}/page"
        return self._read(NotebookPageRow, self._pool, path, key=key).page

    def unshare(self, shared: int) -> None:
        """Takes it back: its link opens nothing more."""
        self._change(type(None), self._pool, "DELETE", f"api/shared-notebooks/{segment(shared)}", None)
