"""Where KubeSpawner finds a cluster in tests: at an address at which nobody listens."""

from __future__ import annotations

from pathlib import Path

import pytest

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: nowhere
contexts: [{name: nowhere, context: {cluster: nowhere, user: nobody}}]
clusters: [{name: nowhere, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: nobody, user: {}}]
"""


def be_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has Kubernetes' client read its configuration in the folder."""
    (folder / "kubeconfig").write_text(KUBECONFIG)
    monkeypatch.setattr("kubernetes_asyncio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(folder / "kubeconfig"))
