"""What the operator prefers, and whom models are kept for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

Preference = Literal["cheapest", "fastest", "packed"]
"""Of equal places: the least surcharge and the least computing power that do, the most, or where least is left in the node."""
GangSpread = Literal["node", "switch", "any"]
"""How far apart the devices of a gang may be."""


@dataclass(frozen=True, slots=True)
class ModelPolicy:
    """Who may have devices of a model, and what they cost beside the flavor's price."""

    model: str
    tenants: frozenset[str] | None = None
    """None: all."""
    surcharge_nano_per_second: int = 0


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator prefers among the places that would do."""

    preference: Preference = "cheapest"
    gang_spread: GangSpread = "any"
    models: Mapping[str, ModelPolicy] = field(default_factory=dict)

    def allows(self, model: str, tenant: str) -> bool:
        policy = self.models.get(model)
        return policy is None or policy.tenants is None or tenant in policy.tenants

    def with_model(self, policy: ModelPolicy) -> Policy:
        return replace(self, models={**self.models, policy.model: policy})

    def surcharge_of(self, model: str) -> int:
        """In nano-units per second."""
        policy = self.models.get(model)
        return 0 if policy is None else policy.surcharge_nano_per_second
