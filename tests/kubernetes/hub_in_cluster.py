"""JupyterHub and KubeSpawner with the files and variables that the chart gives them, without a cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import no_cluster
import pytest
from chart import Chart
from forebay_spawner.kube import KubeVirtualGpuSpawner
from jupyterhub.app import JupyterHub
from jupyterhub.objects import Hub

MOUNTED = "/etc/forebay"


def load(chart: Chart, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The application once it has read its configuration; its files lie in ``folder``, where the container has them in MOUNTED."""
    for name, text in chart.one("ConfigMap", "hub")["data"].items():
        (folder / name).write_text(text.replace(f'"{MOUNTED}"', f'"{folder}"'), encoding="utf-8")
    for name, value in chart.environment("hub").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FOREBAY_HUB_DATABASE_URL", f"sqlite:///{folder}/hub.sqlite")  # what owners decided is read from it
    (argument, file) = chart.pod("hub").containers[0]["args"]
    assert argument == "--config"
    app = JupyterHub(config_file=str(folder / Path(file).name))
    app.load_config_file(app.config_file)
    no_cluster.be_there(folder, monkeypatch)
    return app


def notebook(app: Any, user: str = "ada") -> tuple[dict[str, Any], dict[str, Any]]:
    """The pod and the claim that KubeSpawner would make for a user, as Kubernetes' API takes them."""

    async def build() -> tuple[Any, Any]:
        address = Hub.from_url(f"{app.hub_bind_url}/hub/")
        address.connect_url = app.hub_connect_url
        who = SimpleNamespace(name=user, id=1, url=f"/user/{user}/", escaped_name=user)
        own = {"user": who, "hub": address, "namespace": "ai", "api_token": "server-token"}
        spawner = KubeVirtualGpuSpawner(config=app.config, _mock=True, **own)
        spawner.user_options = {"flavor": "dev.4gb"}
        try:
            plain = spawner.api.api_client.sanitize_for_serialization
            return plain(await spawner.get_pod_manifest()), plain(spawner.get_pvc_manifest())
        finally:
            await spawner.api.api_client.close()

    return asyncio.run(build())
