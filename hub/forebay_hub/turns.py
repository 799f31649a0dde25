"""The pace of JupyterHub's API and pages: a user, or an address of which nobody is known yet, has turns as at the other services.

JupyterHub makes its server of Tornado's class by name and has no setting for it, so that name means another class here: the front of
:mod:`forebay_service.peers.front`. Who asks is learnt when a request is logged, once JupyterHub knows whose token or cookie it was.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import tornado.httpserver
from forebay_service.peers.front import FrontServer, Start, learn
from forebay_service.people.names import TENANT_GROUP
from jupyterhub.log import log_request
from jupyterhub.user import User
from tornado.httputil import RequestStartLine

SHARE = 0.75
"""Of the hub's time that requests of users may take."""
STATIC_SECONDS = 0.001
READ_SECONDS = 0.004
WRITE_SECONDS = 0.02
"""What requests take of the hub's time, about: a file, a look into the database, and a token, a server or a sign-in."""
READS = ("GET", "HEAD", "OPTIONS")


def limit_rate(c: Any) -> None:
    """Has everybody take turns at JupyterHub. Services of the installation are not slowed down."""
    server = partial(FrontServer, share=SHARE, trusts=lambda token: token in _service_tokens(c), cost=cost)
    tornado.httpserver.HTTPServer = server  # type: ignore[misc, assignment] # JupyterHub alone is in this process
    c.JupyterHub.tornado_settings = {"log_function": log_and_learn}


def cost(start_line: Start) -> float:
    """By the first line of a request."""
    if not isinstance(start_line, RequestStartLine) or start_line.method not in READS:
        return WRITE_SECONDS
    return STATIC_SECONDS if "/static/" in start_line.path.partition("?")[0] else READ_SECONDS


def log_and_learn(handler: Any) -> None:
    """As JupyterHub logs; called at the end of each request."""
    who = getattr(handler, "_jupyterhub_user", None)
    if isinstance(who, User):
        groups = [group.name for group in who.groups]
        tenant = next((name.removeprefix(TENANT_GROUP) for name in groups if name.startswith(TENANT_GROUP)), None)
        learn(handler.request, handler.settings, tenant, who.name)
    elif who is not None:
        learn(handler.request, handler.settings, None, who.name, is_service=True)
    log_request(handler)


def _service_tokens(c: Any) -> set[str]:
    return {service["api_token"] for service in c.JupyterHub.services if service.get("api_token")}
