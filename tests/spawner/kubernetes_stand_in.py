"""As much of Kubernetes's API as KubeSpawner asks for: it makes pods and claims, and tells of pods; each pod runs at once."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

WATCH_SECONDS = 2.0
POD_IP = "10.9.8.7"


class Cluster:
    """What has been made in it, by kind, in order."""

    def __init__(self) -> None:
        self.made: dict[str, list[dict[str, Any]]] = {"pods": [], "persistentvolumeclaims": [], "events": []}
        self.changed = threading.Condition()
        self.url = ""

    def make(self, kind: str, body: dict[str, Any], namespace: str) -> dict[str, Any]:
        body["metadata"] |= {"namespace": namespace, "uid": f"{kind}-{len(self.made[kind])}", "resourceVersion": "2"}
        if kind == "pods":
            told = {"ready": True, "restartCount": 0, "imageID": "", "state": {"running": {}}}
            each = [{**told, "name": one["name"], "image": one["image"]} for one in body["spec"]["containers"]]
            body["status"] = {"phase": "Running", "podIP": POD_IP, "containerStatuses": each}
        with self.changed:
            self.made[kind].append(body)
            self.changed.notify_all()
        return body

    def wait_for(self, kind: str, more_than: int) -> list[dict[str, Any]]:
        with self.changed:
            self.changed.wait_for(lambda: len(self.made[kind]) > more_than, WATCH_SECONDS)
            return list(self.made[kind])


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Serves one until the end."""
    state = Cluster()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            kind = parts.path.rpartition("/")[2]
            if "watch" in parse_qs(parts.query):
                found = state.wait_for(kind, 0)
                self.answer(200, "".join(json.dumps({"type": "ADDED", "object": one}) + "\n" for one in found))
            else:
                self.answer(200, json.dumps({"items": state.made[kind], "metadata": {"resourceVersion": "1"}}))

        def do_POST(self) -> None:
            *_, namespace, kind = urlsplit(self.path).path.split("/")
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.answer(201, json.dumps(state.make(kind, body, namespace)))

        def answer(self, status: int, text: str) -> None:
            with contextlib.suppress(ConnectionError):  # who watched has left
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        state.url = f"http://127.0.0.1:{server.server_port}"
        yield state
        server.shutdown()
        thread.join()
