"""Stands for Grafana: keeps folders, dashboards and their versions, and answers as its HTTP API is documented to.

Only the real client talks to it.

https://grafana.com/docs/grafana/latest/developers/http_api/ (dashboard, dashboard_versions, folder)
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

EDITOR, VIEWER = "glsa_editor", "glsa_viewer"
Answer = tuple[int, Any]


@dataclass
class Kept:
    """A dashboard."""

    model: dict[str, Any]
    folder_uid: str
    versions: list[dict[str, Any]]
    provisioned: bool = False

    @property
    def version(self) -> int:
        return int(self.model["version"])


@dataclass
class Grafana:
    """What the server holds, and what it was asked. ``before_save`` runs once, when a dashboard is about to be saved."""

    lists_versions: bool = False
    """As Grafana 11 and before: the list itself, not an object with it."""
    folders: dict[str, dict[str, Any]] = field(default_factory=dict)
    dashboards: dict[str, Kept] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    before_save: Callable[[], None] | None = None
    failing: Answer | None = None
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/grafana"

    @contextmanager
    def serving(self) -> Iterator[Grafana]:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, answer = owner.answer(self.command, self.path, self.headers.get("Authorization", ""), body)
                is_page = isinstance(answer, str)
                data = answer.encode() if is_page else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/html" if is_page else "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_DELETE = _answer

            def log_message(self, *arguments: Any) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        self.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    def answer(self, method: str, target: str, authorization: str, body: bytes) -> Answer:
        path = target.partition("?")[0]
        self.asked.append((method, path))
        if self.failing is not None:
            return self.failing
        if authorization not in (f"Bearer {EDITOR}", f"Bearer {VIEWER}"):
            return 401, {"message": "Invalid API key", "messageId": "api-key.invalid", "statusCode": 401, "traceID": ""}
        if not path.startswith("/grafana/api/"):
            return 404, {"message": "Not found"}
        parts = path.removeprefix("/grafana/api/").split("/")
        if method == "POST" and authorization == f"Bearer {VIEWER}":
            needed = "folders:create" if parts == ["folders"] else "dashboards:create"
            return 403, {
                "accessErrorId": "ACE0000000001",
                "message": f"You'll need additional permissions to perform this action. Permissions needed: {needed}",
                "title": "Access denied",
            }
        match method, parts:
            case "GET", ["folders", uid]:
                known = self.folders.get(uid)
                return (404, {"message": "folder not found", "status": "not-found"}) if known is None else (200, known)
            case "POST", ["folders"]:
                return self._make_folder(json.loads(body))
            case "GET", ["dashboards", "uid", uid]:
                return self._dashboard(uid)
            case "GET", ["dashboards", "uid", uid, "versions"]:
                versions = self.dashboards[uid].versions[::-1]
                return 200, versions if self.lists_versions else {"continueToken": "", "versions": versions}
            case "POST", ["dashboards", "db"]:
                return self._save(json.loads(body))
        return 404, {"message": "Not found"}

    def _make_folder(self, asked: dict[str, Any]) -> Answer:
        uid = asked["uid"]
        if uid in self.folders:
            return 409, {"message": "a folder with the same uid already exists"}
        self.folders[uid] = {
            "id": len(self.folders) + 1, "uid": uid, "title": asked["title"], "url": f"/dashboards/f/{uid}/", "hasAcl": False,
            "canSave": True, "canEdit": True, "canAdmin": False, "createdBy": "sa-1", "created": "2026-11-21T00:00:00Z", "version": 1,
        }  # fmt: skip
        return 200, self.folders[uid]

    def _dashboard(self, uid: str) -> Answer:
        kept = self.dashboards.get(uid)
        if kept is None:
            return 404, {"message": "Dashboard not found", "traceID": ""}
        meta = {"type": "db", "canSave": True, "slug": uid, "version": kept.version, "folderUid": kept.folder_uid, "provisioned": False}
        return 200, {"meta": meta, "dashboard": kept.model}

    def _save(self, asked: dict[str, Any]) -> Answer:
        hook, self.before_save = self.before_save, None
        if hook is not None:
            hook()
        model, folder_uid = asked["dashboard"], asked.get("folderUid", "")
        if folder_uid and folder_uid not in self.folders:
            return 400, {"message": "folder not found", "status": "not-found"}
        known = self.dashboards.get(model["uid"])
        if known is not None and known.provisioned:
            return 400, {"message": "Cannot save provisioned dashboard"}
        if known is not None and not asked.get("overwrite") and model.get("version") != known.version:
            return 412, {"message": "The dashboard has been changed by someone else", "status": "version-mismatch"}
        beside = [one for one in self.dashboards.values() if one.folder_uid == folder_uid and one is not known]
        if any(one.model["title"] == model["title"] for one in beside):
            return 412, {"message": "A dashboard with the same name in the folder already exists", "status": "name-exists"}
        self.save(model, folder_uid, asked.get("message", ""))
        kept = self.dashboards[model["uid"]]
        return 200, {
            "id": kept.model["id"], "uid": model["uid"], "url": f"/d/{model['uid']}/board", "status": "success", "version": kept.version,
            "slug": "board", "folderUid": folder_uid,
        }  # fmt: skip

    def save(self, model: dict[str, Any], folder_uid: str, message: str) -> None:
        """Makes the next version; called by tests, it is somebody who saves in Grafana."""
        known = self.dashboards.get(model["uid"])
        version = 1 if known is None else known.version + 1
        id = len(self.dashboards) + 1 if known is None else known.model["id"]
        line = {
            "id": version, "dashboardId": id, "uid": model["uid"], "parentVersion": version - 1, "restoredFrom": 0, "version": version,
            "created": "2026-11-21T00:00:00Z", "createdBy": "somebody", "message": message,
        }  # fmt: skip
        versions = [line] if known is None else [*known.versions, line]
        self.dashboards[model["uid"]] = Kept({**model, "id": id, "version": version}, folder_uid, versions)
