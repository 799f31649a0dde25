"""The endpoints of flavors, and of flavors that the devices which are here could serve."""

from __future__ import annotations

import logging
import re

from forebay_service.errors import Fault, RequestError
from forebay_service.identity import OPERATE, Identity

from forebay_pool.errors import RequestRefused
from forebay_pool.http.handler import Api
from forebay_pool.model.events import FlavorRemoved, FlavorSet
from forebay_pool.model.suggestions import suggestions
from forebay_pool.model.types import Flavor
from forebay_pool.store.flavors import NAME_PATTERN, FlavorBody, scale
from forebay_pool.views.rows import FlavorRow, flavor_row, suggestion_row

log = logging.getLogger(__name__)


class FlavorApi(Api):
    """What both endpoints of flavors share."""

    def row(self, flavor: Flavor, identity: Identity) -> FlavorRow:
        machine, tenant = self.shell.machine, identity.tenant or ""
        return flavor_row(flavor, machine.fleet, tenant, machine.outlook(flavor, tenant), self.context.settings.processes)


class Flavors(FlavorApi):
    """``GET api/flavors``, by size: all who show them do so in this order."""

    async def get(self) -> None:
        identity = await self.bearer()
        await self.context.refresh_prices()
        flavors = sorted(self.shell.machine.fleet.flavors.values(), key=lambda flavor: (flavor.memory_bytes, flavor.name))
        self.write_json([self.row(flavor, identity) for flavor in flavors])


class FlavorItem(FlavorApi):
    """``PUT`` and ``DELETE api/flavors/{name}``."""

    async def put(self, name: str) -> None:
        identity = await self.bearer(OPERATE)
        if re.fullmatch(NAME_PATTERN, name) is None:
            raise RequestRefused(400, "invalid", f"{name!r} is no name of a flavor: use a-z, 0-9, dot, dash, underscore, 64 at most.")
        flavor, expected = self.body(FlavorBody).named(name), self.expected()
        if not self.context.settings.keeps_images(flavor.images):
            problem = f"The pool has no folder for images {flavor.images!r}: name one in its setting image_dirs first."
            raise RequestRefused(400, "no_image_dir", problem)
        await self.context.write(lambda: self.context.store.set_flavor(flavor, identity.name, expected))
        self.shell.apply(FlavorSet(flavor))
        log.info("flavor_set %s by %s", name, identity.name, extra={"action": "flavor_set", "flavor": name, "user": identity.name})
        self.write_tagged(self.row(flavor, identity))


    async def delete(self, name: str) -> None:
        identity, expected = await self.bearer(OPERATE), self.expected()
        machine = self.shell.machine
        flavor = machine.fleet.flavors.get(name)
        if flavor is None:
            raise RequestRefused(404, "no_flavor", f"There is no flavor {name!r}.")
        if name == self.context.settings.default_flavor:
            raise RequestRefused(409, "default_flavor", f"{name} is what processes get that name none (setting default_flavor).")
        having = sum(1 for session in machine.sessions.values() if session.flavor == name)
        if having:
            have = "1 session has" if having == 1 else f"{having} sessions have"
            problem = f"{have} the flavor {name}; remove it when {'that has' if having == 1 else 'they have'} ended."
            raise RequestRefused(409, "flavor_in_use", problem, Fault("flavor_in_use", values={"count": having}))
        self.shell.apply(FlavorRemoved(name))  # first: no session gets it while it is written
        try:
            await self.context.write(lambda: self.context.store.remove_flavor(name, identity.name, expected))
        except RequestError:
            self.shell.apply(FlavorSet(flavor))
            raise
        for key in [key for key, chosen in self.context.choices.items() if chosen == name]:
            del self.context.choices[key]
        log.info("flavor_removed %s by %s", name, identity.name, extra={"action": "flavor_removed", "flavor": name, "user": identity.name})
        self.set_status(204)


class Suggestions(Api):
    """``GET api/suggestions``: flavors that the devices which are here could serve, and that are not there yet."""

    async def get(self) -> None:
        identity = await self.bearer(OPERATE)
        await self.context.refresh_prices()
        fleet, tenant = self.shell.machine.fleet, identity.tenant or ""
        devices = [seat.device for seat in fleet.seats.values()]
        self.write_json([suggestion_row(one, fleet, tenant) for one in suggestions(devices, fleet.flavors, scale())])
