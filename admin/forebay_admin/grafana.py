"""``forebay admin grafana push``: puts dashboards into Grafana over its HTTP API, with Grafana's usual client for Python.

The client is an extra that nobody else needs, and is imported when it is used. A dashboard that somebody changed in Grafana since it was
pushed last is not overwritten unless one says so: each version that is pushed bears MESSAGE, so any other was made by somebody.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from forebay.errors import ForebayError, NotConfigured

from forebay_admin.actions import Parsers, action, cells, show, things

URL_VARIABLE = "FOREBAY_GRAFANA_URL"
TOKEN_VARIABLE = "FOREBAY_GRAFANA_TOKEN"  # noqa: S105 the variable's name, not a token
MESSAGE = "pushed by forebay admin grafana push"
SECONDS_MAX = 10.0
FILE_BYTES_MAX = 2**20
MADE_BY_GRAFANA = ("id", "version")
"""What differs between a file and the same dashboard in Grafana."""
HEADERS = ["Dashboard", "Title", "Folder", "Version", "Done"]
LACKING = (
    "Grafana's client is not installed ({}): pip install 'forebay-admin[grafana]', better into a folder of its own, "
    "since it brings another urllib3: pip install --target DIR grafana-client, and PYTHONPATH=DIR."
)

Board = Mapping[str, Any]
"""A dashboard's JSON model; has a ``uid`` and a ``title``."""
Done = Literal["created", "updated", "unchanged"]


class GrafanaError(ForebayError):
    """Grafana cannot be reached, or will not do it."""


@dataclass(frozen=True)
class Known:
    """How a dashboard stands in Grafana. ``ours``: nobody changed it there since it was pushed."""

    board: Board
    version: int
    folder_uid: str
    ours: bool


@dataclass(frozen=True)
class Pushed:
    """What became of a dashboard."""

    uid: str
    title: str
    folder_uid: str
    version: int
    done: Done


def add_to(parsers: Parsers) -> None:
    """Adds the actions."""
    actions = things(parsers, "grafana", "dashboards in Grafana")
    push = action(actions, "push", perform_push, "put dashboards into Grafana")
    push.add_argument("files", metavar="FOLDER", type=Path, help="of the dashboards' JSON files")
    push.add_argument("--url", help=f"Grafana's address (default: {URL_VARIABLE}); its token is taken from {TOKEN_VARIABLE}")
    push.add_argument("--into", metavar="TITLE", default="Forebay", help="Grafana's folder, made if it is not there (default: Forebay)")
    push.add_argument("--overwrite", action="store_true", help="also those that somebody changed in Grafana")


def perform_push(arguments: argparse.Namespace) -> int:
    boards = read_boards(arguments.files)
    url, token = arguments.url or os.environ.get(URL_VARIABLE), os.environ.get(TOKEN_VARIABLE)
    if not url or not token:
        raise NotConfigured(f"Set {URL_VARIABLE} to Grafana's address, and {TOKEN_VARIABLE} to the token of a service account there.")
    with _connected(url, token) as grafana:
        done = push_boards(grafana, boards, arguments.into, arguments.overwrite)
    rows = [[one.uid, one.title, one.folder_uid, one.version, one.done] for one in done]
    return show(arguments, [vars(one) for one in done], lambda: cells(HEADERS, rows, "No dashboard."))


def read_boards(folder: Path) -> list[Board]:
    """The dashboards of a folder, by their uid. Raises GrafanaError."""
    boards: dict[str, Board] = {}
    for file in sorted(folder.glob("*.json")):
        board = _board_of(file)
        if board["uid"] in boards:
            raise GrafanaError(f"{file}: another file of {folder} has the uid {board['uid']} too.")
        boards[board["uid"]] = board
    if not boards:
        raise GrafanaError(f"There is no dashboard in {folder}: name a folder of JSON files, such as deploy/grafana/dashboards/operators.")
    return list(boards.values())


def _board_of(file: Path) -> Board:
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            raise GrafanaError(f"{file} is longer than {FILE_BYTES_MAX} bytes: that is no dashboard.")
        board = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise GrafanaError(f"{file} cannot be read as JSON: {error}") from None
    if not isinstance(board, dict) or not all(isinstance(board.get(name), str) and board[name] for name in ("uid", "title")):
        raise GrafanaError(f"{file} is no dashboard: it has no uid or no title.")
    return board


