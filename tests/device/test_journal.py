"""The journal: what devices do and have cost, folded from what the pool says."""

from __future__ import annotations

from typing import Any

import pytest
from forebay.journal import CELLS_MAX, Journal, Page
from forebay.notebook import amounts, notice
from forebay.texts import Texts
from forebay_wire import messages

SECOND = 10**9
PRICE = 600_000
"""Of a second, in nano-units."""
FLAVOR = messages.Flavor(name="dev.1gb", memory_bytes=2**30, price_nano_per_hour=3600 * PRICE, currency="USD")


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now_ns = 1000

    def __call__(self) -> int:
        return self.now_ns

    def go(self, seconds: float) -> None:
        self.now_ns += int(seconds * SECOND)


class Case:
    """A journal with one device, whose pool says what the test has it say."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.journal = Journal(self.clock)
        self.page: Page = self.journal.page(0)
        self.page.told(messages.SessionOpened(session="s-1", flavor=FLAVOR, heartbeat_seconds=1.0), None)

    @property
    def device(self) -> Any:
        return self.journal.devices()[0]

    def ask(self, cell: int) -> messages.Span:
        span = messages.Span(id=f"c{cell}", kind="cell", label="a.ipynb", cell=cell)
        self.page.asked(span)
        return span

    def queue(self, position: int, code: Any = "shortage") -> None:
        self.page.told(messages.Queued(request=1, position=position, reason="All are held.", code=code), None)

    def grant(self, epoch: int, span: messages.Span) -> None:
        granted = messages.Granted(
            request=1,
            lease=f"l-{epoch}",
            epoch=epoch,
            worker="w-1",
            address="unix:/tmp/w",
            ticket="ab" * 32,
            device=messages.DeviceModel(kind="cpu", model="cpu-dev"),
            flavor=FLAVOR,
        )
        self.page.told(granted, span)

    def close(self, epoch: int, seconds: float, reason: Any = "drained") -> None:
        duration_ns = int(seconds * SECOND)
        cost = duration_ns * PRICE // SECOND
        self.page.told(messages.LeaseClosed(lease=f"l-{epoch}", epoch=epoch, reason=reason, duration_ns=duration_ns, cost_nano=cost), None)


@pytest.fixture
def case() -> Case:
    return Case()


def test_a_cell_is_followed_from_its_wait_to_its_cost(case: Case) -> None:
    span = case.ask(3)
    assert case.device.state == "idle" and case.journal.busy
    case.queue(2)
    assert (case.device.state, case.device.queued.position) == ("queued", 2)
    case.queue(1, "restoring")
    assert case.device.state == "restoring"
    case.clock.go(1.5)
    case.grant(1, span)
    assert (case.device.state, case.device.queued, case.device.model) == ("computing", None, "cpu-dev")
    case.clock.go(2)
    assert case.journal.spent() == ({"USD": 2 * PRICE}, 2 * SECOND), "an open lease counts by the clock"
    case.close(1, 1.75)
    (entry,) = case.journal.entries()
    assert (entry.cell, entry.open, entry.cost) == (3, 0, {"USD": 1_050_000})
    assert (entry.waited_ns, entry.device_ns) == (3 * SECOND // 2, 7 * SECOND // 4)
    assert case.device.state == "resident" and not case.journal.busy
    assert case.journal.spent() == ({"USD": 1_050_000}, 7 * SECOND // 4), "a closed one by what the pool says"


def test_a_cell_with_several_leases_has_their_sum(case: Case) -> None:
    span = case.ask(1)
    case.grant(1, span)
    case.close(1, 2, "moved")
    case.grant(2, span)
    assert not case.journal.settled("c1", 0)
    case.close(2, 3)
    assert case.journal.settled("c1", 0)
    (entry,) = case.journal.entries()
    assert (entry.leases, entry.device_ns, entry.cost) == (2, 5 * SECOND, {"USD": 5 * PRICE})


def test_work_that_is_done_after_the_next_cell_began_belongs_to_its_own(case: Case) -> None:
    first = case.ask(1)
    case.grant(1, first)
    second = case.ask(2)
    case.close(1, 4)
    case.grant(2, second)
    case.close(2, 1)
    assert {entry.cell: entry.device_ns for entry in case.journal.entries()} == {1: 4 * SECOND, 2: SECOND}


def test_a_grant_that_is_told_twice_counts_once(case: Case) -> None:
    span = case.ask(1)
    case.grant(1, span)
    case.grant(1, span)
    case.close(1, 1)
    (entry,) = case.journal.entries()
    assert (entry.leases, entry.open) == (1, 0)


def test_who_stops_waiting_is_where_it_was(case: Case) -> None:
    case.ask(1)
    case.queue(1)
    case.clock.go(2)
    case.page.withdrawn()
    assert case.device.state == "idle" and case.device.queued is None
    assert case.journal.entries()[0].waited_ns == 2 * SECOND
    span = case.ask(2)
    case.grant(1, span)
    case.close(1, 1)
    case.ask(3)
    case.queue(1)
    case.page.told(messages.Refused(request=1, code="budget", message="The budget is used up."), None)
    assert case.device.state == "resident"


def test_tensors_that_move_are_said_to_until_the_next_lease(case: Case) -> None:
    span = case.ask(1)
    case.grant(1, span)
    case.page.told(messages.Leave(), None)
    case.close(1, 1.0)
    assert case.device.state == "moving"
    case.grant(2, span)
    assert case.device.state == "computing"
    case.close(2, 1.0)
    assert case.device.state == "resident"


def test_a_session_that_is_lost_leaves_nothing_open(case: Case) -> None:
    case.grant(1, case.ask(1))
    case.page.over()
    assert (case.device.state, case.device.session, case.device.model) == ("idle", None, None)
    assert case.journal.settled("c1", 0) and not case.journal.busy


def test_a_pool_that_does_not_bill_costs_nothing(case: Case) -> None:
    case.grant(1, case.ask(1))
    case.page.told(messages.LeaseClosed(lease="l-1", epoch=1, reason="drained", duration_ns=SECOND), None)
    assert case.journal.spent() == ({}, SECOND)


def test_old_cells_are_forgotten_and_their_cost_is_not(case: Case) -> None:
    for number in range(1, CELLS_MAX + 11):
        case.grant(number, case.ask(number))
        case.close(number, 1)
    entries = case.journal.entries()
    assert (len(entries), entries[0].cell) == (CELLS_MAX, CELLS_MAX + 10)
    assert case.journal.spent() == ({"USD": (CELLS_MAX + 10) * PRICE}, (CELLS_MAX + 10) * SECOND)


def test_listeners_hear_of_every_change(case: Case) -> None:
    heard: list[str] = []
    case.journal.listen(lambda: heard.append(case.device.state))
    case.grant(1, case.ask(1))
    case.close(1, 1)
    assert heard == ["idle", "computing", "resident"]


def test_a_cost_that_is_not_known_yet_is_not_called_free(case: Case) -> None:
    """A pool that has just started has heard no prices, and bills all the same once it has."""
    first, second = case.ask(1), case.ask(2)
    case.grant(1, first)
    case.close(1, 2)
    case.grant(2, second)
    closed = messages.LeaseClosed(lease="l-2", epoch=2, reason="drained", duration_ns=SECOND, cost_nano=None)
    case.page.told(closed, None)
    late, early = case.journal.entries()
    english = Texts("en")
    assert amounts.cost_of(early, english) == "0.0012 USD"
    assert amounts.cost_of(late, english) == "cost: see My usage" and "not billed" not in notice.used(late, english)["text/plain"]


def test_where_nobody_bills_a_cell_is_not_billed() -> None:
    journal = Journal(Clock())
    page, free = journal.page(0), FLAVOR.model_copy(update={"price_nano_per_hour": None, "currency": None})
    page.told(messages.SessionOpened(session="s-1", flavor=free, heartbeat_seconds=1.0), None)
    span = messages.Span(id="c1", kind="cell", label="a.ipynb", cell=1)
    page.asked(span)
    model = messages.DeviceModel(kind="cpu", model="cpu-dev")
    where = {"worker": "w-1", "address": "unix:/tmp/w", "ticket": "ab" * 32, "device": model, "flavor": free}
    page.told(messages.Granted(request=1, lease="l-1", epoch=1, **where), span)
    page.told(messages.LeaseClosed(lease="l-1", epoch=1, reason="drained", duration_ns=SECOND), None)
    assert amounts.cost_of(journal.entries()[0], Texts("en")) == "not billed"
