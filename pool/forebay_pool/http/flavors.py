"""The endpoints of flavors, and of flavors that the devices which are here could serve."""

from __future__ import annotations

import logging
import re

from forebay_service.identity import OPERATE, Identity

from forebay_pool.errors import RequestRefused
from forebay_pool.http.handler import Api
from forebay_pool.model.events import FlavorSet
from forebay_pool.model.suggestions import suggestions
from forebay_pool.model.types import Flavor
from forebay_pool.store.flavors import NAME_PATTERN, FlavorBody, scale
from forebay_pool.views.rows import FlavorRow, flavor_row, suggestion_row

log = logging.getLogger(__name__)


class FlavorApi(Api):
    """What both endpoints of flavors share."""

    def row(self, flavor: Flavor, identity: Identity) -> FlavorRow:
        machine, tenant = self.shell.machine, identity.tenant or ""
        return flavor_row(flavor, machine.fleet, machine.fleet.tariff.price_of(flavor.name, tenant), machine.outlook(flavor, tenant))


class Flavors(FlavorApi):
    """``GET api/flavors``."""

    async def get(self) -> None:
        identity = await self.bearer()
        await self.context.refresh_prices()
        self.write_json([self.row(flavor, identity) for flavor in self.shell.machine.fleet.flavors.values()])


class FlavorItem(FlavorApi):
    """``PUT api/flavors/{name}``."""

    async def put(self, name: str) -> None:
        identity = await self.bearer(OPERATE)
        if re.fullmatch(NAME_PATTERN, name) is None:
            raise RequestRefused(400, "invalid", f"{name!r} is no name of a flavor: use a-z, 0-9, dot, dash, underscore, 64 at most.")
        flavor, expected = self.body(FlavorBody).named(name), self.expected()
        await self.context.write(lambda: self.context.store.set_flavor(flavor, identity.name, expected))
        self.shell.apply(FlavorSet(flavor))
        log.info("flavor_set %s by %s", name, identity.name, extra={"action": "flavor_set", "flavor": name, "user": identity.name})
        self.write_tagged(self.row(flavor, identity))


class Suggestions(Api):
    """``GET api/suggestions``: flavors that the devices which are here could serve, and that are not there yet."""

    async def get(self) -> None:
        identity = await self.bearer(OPERATE)
        await self.context.refresh_prices()
        fleet, tenant = self.shell.machine.fleet, identity.tenant or ""
        devices = [seat.device for seat in fleet.seats.values()]
        self.write_json([suggestion_row(one, fleet, tenant) for one in suggestions(devices, fleet.flavors, scale())])
