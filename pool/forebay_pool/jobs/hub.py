"""What is asked of JupyterHub: to start a job's server as its user, whether it is there, and to stop it; it is told who is active.

https://jupyterhub.readthedocs.io/en/stable/reference/rest-api.html
"""

from __future__ import annotations

import json
import logging
from typing import Any, Protocol
from urllib.parse import quote

from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest, HTTPResponse

from forebay_pool.errors import HubRefused, HubUnavailable, one_line

CONNECT_SECONDS = 5.0
REQUEST_SECONDS = 30.0
"""A start is answered once the server answers, or after JupyterHub's ``slow_spawn_timeout``, ten seconds."""
FOR_GOOD = (403, 404)
"""The user is gone, or may have no server: another try would not help."""
BUSY = (429, 502, 503, 504)
"""It was not tried. Whatever else is answered, the server is there or not, as :meth:`Servers.is_there` says."""

log = logging.getLogger(__name__)


class Servers(Protocol):
    """JupyterHub, as far as jobs need it. Every method raises HubUnavailable."""

    async def start(self, user: str, name: str) -> None:
        """Has a server started, unless it is there already. Raises HubRefused where that is for good."""

    async def is_there(self, user: str, name: str) -> bool:
        """Whether the server runs, or is about to start or to stop."""

    async def remove(self, user: str, name: str) -> bool:
        """Has the server stopped; whether it is gone."""

    async def tell_active(self, user: str, when: str) -> None:
        """The user's notebook server was in use then (ISO 8601). Raises HubRefused where there is none."""


class HubServers:
    """:class:`Servers` over HTTP."""

    def __init__(self, api_url: str, token: str) -> None:
        self._url = api_url.rstrip("/")
        self._token = token

    async def start(self, user: str, name: str) -> None:
        response = await self._ask("POST", user, name, b"{}")
        if response.code in FOR_GOOD:
            raise HubRefused(_sentence(response))
        if response.code in BUSY:
            raise HubUnavailable(f"JupyterHub answered {response.code} when asked for {name} of {user}: {_sentence(response)}")
        if response.code not in (201, 202):
            fields = {"action": "job_not_started", "server": name, "user": user, "status": response.code}
            log.warning("JupyterHub could not start %s of %s: %s", name, user, _sentence(response), extra=fields)

    async def is_there(self, user: str, name: str) -> bool:
        response = await self._ask("GET", user, name)
        if response.code == 404:
            return False
        model = self._read(response, name)
        return bool(model.get("ready") or model.get("pending"))

    async def remove(self, user: str, name: str) -> bool:
        response = await self._ask("DELETE", user, name, b'{"remove": true}')
        if response.code not in (202, 204, 404):
            raise HubUnavailable(f"JupyterHub answered {response.code} when asked to stop {name} of {user}: {_sentence(response)}")
        return response.code != 202

    async def tell_active(self, user: str, when: str) -> None:
        body = json.dumps({"servers": {"": {"last_activity": when}}}).encode()
        response = await self._call("POST", f"users/{quote(user, safe='')}/activity", body)
        if response.code in (400, 403, 404):
            raise HubRefused(_sentence(response))
        if response.code != 200:
            raise HubUnavailable(f"JupyterHub answered {response.code} when told that {user} is active: {_sentence(response)}")

    def _read(self, response: HTTPResponse, name: str) -> dict[str, Any]:
        try:
            if response.code == 200:
                model: dict[str, Any] = json.loads(response.body)
                return model
        except ValueError:
            pass
        raise HubUnavailable(f"JupyterHub answered {response.code} when asked about {name}: {_sentence(response)}")

    async def _ask(self, method: str, user: str, name: str, body: bytes | None = None) -> HTTPResponse:
        """What JupyterHub answers. That it knows nobody, or nothing, counts only where it still knows the pool itself: a hub whose
        database does not answer says the same."""
        response = await self._call(method, f"users/{quote(user, safe='')}/servers/{quote(name, safe='')}", body)
        if response.code in FOR_GOOD and (await self._call("GET", "user")).code != 200:
            raise HubUnavailable(f"JupyterHub answered {response.code} when asked about {name}, and does not know the pool's own token")
        return response

    async def _call(self, method: str, path: str, body: bytes | None = None) -> HTTPResponse:
        url = f"{self._url}/{path}"
        headers = {"Authorization": f"token {self._token}", "Content-Type": "application/json"}
        bounds: dict[str, Any] = {"connect_timeout": CONNECT_SECONDS, "request_timeout": REQUEST_SECONDS}
        request = HTTPRequest(url, method, headers, body, allow_nonstandard_methods=True, **bounds)
        try:
            return await AsyncHTTPClient().fetch(request, raise_error=False)
        except (HTTPClientError, OSError) as error:
            raise HubUnavailable(f"JupyterHub cannot be asked: {one_line(error)}") from None


def _sentence(response: HTTPResponse) -> str:
    """What JupyterHub says of a refusal."""
    try:
        return one_line(json.loads(response.body or b"")["message"])[:500]
    except (ValueError, KeyError, TypeError):
        return response.reason or "nothing more"
