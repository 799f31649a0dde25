"""Debian's Prometheus with the configuration that we ship, pointed at the services of a test."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import yaml
from dashboards_installation import eventually, free_port
from monitored_cloud import Cloud

SHIPPED = Path(__file__).parents[2] / "deploy" / "prometheus"
SCRAPE_SECONDS = 2
HUB_METRICS = b"# HELP jupyterhub_active_users Active users\n# TYPE jupyterhub_active_users gauge\njupyterhub_active_users 3\n"


@dataclass
class Prometheus:
    """The server that runs."""

    url: str

    def ask(self, path: str, **query: Any) -> Any:
        """The data of an answer; an error is told with the query."""
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=query, timeout=20)
        body = answer.json()
        assert body["status"] == "success", (path, query, body)
        return body["data"]

    def instant(self, expression: str) -> list[Any]:
        return self.ask("query", query=expression)["result"]

    def window(self, expression: str) -> list[Any]:
        """Each second of the last ten."""
        now = time.time()
        return self.ask("query_range", query=expression, start=now - 10, end=now, step=1)["result"]

    def label_values(self, label: str, selector: str) -> list[str]:
        """As Grafana asks for a variable's values."""
        return self.ask(f"label/{label}/values", **{"match[]": selector, "start": time.time() - 60})

    def targets(self) -> dict[str, str]:
        """How each job's target is."""
        return {found["labels"]["job"]: found["health"] for found in self.ask("targets")["activeTargets"]}


def shipped_for(cloud: Cloud, hub_port: int, folder: Path) -> Path:
    """The shipped configuration with this installation's addresses, token and haste; paths and jobs stay as they are."""
    config = yaml.safe_load((SHIPPED / "prometheus.yml").read_text(encoding="utf-8"))
    addresses = {f"forebay-{name}": urlsplit(url) for name, url in cloud.installation.urls.items()}
    config["global"] = {"scrape_interval": f"{SCRAPE_SECONDS}s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(SHIPPED / pattern) for pattern in config["rule_files"]]
    token = folder / "scrape-token"
    token.write_text(cloud.installation.hub.tokens["operator"])
    for job in config["scrape_configs"]:
        job["authorization"]["credentials_file"] = str(token)
        address = addresses.get(job["job_name"])
        if address is not None:
            assert job["metrics_path"] == f"{address.path}metrics"
        job["static_configs"] = [{"targets": [f"127.0.0.1:{hub_port}" if address is None else address.netloc]}]
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    return file


@contextmanager
def hub_metrics(token: str) -> Iterator[int]:
    """Answers as JupyterHub's ``/hub/metrics`` does: to a token that may read them, in the way JupyterHub takes tokens."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == "/hub/metrics" and self.headers.get("Authorization") == f"token {token}"
            self.send_response(200 if known else 403)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(HUB_METRICS if known else b"")

        def log_message(self, *arguments: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def scraping(program: str, cloud: Cloud, folder: Path) -> Iterator[Prometheus]:
    """Prometheus, once it has scraped all targets."""
    port = free_port()
    with hub_metrics(cloud.installation.hub.tokens["operator"]) as hub_port, (folder / "prometheus.log").open("wb") as log:
        config = shipped_for(cloud, hub_port, folder)
        command = [program, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"]
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            prometheus = Prometheus(f"http://127.0.0.1:{port}")
            eventually(lambda: _answers(prometheus.url), 30)
            eventually(lambda: set(prometheus.targets().values()) == {"up"}, 30)
            yield prometheus
        finally:
            server.terminate()
            server.wait(timeout=20)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready").is_success
    except httpx.TransportError:
        return False


METRIC = re.compile(r"\b(?:forebay_\w+|DCGM_\w+|\w+:forebay_\w+:\w+|up|ALERTS)\b(?=[\s{\[)*+/,]|$)")
"""A metric's name within an expression, but not a label's."""
