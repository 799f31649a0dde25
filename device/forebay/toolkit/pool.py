"""The pool that a subcommand talks to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from forebay import monitors
from forebay.service import LOCAL, URL_VARIABLE, Service, configured, service_at
from forebay.service.embedded import EmbeddedPool

NO_SERVICE = (
    f"No service is configured: sign in with `forebay login`, set {URL_VARIABLE} to your pool's address, or try a program on this machine"
    " with `forebay run script.py`."
)


def remote() -> Service | None:
    """The configured pool; None without one and with `local`, where every program starts a pool of its own."""
    url = configured()
    if url is None or url == LOCAL:
        return None
    return service_at(url)


@contextlib.contextmanager
def remote_or_own() -> Iterator[Service]:
    """The configured pool, else what `forebay run` would start on this machine, until the end of the context."""
    service = remote()
    if service is not None:
        yield service
        return
    pool = EmbeddedPool(monitors.withhold)
    try:
        yield pool.service
    finally:
        pool.stop()


def rows(service: Service, path: str) -> list[dict[str, Any]]:
    """The rows that the pool answers. Raises PoolUnreachable if it answers anything else."""
    answer = service.get(path)
    if not isinstance(answer, list) or not all(isinstance(row, dict) for row in answer):
        raise service.no_service()
    return answer


def row(service: Service, answer: Any, key: str) -> dict[str, Any]:
    """The answer to a change: a row with ``key``. Raises PoolUnreachable if it is anything else, so that nothing is said to be done."""
    if not isinstance(answer, dict) or key not in answer:
        raise service.no_service()
    return answer


def chosen_flavor(service: Service) -> str | None:
    """The user's last choice, if there is one."""
    answer = service.get("api/choice")
    return answer.get("flavor") if isinstance(answer, dict) else None
