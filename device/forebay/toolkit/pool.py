"""The pool that a subcommand talks to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from forebay.errors import NotConfigured, PoolUnreachable
from forebay.service import LOCAL, URL_VARIABLE, Service, check_url, configured, service_at

NO_SERVICE = (
    f"No service is configured: set {URL_VARIABLE} to your pool's address, or try a program on this machine with `forebay run script.py`."
)


def remote(what: str) -> Service:
    """The configured pool. Raises NotConfigured without one, and with `local`, where every process has a pool of its own."""
    url = configured()
    if url is None:
        raise NotConfigured(NO_SERVICE)
    if url == LOCAL:
        raise NotConfigured(f"With {URL_VARIABLE}={LOCAL} every process has a pool of its own while it runs, so there is nothing {what}.")
    return service_at(url)


@contextlib.contextmanager
def any_pool() -> Iterator[Service]:
    """The configured pool; with `local`, an embedded one until the end of the context."""
    url = configured()
    if url is None:
        raise NotConfigured(NO_SERVICE)
    check_url(url)
    if url != LOCAL:
        yield service_at(url)
        return
    from forebay.embedded import EmbeddedPool

    pool = EmbeddedPool()
    try:
        yield pool.service
    finally:
        pool.stop()


def rows(service: Service, path: str) -> list[dict[str, Any]]:
    """The rows that the pool answers. Raises PoolUnreachable if it answers anything else."""
    answer = service.get(path)
    if not isinstance(answer, list) or not all(isinstance(row, dict) for row in answer):
        raise PoolUnreachable(f"What answers at {service.url} is not a Forebay pool; check {URL_VARIABLE}.")
    return answer


def chosen_flavor(service: Service) -> str | None:
    """The user's last choice, if there is one."""
    answer = service.get("api/choice")
    return answer.get("flavor") if isinstance(answer, dict) else None
