"""Where one is told of own cells and jobs, in which language, and telling of a cell."""

from __future__ import annotations

from typing import Literal

from forebay.client.calls import Calls, segment
from forebay.client.models.billing import NoticeChannelRow, Noticed, PreferencesRow, Removed


class NoticeCalls(Calls):
    """Calls to billing about notices, of the token's own user."""

    def notice_channels(self) -> list[NoticeChannelRow]:
        """Where notices go, and why the latest did not arrive."""
        return self._read(list[NoticeChannelRow], self._books, "api/notices/channels")

    def add_notice_channel(self, kind: Literal["email", "webhook", "slack"], target: str) -> NoticeChannelRow:
        """Has notices sent somewhere. An e-mail address gets a code to confirm it by; a webhook's ``secret`` is told here alone."""
        return self._change(NoticeChannelRow, self._books, "POST", "api/notices/channels", {"kind": kind, "target": target})

    def confirm_notice_channel(self, channel: int, code: str) -> NoticeChannelRow:
        """Confirms an address by the code that was mailed there."""
        return self._change(NoticeChannelRow, self._books, "POST", f"api/notices/channels/{segment(channel)}", {"code": code})

    def remove_notice_channel(self, channel: int) -> None:
        """Removes a channel, and gives up what waits."""
        self._change(Removed, self._books, "DELETE", f"api/notices/channels/{segment(channel)}", None)

    def notice_preferences(self) -> PreferencesRow:
        """In which language one is told, and of which own jobs."""
        return self._read(PreferencesRow, self._books, "api/notices/preferences")

    def prefer_notices(
        self, *, language: str | None = None, jobs: Literal["none", "failures", "all"] | None = None
    ) -> PreferencesRow:
        """Chooses one or both; what is not named stays."""
        return self._change(PreferencesRow, self._books, "PATCH", "api/notices/preferences", {"language": language, "jobs": jobs})

    def notify(
        self,
        kind: Literal["ended", "failed", "waits", "budget"],
        notebook: str,
        seconds: float,
        *,
        cell: int | None = None,
        first_line: str | None = None,
        why: str | None = None,
    ) -> int:
        """Has the confirmed channels told of a cell; returns how many. At most 60 in an hour."""
        told = {"kind": kind, "notebook": notebook, "seconds": seconds, "cell": cell, "first_line": first_line, "why": why}
        return self._change(Noticed, self._books, "POST", "api/notices", told).channels
