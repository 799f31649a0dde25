"""An operator who sets quotas and budgets, empties nodes, closes devices, and moves and revokes, all while things go wrong."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from forebay_pool.model.events import BudgetSet, Event, LeaseRevoked, QuotaSet, SessionMoved, SessionParked
from forebay_pool.model.node_events import DeviceSet, NodeDrain
from forebay_pool.model.types import BudgetState, Device, Quota

from simulation.agenda import SECOND_NS, Agenda
from simulation.clients import Client

Who = tuple[str, str | None]


class Site(Protocol):
    """What an operator works on."""

    agenda: Agenda
    clients: dict[str, Client]
    devices: list[Device]
    tenants: list[str]
    calm: bool
    down: bool

    def apply(self, event: Event) -> None: ...


class Operator:
    """Does something now and then until all is calm, and then takes back whatever keeps anybody from being served."""

    def __init__(self, storm: Site, chance: random.Random) -> None:
        self.storm = storm
        self.chance = chance
        self._each_seconds = chance.choice([1.0, 3.0, 1e9])
        self._quotas: dict[Who, Quota] = {}
        self._budgets: set[Who] = set()
        self._drained: set[str] = set()
        self._cordoned: set[str] = set()

    def start(self) -> None:
        self.storm.agenda.after(int(self.chance.expovariate(1 / self._each_seconds) * SECOND_NS), self._act)

    def _act(self) -> None:
        if self.storm.calm:
            return
        acts: list[Callable[[], None]] = [self._set_quota, self._set_quota, self._set_budget, self._drain, self._drain]
        acts += [self._cordon, self._move, self._park, self._revoke]
        if not self.storm.down:
            self.chance.choice(acts)()
        self.start()

    # Quotas

    def _somebody(self) -> Who:
        tenant = self.chance.choice(self.storm.tenants)
        return tenant, self.chance.choice([None, f"{tenant}-{self.chance.randrange(3)}"])

    def _set_quota(self) -> None:
        windowed = self.chance.random() < 0.5
        quota = Quota(
            devices_milli=self.chance.choice([None, 300, 1000, 1000, 2000]),
            device_seconds=self.chance.randint(1, 4) if windowed else None,
            window_seconds=self.chance.choice([2, 10]) if windowed else None,
            on_exhausted=self.chance.choice(["wait", "revoke"]),
        )
        who = self._somebody()
        self._quotas[who] = quota
        self.storm.apply(QuotaSet(*who, quota))

    def _set_budget(self) -> None:
        who = self._somebody()
        self._budgets.add(who)
        state: BudgetState = self.chance.choice(["open", "wait", "refuse", "drain"])
        self.storm.apply(BudgetSet(*who, state, None, "", self.chance.choice([0.0, 1.0])))

    def quotas_set(self) -> list[Event]:
        """As a pool that starts reads them. Budgets are not the pool's: it is told them again when something changes."""
        return [QuotaSet(*who, quota) for who, quota in self._quotas.items()]

    # Nodes and devices

    def _drain(self) -> None:
        node = self.chance.choice(sorted({device.node for device in self.storm.devices}))
        self._drained.add(node)
        self.storm.apply(NodeDrain(node, True, self.chance.choice([None, 0.0, 1.0])))
        self.storm.agenda.after(int(self.chance.uniform(2, 25) * SECOND_NS), lambda: self._open(node))

    def _open(self, node: str) -> None:
        if node in self._drained and not self.storm.down:
            self._drained.discard(node)
            self.storm.apply(NodeDrain(node, False))

    def _cordon(self) -> None:
        device = self.chance.choice([device.id for device in self.storm.devices])
        closes = device not in self._cordoned
        (self._cordoned.add if closes else self._cordoned.discard)(device)
        self.storm.apply(DeviceSet(device, closes, "an operator's whim"))

    def closures_set(self) -> list[Event]:
        """As a pool that starts reads them: a drain's grace is not remembered."""
        devices = [DeviceSet(device, True, "an operator's whim") for device in sorted(self._cordoned)]
        return [*(NodeDrain(node, True) for node in sorted(self._drained)), *devices]

    # Sessions

    def _move(self) -> None:
        if self.storm.clients:
            self.storm.apply(SessionMoved(self.chance.choice(list(self.storm.clients))))

    def _park(self) -> None:
        if self.storm.clients:
            self.storm.apply(SessionParked(self.chance.choice(list(self.storm.clients))))

    def _revoke(self) -> None:
        if self.storm.clients:
            self.storm.apply(LeaseRevoked(self.chance.choice(list(self.storm.clients)), "An operator takes the lease back."))

    def lets_all(self) -> None:
        """Nothing stops anybody any more."""
        for who in self._quotas:
            self.storm.apply(QuotaSet(*who, Quota()))
        self._quotas.clear()
        for who in sorted(self._budgets, key=str):
            self.storm.apply(BudgetSet(*who, "open"))
        for node in sorted(self._drained):
            self.storm.apply(NodeDrain(node, False))
        for device in sorted(self._cordoned):
            self.storm.apply(DeviceSet(device, False))
        self._drained.clear()
        self._cordoned.clear()
