"""HTTP endpoints of nodes, devices and models: closing, draining, policies, and the forecast."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Annotated

from forebay_service.identity import OPERATE, SERVICE
from forebay_wire.texts import ONE_LINE, Name
from pydantic import BaseModel, ConfigDict, Field

from forebay_pool.errors import RequestRefused
from forebay_pool.http.handler import Api
from forebay_pool.model.node_events import DeviceSet, NodeDrain, PolicySet
from forebay_pool.model.policies import ModelPolicy
from forebay_pool.store.audit import AuditEntry
from forebay_pool.views.rows import device_row, model_row, node_row

GRACE_SECONDS_MAX = 7 * 86_400
TENANTS_MAX = 1000
CAUSE_CHARACTERS_MAX = 500
"""A thousand units a second for one device: as much as billing takes."""

log = logging.getLogger(__name__)


class NodeBody(BaseModel):
    """What ``PUT api/nodes/{name}`` takes."""

    model_config = ConfigDict(extra="forbid", strict=True)

    drain: bool
    grace_seconds: Annotated[float, Field(ge=0, le=GRACE_SECONDS_MAX)] | None = None


class DeviceBody(BaseModel):
    """What ``PUT api/devices/{id}`` takes."""

    model_config = ConfigDict(extra="forbid", strict=True)

    cordoned: bool
    cause: Annotated[str, Field(max_length=CAUSE_CHARACTERS_MAX), ONE_LINE] = ""


class ModelBody(BaseModel):
    """What ``PUT api/models/{model}`` takes; ``tenants`` null: all."""

    model_config = ConfigDict(extra="forbid")

    tenants: Annotated[list[Name], Field(max_length=TENANTS_MAX)] | None = None


class Nodes(Api):
    """``GET api/nodes``."""

    async def get(self) -> None:
        await self.bearer(SERVICE, OPERATE)
        self.write_json([node_row(node) for node in self.shell.machine.fleet.nodes.values()])


class NodeItem(Api):
    """``PUT api/nodes/{name}``."""

    async def put(self, name: str) -> None:
        identity = await self.bearer(OPERATE)
        body = self.body(NodeBody)
        node = self.shell.machine.fleet.nodes.get(name)
        if node is None:
            raise RequestRefused(404, "no_node", f"There is no node {name!r}.")
        deed = AuditEntry(identity.name, "node.set", node.name, {"drain": node.drains}, body.model_dump())
        await self.context.write(lambda: self.context.store.set_closed("node", node.name, "drained" if body.drain else None, deed))
        self.shell.apply(NodeDrain(node.name, body.drain, body.grace_seconds))
        fields = {"action": "node_set", "node": node.name, "user": identity.name}
        log.info("node %s drain=%s by %s", node.name, body.drain, identity.name, extra=fields)
        self.write_json(node_row(node))


class DeviceItem(Api):
    """``PUT api/devices/{id}``; the id's slash may be written as it is."""

    async def put(self, name: str) -> None:
        identity = await self.bearer(OPERATE)
        body = self.body(DeviceBody)
        seat = self.shell.machine.fleet.seats.get(name)
        if seat is None:
            raise RequestRefused(404, "no_device", f"There is no device {name!r}.")
        cause = body.cause or f"closed by {identity.name}"
        known = {"cordoned": seat.cordon is not None, "cause": "" if seat.cordon is None else seat.cordon.cause}
        wanted = {"cordoned": body.cordoned, "cause": cause if body.cordoned else body.cause}
        deed = AuditEntry(identity.name, "device.set", seat.device.id, known, wanted)
        await self.context.write(lambda: self.context.store.set_closed("device", seat.device.id, cause if body.cordoned else None, deed))
        self.shell.apply(DeviceSet(seat.device.id, body.cordoned, cause if body.cordoned else body.cause))
        if not body.cordoned:
            self.shell.metrics.readings.forget_xid(seat.device.id)
        fields = {"action": "device_set", "device": seat.device.id, "user": identity.name}
        log.info("device %s cordoned=%s by %s", seat.device.id, body.cordoned, identity.name, extra=fields)
        self.write_json(device_row(seat))


class Models(Api):
    """``GET api/models``: each model there is or that has a policy."""

    async def get(self) -> None:
        await self.bearer(SERVICE, OPERATE)
        fleet = self.shell.machine.fleet
        names = sorted({*fleet.indexes, *fleet.policy.models})
        self.write_json([model_row(name, fleet) for name in names])


class ModelItem(Api):
    """``PUT api/models/{model}``."""

    async def put(self, model: str) -> None:
        identity = await self.bearer(OPERATE)
        body = self.body(ModelBody)
        fleet = self.shell.machine.fleet
        if model not in fleet.indexes and model not in fleet.policy.models:
            raise RequestRefused(404, "no_model", f"There is no device of the model {model!r}.")
        tenants = None if body.tenants is None else frozenset(body.tenants)
        policy, expected = ModelPolicy(model, tenants), self.expected()
        await self.context.write(lambda: self.context.store.set_model(policy, identity.name, expected))
        self.shell.apply(PolicySet(fleet.policy.with_model(policy)))
        log.info("model %s set by %s", model, identity.name, extra={"action": "model_set", "model": model, "user": identity.name})
        self.write_tagged(model_row(model, fleet))


class Forecasts(Api):
    """``GET api/forecast``: what each flavor's demand will come to."""

    async def get(self) -> None:
        await self.bearer(SERVICE, OPERATE)
        self.write_json([asdict(one) for one in self.shell.machine.forecasts(self.shell.clock_ns())])


class Devices(Api):
    """``GET api/devices``."""

    async def get(self) -> None:
        await self.bearer(SERVICE, OPERATE)
        self.write_json([device_row(seat) for seat in self.shell.machine.fleet.seats.values()])
