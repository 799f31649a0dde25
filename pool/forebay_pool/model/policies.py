"""What the operator prefers, and whom models are kept for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

Preference = Literal["cheapest", "fastest", "packed"]
"""Of equal places: the least surcharge and the least computing power that do, the most, or where least is left in the node."""
GangSpread = Literal["node", "switch", "any"]
"""How far apart the devices of a gang may be."""
Author = Literal["operator", "owner"]
"""In whose name a quota is set: an operator's, or that of a tenant's owner."""
ImagePolicy = Literal["none", "process", "node", "disk"]
"""Where images of sessions are that outlive their workers: nowhere, in the memory of the worker's host, in a folder that all hosts see,
or on a disk of that host."""


@dataclass(frozen=True, slots=True)
class ModelPolicy:
    """Who may have devices of a model."""

    model: str
    tenants: frozenset[str] | None = None
    """None: all."""

    @property
    def settings(self) -> dict[str, list[str] | None]:
        """What an operator sets of a model."""
        return {"tenants": None if self.tenants is None else sorted(self.tenants)}


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator prefers among the places that would do, and where images are kept."""

    preference: Preference = "cheapest"
    gang_spread: GangSpread = "any"
    models: Mapping[str, ModelPolicy] = field(default_factory=dict)
    images: ImagePolicy = "process"
    """Of flavors that name no other."""

    def allows(self, model: str, tenant: str) -> bool:
        policy = self.models.get(model)
        return policy is None or policy.tenants is None or tenant in policy.tenants

    def images_of(self, own: ImagePolicy | None) -> ImagePolicy:
        """Where images are kept of sessions whose flavor names such a policy of its own, or none."""
        return own or self.images

    def with_model(self, policy: ModelPolicy) -> Policy:
        return replace(self, models={**self.models, policy.model: policy})
