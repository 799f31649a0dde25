"""Server-sent events, read and written (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

from __future__ import annotations

from dataclasses import dataclass

BUFFER_BYTES_MAX = 1024 * 1024
"""A longer unfinished event is not one of ours."""


class EventTooLong(ValueError):
    """An event did not end within BUFFER_BYTES_MAX."""


@dataclass(frozen=True)
class ServerEvent:
    """One event: its name and its data."""

    name: str
    data: str


class EventParser:
    """Turns the chunks of a stream into events; a comment (a sign of life) yields none."""

    def __init__(self) -> None:
        self._rest = b""
        self._name = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """The events that ``chunk`` completes. Raises EventTooLong."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) + sum(map(len, self._data)) > BUFFER_BYTES_MAX:
            raise EventTooLong(f"an event is longer than {BUFFER_BYTES_MAX} bytes")
        found = (self._line(line.removesuffix(b"\r").decode("utf-8", "replace")) for line in lines)
        return [event for event in found if event is not None]

    def _line(self, line: str) -> ServerEvent | None:
        if not line:
            return self._dispatch()
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            self._name = value
        elif field == "data":
            self._data.append(value)
        return None

    def _dispatch(self) -> ServerEvent | None:
        event = ServerEvent(self._name or "message", "\n".join(self._data)) if self._data else None
        self._name, self._data = "", []
        return event


def encode(name: str, data: str) -> bytes:
    """One event as bytes; ``data`` has no line breaks."""
    return f"event: {name}\ndata: {data}\n\n".encode()


SIGN_OF_LIFE = b": alive\n\n"
