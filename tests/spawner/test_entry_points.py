"""``c.JupyterHub.spawner_class = "forebay"`` is enough."""

from __future__ import annotations

from importlib.metadata import entry_points

from forebay_spawner.local import LocalVirtualGpuSpawner
from jupyterhub.app import JupyterHub
from traitlets.config import Config


def test_both_spawners_are_registered_by_name() -> None:
    registered = {point.name: point.value for point in entry_points(group="jupyterhub.spawners") if point.name.startswith("forebay")}
    assert registered == {
        "forebay": "forebay_spawner.local:LocalVirtualGpuSpawner",
        "forebay-kube": "forebay_spawner.kube:KubeVirtualGpuSpawner",
    }


def test_jupyterhub_finds_the_spawner_by_its_name() -> None:
    assert JupyterHub(config=Config(JupyterHub={"spawner_class": "forebay"})).spawner_class is LocalVirtualGpuSpawner
