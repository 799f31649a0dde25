"""``forebay/mcp`` of a notebook's server at the hub: agents elsewhere reach the user's kernels by the hub's address, by tokens of theirs.

An extension of Jupyter Server. What the hub's own pages may do here the token may not: it is looked at here alone.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Mapping
from http import HTTPStatus
from typing import Any

from jupyter_server.auth.decorator import allow_unauthenticated
from jupyter_server.utils import url_path_join
from tornado.iostream import IOStream, StreamClosedError
from tornado.web import RequestHandler

from forebay.errors import ForebayError
from forebay.toolkit.agents.hub_users import HubUsers
from forebay.toolkit.agents.token_servers import TokenServers

PATH = "forebay/mcp"
API_VARIABLE, USER_VARIABLE = "JUPYTERHUB_API_URL", "JUPYTERHUB_USER"
PASSED_ON = ("Accept", "Content-Type", "Last-Event-ID", "Mcp-Method", "Mcp-Name", "Mcp-Protocol-Version", "Mcp-Session-Id")
PIECE_BYTES = 65_536
CONNECT_SECONDS_MAX = 10.0


class AgentsHandler(RequestHandler):
    """Passes a request on to the server of its token, and what that answers back, as it comes."""

    SUPPORTED_METHODS = ("GET", "POST", "DELETE")

    def initialize(self, owner: str, users: HubUsers, servers: TokenServers) -> None:
        self._owner, self._users, self._servers = owner, users, servers

    def check_xsrf_cookie(self) -> None:
        """No cookie says anything here."""

    @allow_unauthenticated
    async def get(self) -> None:
        await self._pass_on()

    @allow_unauthenticated
    async def post(self) -> None:
        await self._pass_on()

    @allow_unauthenticated
    async def delete(self) -> None:
        await self._pass_on()

    async def _pass_on(self) -> None:
        shown = self.request.headers.get_list("Authorization")
        kind, _, token = (shown[0] if len(shown) == 1 else "").partition(" ")
        try:
            name = await self._users.name_of(token.strip()) if kind.lower() in ("bearer", "token") and token.strip() else None
            if name is None:
                await self._servers.forget(token.strip())
                return self._refuse(HTTPStatus.UNAUTHORIZED, "unauthorized", "Show a token of yours: Authorization: Bearer TOKEN.")
            if name != self._owner:
                return self._refuse(HTTPStatus.FORBIDDEN, "forbidden", f"This is the server of {self._owner}.")
            await self._servers.use(token.strip(), lambda port: self._tunnel(port, token.strip()))
        except ForebayError as error:
            self._refuse(HTTPStatus.FORBIDDEN, "refused", str(error))

    def _refuse(self, status: HTTPStatus, code: str, message: str) -> None:
        self.set_status(status)
        if status == HTTPStatus.UNAUTHORIZED:
            self.set_header("WWW-Authenticate", "Bearer")
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps({"error": {"code": code, "message": message}}))

    async def _tunnel(self, port: int, token: str) -> None:
        try:
            reader, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), CONNECT_SECONDS_MAX)
        except (OSError, TimeoutError):
            raise ForebayError("The server of this token has just ended; ask again.") from None
        client = self.detach()
        try:
            writer.write(self._head(token) + self.request.body)
            await _until_one_ends(_copied(reader, client), _closed(client))
        finally:
            writer.close()
            client.close()

    def _head(self, token: str) -> bytes:
        """Of the request, whose answer ends with its connection."""
        passed = {name: self.request.headers[name] for name in PASSED_ON if name in self.request.headers}
        own = {"Host": "localhost", "Connection": "close", "Content-Length": str(len(self.request.body))}
        headers = {**passed, **own, "Authorization": f"Bearer {token}"}
        lines = [f"{self.request.method} /mcp HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def _copied(reader: asyncio.StreamReader, client: IOStream) -> None:
    """Until the answer ends, or the client is gone."""
    try:
        while piece := await reader.read(PIECE_BYTES):
            await client.write(piece)
    except (StreamClosedError, ConnectionError):
        pass


async def _closed(client: IOStream) -> None:
    """Returns when the client is gone: it says nothing more before it has its answer."""
    try:
        while True:
            await client.read_bytes(PIECE_BYTES, partial=True)
    except StreamClosedError:
        pass


async def _until_one_ends(*works: Awaitable[None]) -> None:
    tasks = [asyncio.ensure_future(work) for work in works]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def routes(base_url: str, environment: Mapping[str, str]) -> list[tuple[str, type[AgentsHandler], dict[str, Any]]]:
    """None where the server is not the hub's."""
    if not environment.get(API_VARIABLE) or not environment.get(USER_VARIABLE):
        return []
    owner, users = environment[USER_VARIABLE], HubUsers(environment[API_VARIABLE])
    return [(url_path_join(base_url, PATH), AgentsHandler, {"owner": owner, "users": users, "servers": TokenServers(environment)})]


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": __name__}]


def _load_jupyter_server_extension(server: Any) -> None:
    if found := routes(server.web_app.settings["base_url"], os.environ):
        server.web_app.add_handlers(".*$", found)
