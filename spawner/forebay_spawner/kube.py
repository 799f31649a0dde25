"""Servers as Kubernetes pods: no GPU resource, whatever the chart's values ask for."""

from __future__ import annotations

from typing import Any

from kubespawner import KubeSpawner

from forebay_spawner.errors import GpuRequested
from forebay_spawner.mixin import VirtualGpuMixin

GPU_WORDS = ("gpu", "nvidia.com/", "amd.com/", "habana.ai/", "gaudi")
"""What the names of accelerator resources contain, such as ``nvidia.com/gpu``, ``nvidia.com/mig-1g.5gb``, ``gpu.intel.com/i915``."""


class KubeVirtualGpuSpawner(VirtualGpuMixin, KubeSpawner):  # type: ignore[misc]  # kubespawner has no type information
    """KubeSpawner whose pods hold no GPU. ``c.JupyterHub.spawner_class = "forebay-kube"``."""

    async def get_pod_manifest(self) -> Any:
        """The pod. Raises GpuRequested where the configuration would give it a GPU."""
        pod = await super().get_pod_manifest()
        refuse_gpu(pod)
        return pod


def refuse_gpu(pod: Any) -> None:
    """Checks every container's resources and the pod's resource claims. Raises GpuRequested."""
    for container in [*pod.spec.containers, *(pod.spec.init_containers or ())]:
        wanted = {**(container.resources.limits or {}), **(container.resources.requests or {})} if container.resources else {}
        for resource in wanted:
            if any(word in resource for word in GPU_WORDS):
                raise GpuRequested(
                    f"The server's pod would hold {resource}. Servers of this installation compute on virtual devices: "
                    "an operator must remove it from the spawner's resource limits and guarantees."
                )
