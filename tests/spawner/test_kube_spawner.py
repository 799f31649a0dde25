"""The pod manifest of the Kubernetes variant, built offline: no GPU resource, whatever the values ask for."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import no_cluster
import pytest
from forebay_spawner.environment import NO_GPU
from forebay_spawner.errors import GpuRequested
from forebay_spawner.kube import KubeVirtualGpuSpawner


@pytest.fixture
def spawner_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    no_cluster.be_there(tmp_path, monkeypatch)
    return KubeVirtualGpuSpawner


def manifest(spawner_class: Any, **settings: Any) -> Any:
    async def build() -> Any:
        spawner = spawner_class(
            _mock=True, namespace="forebay", image="notebook:1", api_token="server-token", pool_url="http://pool/services/pool/", **settings
        )
        spawner.user_options = {"flavor": "small.64gb"}
        try:
            return await spawner.get_pod_manifest()
        finally:
            await spawner.api.api_client.close()

    return asyncio.run(build())


def test_the_pod_holds_no_gpu(spawner_class: Any) -> None:
    (container,) = manifest(spawner_class, mem_limit="4G", cpu_limit=2).spec.containers
    assert set(container.resources.limits) == {"cpu", "memory"}


def test_a_login_like_an_address_has_a_pod_that_kubernetes_takes(spawner_class: Any) -> None:
    """KubeSpawner's own mock of a user is called ``mock@name``; names and labels are its slugs."""
    pod = manifest(spawner_class)
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", pod.metadata.name) and "mock-name---" in pod.metadata.name
    assert all(re.fullmatch(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?", value) for value in pod.metadata.labels.values())


def test_the_pod_gets_the_virtual_device(spawner_class: Any) -> None:
    (container,) = manifest(spawner_class).spec.containers
    environment = {variable.name: variable.value for variable in container.env}
    assert environment["FOREBAY_URL"] == "http://pool/services/pool/"
    assert environment["FOREBAY_TOKEN"] == "server-token"
    assert {name: environment[name] for name in NO_GPU} == NO_GPU


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "nvidia.com/mig-1g.5gb", "habana.ai/gaudi"])
@pytest.mark.parametrize("setting", ["extra_resource_limits", "extra_resource_guarantees"])
def test_a_gpu_resource_in_the_values_is_refused_by_name(spawner_class: Any, setting: str, resource: str) -> None:
    with pytest.raises(GpuRequested, match=f"would hold {re.escape(resource)}"):
        manifest(spawner_class, **{setting: {resource: "1"}})


def test_a_gpu_in_a_second_container_is_refused(spawner_class: Any) -> None:
    extra = {"name": "side", "image": "side:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    with pytest.raises(GpuRequested, match="would hold nvidia"):
        manifest(spawner_class, extra_containers=[extra])


def test_a_resource_claim_is_refused_since_it_may_be_a_gpu(spawner_class: Any) -> None:
    with pytest.raises(GpuRequested, match="resourceClaims"):
        manifest(spawner_class, extra_pod_config={"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]})