def push_boards(grafana: Any, boards: Sequence[Board], folder_title: str, overwrite: bool) -> list[Pushed]:
    """Writes those that differ, once it is sure that none of them was changed by somebody. Raises GrafanaError."""
    folder_uid = re.sub(r"[^a-z0-9]+", "-", folder_title.lower()).strip("-")
    if not folder_uid:
        raise GrafanaError(f"{folder_title!r} cannot be a folder's title: it needs a letter or a digit.")
    known = {board["uid"]: _look(grafana, board["uid"]) for board in boards}
    touched = [uid for uid, found in known.items() if found is not None and not found.ours]
    if touched and not overwrite:
        raise GrafanaError(
            f"Nothing was pushed: somebody changed {', '.join(touched)} in Grafana. Save a copy there of what is to be kept, "
            "then push with --overwrite."
        )
    if _asked(grafana.folder.get_folder, folder_uid) is None:
        grafana.folder.create_folder(folder_title, uid=folder_uid)
    return [_write(grafana, board, known[board["uid"]], folder_uid, overwrite) for board in boards]


def _look(grafana: Any, uid: str) -> Known | None:
    answer = _asked(grafana.dashboard.get_dashboard, uid)
    if answer is None:
        return None
    versions = grafana.dashboard_versions.get_dashboard_versions_by_uid(uid, limit=1)
    listed = versions["versions"] if isinstance(versions, dict) else versions  # Grafana 11 and before answer with the list itself
    ours = bool(listed) and listed[0].get("message") == MESSAGE
    return Known(answer["dashboard"], int(answer["dashboard"]["version"]), answer["meta"].get("folderUid", ""), ours)


def _asked(call: Any, uid: str) -> Any:
    """The answer; None where there is no such thing."""
    from grafana_client.client import GrafanaClientError

    try:
        answer = call(uid)
    except GrafanaClientError as error:
        if error.status_code == 404:
            return None
        raise
    if not isinstance(answer, dict):
        raise GrafanaError("What answers there is not Grafana's API; check the address.")
    return answer


def _write(grafana: Any, board: Board, known: Known | None, folder_uid: str, overwrite: bool) -> Pushed:
    uid, title = board["uid"], board["title"]
    if known is not None and known.folder_uid == folder_uid and _content(known.board) == _content(board):
        return Pushed(uid, title, folder_uid, known.version, "unchanged")
    model = {**_content(board), "id": None, "version": 0 if known is None else known.version}
    body = {"dashboard": model, "folderUid": folder_uid, "message": MESSAGE, "overwrite": overwrite}
    answer = grafana.dashboard.update_dashboard(body)
    return Pushed(uid, title, folder_uid, int(answer["version"]), "created" if known is None else "updated")


def _content(board: Board) -> dict[str, Any]:
    return {name: value for name, value in board.items() if name not in MADE_BY_GRAFANA}


@contextmanager
def _connected(url: str, token: str) -> Iterator[Any]:
    """Grafana's client; what it raises is told in a sentence. Raises GrafanaError, NotConfigured."""
    if not re.match(r"https?://[^/\s]", url):
        raise NotConfigured(f"{url!r} is no address of Grafana: write http(s)://host:port/prefix.")
    try:
        from grafana_client import GrafanaApi
        from grafana_client.client import GrafanaClientError, GrafanaException
        from niquests.exceptions import RequestException
    except ImportError as error:
        raise GrafanaError(LACKING.format(error)) from None
    try:
        yield GrafanaApi.from_url(url.rstrip("/") + "/", credential=token, timeout=SECONDS_MAX)
    except GrafanaClientError as error:
        raise GrafanaError(f"{_reason(error.status_code, url)} It says: {_said(error.response)}") from None
    except GrafanaException as error:
        raise GrafanaError(f"Grafana at {url} fails: {error.message}") from None
    except RequestException as error:
        raise GrafanaError(f"Grafana cannot be reached at {url}: {error}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise GrafanaError(f"What answers at {url} is not Grafana's API ({error!r}); check the address.") from None


def _reason(status: int, url: str) -> str:
    match status:
        case 401:
            return f"Grafana at {url} does not know the token: make one for a service account, and set {TOKEN_VARIABLE}."
        case 403:
            return f"The token may not do this at {url}: its service account needs the role Editor."
        case 412:
            return "Somebody saved the dashboard at this moment: look, and push again."
        case _:
            return f"Grafana at {url} refuses it ({status})."


def _said(response: object) -> str:
    message = response.get("message", response) if isinstance(response, dict) else response
    return str(message)[:500]
