"""A server is started in a cluster: KubeSpawner makes the claim and the pod, once, and the choices of its owner are in them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_stand_in
import no_cluster
import pytest
from forebay_spawner.kube import KubeVirtualGpuSpawner
from forebay_spawner.mixin import VirtualGpuMixin
from jupyterhub.spawner import Spawner
from kubernetes_stand_in import POD_IP, Cluster
from kubespawner import KubeSpawner

PROFILES = [
    {"display_name": "Small", "description": "For most people", "default": True},
    {"display_name": "Large memory", "slug": "large", "kubespawner_override": {"mem_limit": "64G"}},
]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with kubernetes_stand_in.cluster() as found:
        no_cluster.be_there(tmp_path, monkeypatch)
        yield found


def started(cluster: Cluster, pool: Any, hub: Any, user: Any, options: dict[str, Any], **settings: Any) -> Any:
    """The address of the server. Raises what keeps it from starting."""

    async def start() -> Any:
        own = {"user": user, "hub": hub, "namespace": "ai", "api_token": "server-token", "pool_url": pool.url, "image": "notebook:1"}
        own["k8s_api_host"] = cluster.url
        spawner = KubeVirtualGpuSpawner(**own, storage_pvc_ensure=True, storage_capacity="1Gi", start_timeout=20, **settings)
        spawner.user_options = options
        try:
            return await asyncio.wait_for(spawner.start(), 20)
        finally:
            await KubeSpawner._stop_all_reflectors()
            await spawner.api.api_client.close()

    return asyncio.run(start())


def test_a_server_starts_with_one_pod_and_one_claim(cluster: Cluster, pool: Any, hub: Any, user: Any) -> None:
    """KubeSpawner's ``start`` calls a method ``_start`` of its own: one of ours by that name was called over and over, and made nothing."""
    assert started(cluster, pool, hub, user, {"flavor": "dev.1gb"}) == f"http://{POD_IP}:8888"
    assert [len(cluster.made[kind]) for kind in ("pods", "persistentvolumeclaims")] == [1, 1]
    assert pool.choices == [("token server-token", "dev.1gb")]


@pytest.mark.parametrize("below", [KubeSpawner, Spawner])
def test_no_name_of_ours_is_one_of_the_spawner_below_but_those_that_are_extended(below: type) -> None:
    """A private method of the other would be replaced without a word."""
    extended = {"start", "progress", "get_args", "get_env", "clear_state"}
    ours = {name for name, value in vars(VirtualGpuMixin).items() if callable(value) and not name.startswith("__")}
    assert {name for name in ours if hasattr(below, name)} <= extended


def test_the_form_offers_profiles_beside_flavors(cluster: Cluster, pool: Any, hub: Any, user: Any) -> None:
    async def shown() -> tuple[str, dict[str, Any]]:
        spawner = KubeVirtualGpuSpawner(_mock=True, user=user, hub=hub, pool_url=pool.url, profile_list=PROFILES)
        spawner.user_options = {}
        try:
            form = {"flavor": ["dev.1gb"], "profile": ["large"], "mem_limit": ["1T"]}
            return await spawner.flavor_form(), spawner.options_from_form(form)
        finally:
            await spawner.api.api_client.close()

    page, options = asyncio.run(shown())
    assert 'value="dev.1gb"' in page and "Large memory" in page and "For most people" in page
    assert options == {"flavor": "dev.1gb", "profile": "large"}


def test_a_profile_decides_about_the_pod(cluster: Cluster, pool: Any, hub: Any, user: Any) -> None:
    started(cluster, pool, hub, user, {"flavor": "dev.1gb", "profile": "large"}, profile_list=PROFILES, mem_limit="4G")
    (pod,) = cluster.made["pods"]
    assert pod["spec"]["containers"][0]["resources"]["limits"]["memory"] == 64 * 2**30


@pytest.mark.parametrize("profile", ["huge", ["large"], 7])
def test_a_profile_that_is_none_is_refused_in_a_sentence(cluster: Cluster, pool: Any, hub: Any, user: Any, profile: Any) -> None:
    """It comes raw from whoever asks the hub's API."""
    with pytest.raises(Exception, match="profile") as refused:
        started(cluster, pool, hub, user, {"flavor": "dev.1gb", "profile": profile}, profile_list=PROFILES)
    assert refused.value.status_code == 400 and "small, large" in str(refused.value.log_message)
    assert not cluster.made["pods"]
