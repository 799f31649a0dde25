"""Tells Ray's autoscaler how many nodes of each group there should be. Imported only where the setting ``launcher`` says ``ray``.

A node of a group has one of the custom resource ``forebay-MODEL``, and each that is wanted is a demand for one. The autoscaler, that of
KubeRay or of VMs in a cloud, starts what is missing, and ends nodes that have idled for as long as it is set to and that no demand needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from ray.autoscaler.sdk import request_resources
from ray.exceptions import RayError

from forebay_pool.errors import one_line
from forebay_pool.model.instructions import Scale

RESOURCE_PREFIX = "forebay-"
"""Before a group's model: of this resource each of its nodes has one."""
NODE_ID_LABEL = "ray.io/node-id"
REPEAT_SECONDS = 30.0
"""How often the autoscaler is told again, since a head that started anew has forgotten."""

log = logging.getLogger(__name__)


class RayAutoscaler:
    """Says what was asked last, now and again and again."""

    def __init__(self) -> None:
        self._wanted = asyncio.Event()
        self._scale, self._ids = Scale({}, frozenset()), frozenset[str]()

    def ask(self, scale: Scale, ids: frozenset[str]) -> None:
        """``ids`` are those of the nodes that may end: no demand is laid onto them."""
        self._scale, self._ids = scale, ids
        self._wanted.set()

    async def run(self) -> None:
        """Until cancelled."""
        await self._wanted.wait()
        while True:
            self._wanted.clear()
            bundles, selectors = demands(self._scale, self._ids)
            try:
                await asyncio.to_thread(request_resources, bundles=bundles, bundle_label_selectors=selectors)
            except (RayError, OSError, RuntimeError) as error:
                log.warning("Ray's autoscaler cannot be told: %s", one_line(error), extra={"action": "scale_failed"})
            with contextlib.suppress(TimeoutError):  # asyncio.wait_for would lose a cancellation that comes with what is wanted
                async with asyncio.timeout(REPEAT_SECONDS):
                    await self._wanted.wait()


def demands(scale: Scale, ended: frozenset[str]) -> tuple[list[dict[str, float]], list[dict[str, str]]]:
    """As ``request_resources`` takes them: a bundle for each node, and the labels that its node must have."""
    bundles: list[dict[str, float]] = [{resource_of(model): 1} for model, count in sorted(scale.nodes.items()) for _ in range(count)]
    others = {NODE_ID_LABEL: f"!in({','.join(sorted(ended))})"} if ended else {}
    return bundles, [others for _ in bundles]


def resource_of(model: str) -> str:
    return RESOURCE_PREFIX + model
