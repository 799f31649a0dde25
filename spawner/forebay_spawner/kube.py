"""Servers as Kubernetes pods: no GPU resource, whatever the chart's values ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay_service.languages import Text
from kubespawner import KubeSpawner

from forebay_spawner.errors import GpuRequested
from forebay_spawner.mixin import VirtualGpuMixin

GPU_WORDS = ("gpu", "nvidia.com/", "amd.com/", "habana.ai/", "gaudi")
"""What the names of accelerator resources contain, such as ``nvidia.com/gpu``, ``nvidia.com/mig-1g.5gb``, ``gpu.intel.com/i915``."""


class KubeVirtualGpuSpawner(VirtualGpuMixin, KubeSpawner):  # type: ignore[misc]  # kubespawner has no type information
    """KubeSpawner whose pods hold no GPU. ``c.JupyterHub.spawner_class = "forebay-kube"``."""

    async def get_pod_manifest(self) -> Any:
        """The pod. Raises GpuRequested where the configuration would give it a GPU."""
        if self.name:
            self.cmd = list(self.job_cmd)
        pod = await super().get_pod_manifest()
        refuse_gpu(self.api.api_client.sanitize_for_serialization(pod)["spec"])
        return pod


def refuse_gpu(spec: Mapping[str, Any]) -> None:
    """Checks every container's resources and the pod's claims of dynamic resources. Raises GpuRequested."""
    found = ["resourceClaims"] if spec.get("resourceClaims") else []
    for container in [*spec["containers"], *spec.get("initContainers", ())]:
        resources = container.get("resources", {})
        wanted = {**resources.get("limits", {}), **resources.get("requests", {})}
        found += [resource for resource in wanted if any(word in resource for word in GPU_WORDS)]
    if found:
        raise GpuRequested(
            Text(
                "The server's pod would hold %(resource)s. Servers of this installation compute on virtual devices: "
                "an operator must remove it from the spawner's configuration.",
                resource=found[0],
            )
        )
