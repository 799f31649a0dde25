"""What the writer remembers is never stale, and a kill around a commit leaves all of a change or nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotAnswered
from typing import Any

import pytest
from forebay_billing import failpoints
from forebay_billing.errors import RecordConflict, Unpriced
from forebay_billing.ledger.books import Books, Memory
from forebay_billing.ledger.postings import receivable
from forebay_billing.ledger.writer import Committer, Job, Share, Writer
from forebay_billing.model.months import Month
from forebay_billing.model.types import Cost, Payer, UsageRecord
from forebay_billing.reads import checks
from forebay_billing.tables import schema
from forebay_billing.tables.engines import Engines, reading, writing
from forebay_billing.writes import prices as prices_writes
from forebay_billing.writes import usage as usage_writes

NOW_NS = Month(2026, 12).start_ns


class Killed(BaseException):
    """What no code of the service catches."""


def posting(*records: UsageRecord) -> Callable[[Books], usage_writes.Accepted]:
    return lambda books: usage_writes.post_usage(books, records, lambda tenant: "USD", lambda: NOW_NS)


def test_what_another_process_wrote_in_between_is_seen(usage: Callable[..., UsageRecord], fresh_books: Callable[[], Any]) -> None:
    memory = Memory()
    with fresh_books() as engines:
        with writing(engines) as connection:
            posting(usage("a/1"))(Books(connection, memory))
        assert memory.book is not None and memory.accounts and memory.finalised
        with writing(engines) as connection:
            other = Books(connection)
            prices_writes.change_price(other, "small.64gb", "USD", 7, None, lambda: NOW_NS, "operator")
            other.finalise("acme", Month(2026, 12), NOW_NS)
            posting(usage("b/1", tenant="globex"))(other)
        with writing(engines) as connection:
            books = Books(connection, memory)
            done = posting(usage("c/1", tenant="globex", started_at_ns=NOW_NS), usage("d/1", started_at_ns=NOW_NS))(books)
            assert {payer.tenant: cost.grains for payer, cost in done.costs.items()} == {"globex": 60 * 7 * 10**9, "acme": 60 * 7 * 10**9}
            assert books.finalised("acme") == {Month(2026, 12)}
            assert books.account_ids([receivable("globex")]) == Books(connection).account_ids([receivable("globex")])
            assert checks.differences(connection) == []


def test_what_a_refused_write_had_read_into_memory_is_forgotten(usage: Callable[..., UsageRecord], fresh_books: Callable[[], Any]) -> None:
    def opened_then_refused(books: Books) -> None:
        books.account_ids([receivable("umbrella")])
        books.finalise("acme", Month(2026, 11), NOW_NS)
        raise Unpriced("no")

    with fresh_books() as engines:
        writer = Writer(engines, lambda jobs, seconds: None)
        try:
            assert isinstance(writer.submit(opened_then_refused).exception(30), Unpriced)
            assert writer.submit(posting(usage("a/1"), usage("b/1", tenant="globex"))).result(30).accepted == 2
        finally:
            writer.close()
        with reading(engines) as connection:
            assert checks.differences(connection) == []
            assert {row.period for row in connection.execute(schema.segments.select())} == {"2026-11"}


class Counting:
    """Posts usage for many callers at once, and notes for how many each time."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def post(self, books: Books, batches: Sequence[Sequence[UsageRecord]]) -> list[usage_writes.Accepted]:
        self.batches.append(len(batches))
        return usage_writes.post_batches(books, batches, lambda tenant: "USD", lambda: NOW_NS)

    def job(self, *records: UsageRecord) -> Job:
        return Job(lambda books: self.post(books, [records])[0], Future(), Share(self.post, records))


def test_what_waits_side_by_side_is_posted_as_one(usage: Callable[..., UsageRecord], fresh_books: Callable[[], Any]) -> None:
    counting = Counting()
    with fresh_books() as engines:
        jobs = [
            counting.job(usage("a/1"), usage("b/1")),
            counting.job(usage("b/1"), usage("c/1", tenant="globex")),
            Job(lambda books: books.append_audit(NOW_NS, "ann", "test", "test", None, {}), Future()),
            counting.job(usage("a/1"), usage("d/1", duration_ns=1)),
        ]
        Committer(engines, lambda jobs, seconds: None).commit(jobs)
        price, acme, globex = 2_000_000_000, *(Payer(tenant, "small.64gb", "USD") for tenant in ("acme", "globex"))
        assert [jobs[n].future.result(0) for n in (0, 1, 3)] == [
            usage_writes.Accepted(2, 0, {acme: Cost(2 * 60 * 10**9, 2 * 60 * 10**9 * price)}),
            usage_writes.Accepted(1, 1, {globex: Cost(60 * 10**9, 60 * 10**9 * price)}),
            usage_writes.Accepted(1, 1, {acme: Cost(1, price)}),
        ]
        assert counting.batches == [2, 1]
        with reading(engines) as connection:
            assert checks.differences(connection) == []
            assert len(connection.execute(schema.transactions.select()).all()) == 2


def test_a_refusal_among_what_is_posted_as_one_takes_only_itself_back(
    usage: Callable[..., UsageRecord], fresh_books: Callable[[], Any]
) -> None:
    counting = Counting()
    with fresh_books() as engines:
        jobs = [
            counting.job(usage("a/1")),
            counting.job(usage("x/1"), usage("y/1", flavor="unknown")),
            counting.job(usage("b/1", tenant="globex"), usage("a/1", user="somebody-else")),
            counting.job(usage("c/1")),
        ]
        Committer(engines, lambda jobs, seconds: None).commit(jobs)
        assert [type(job.future.exception(0)) for job in jobs] == [type(None), Unpriced, RecordConflict, type(None)]
        with reading(engines) as connection:
            assert {row.record_id for row in connection.execute(schema.usage.select())} == {"a/1", "c/1"}
            assert checks.differences(connection) == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(("point", "durable"), [("commit.before", 0), ("commit.after", 1)])
def test_a_kill_around_a_commit_leaves_all_or_nothing_and_the_same_again_is_billed_once(
    usage: Callable[..., UsageRecord], fresh_books: Callable[[], Any], point: str, durable: int
) -> None:
    def kill(name: str) -> None:
        if name == point:
            raise Killed

    def deliver(engines: Engines) -> usage_writes.Accepted | None:
        writer = Writer(engines, lambda jobs, seconds: None)
        try:
            return writer.submit(posting(usage("a/1"))).result(1)
        except NotAnswered:
            return None
        finally:
            writer.close()

    with fresh_books() as engines:
        with failpoints.armed(kill):
            assert deliver(engines) is None
        again = deliver(engines)
        assert again is not None and (again.accepted, again.duplicates) == (1 - durable, durable)
        with reading(engines) as connection:
            assert checks.differences(connection) == []
