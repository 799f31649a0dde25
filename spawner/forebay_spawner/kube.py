"""Servers as Kubernetes pods: no GPU resource, whatever the chart's values ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forebay_service.languages import Text
from kubespawner import KubeSpawner
from traitlets import default

from forebay_spawner.errors import GpuRequested, ProfileRefused
from forebay_spawner.flavors import OPTION
from forebay_spawner.mixin import VirtualGpuMixin

GPU_WORDS = ("gpu", "nvidia.com/", "amd.com/", "habana.ai/", "gaudi")
"""What the names of accelerator resources contain, such as ``nvidia.com/gpu``, ``nvidia.com/mig-1g.5gb``, ``gpu.intel.com/i915``."""


class KubeVirtualGpuSpawner(VirtualGpuMixin, KubeSpawner):  # type: ignore[misc]  # kubespawner has no type information
    """KubeSpawner whose pods hold no GPU. ``c.JupyterHub.spawner_class = "forebay-kube"``."""

    @default("options_from_form")  # type: ignore[untyped-decorator]  # traitlets is not followed
    def _default_options_from_form(self) -> Any:
        return self._options_of_both

    async def flavor_form(self) -> str:
        """The choice of a flavor, with KubeSpawner's own choice of a profile below it where there are profiles."""
        flavors = await super().flavor_form()
        return flavors + self._render_options_form(self._profiles()) if self.profile_list else flavors

    def _options_of_both(self, form: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        chosen = {OPTION: form[OPTION][0]} if form.get(OPTION) else {}
        profile: dict[str, Any] = self._options_from_form({name: form[name] for name in form if name.startswith("profile")})
        return chosen | profile

    def _profiles(self) -> list[dict[str, Any]]:
        profiles: list[dict[str, Any]] = self._get_initialized_profile_list(self._sorted_dict_values(self.profile_list))
        return profiles

    async def load_user_options(self) -> None:
        """Raises ProfileRefused for a profile that is none, which whoever asks the hub's API may have written."""
        chosen, known = self.user_options.get("profile"), [profile["slug"] for profile in self._profiles() or ()]
        if chosen and known and chosen not in known:
            raise ProfileRefused(
                Text("There is no profile %(name)s. Choose one of: %(names)s.", name=f"{chosen!r:.80}", names=", ".join(known))
            )
        await super().load_user_options()

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
