"""Invoices in the books, on both databases: numbers, order of delivery, credits, notes, payments, and the ledger that says the same."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

import pytest
from forebay_billing.errors import InvalidCredit, LedgerError, NotNow, UnknownInvoice
from forebay_billing.ledger.books import Books
from forebay_billing.ledger.postings import PAYMENTS, credit_of, receivable
from forebay_billing.model.money import GRAINS_PER_UNIT, grains_of_minor
from forebay_billing.model.months import Month
from forebay_billing.model.types import UsageRecord
from forebay_billing.payments.objects import Known
from forebay_billing.payments.payment_sink import BookedPayments
from forebay_billing.reads import checks, plans, profiles
from forebay_billing.reads import invoices as invoices_reads
from forebay_billing.reads import usage as usage_reads
from forebay_billing.reads.invoices import Invoice, Issuer
from forebay_billing.rules.invoices import Profile
from forebay_billing.rules.plans import Terms
from forebay_billing.tables.engines import Engines, open_engines, reading, writing
from forebay_billing.tables.invoices import credit_moves, credit_notes
from forebay_billing.writes import credits, invoices
from forebay_billing.writes import prices as prices_writes
from forebay_billing.writes import usage as usage_writes
from forebay_billing.writes.invoices import Conditions
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import insert, text
from sqlalchemy.exc import DBAPIError

pytestmark = pytest.mark.databases("sqlite")

HOUR_NS = 3600 * 10**9
NOVEMBER, DECEMBER = Month(2026, 11), Month(2026, 12)
LATER_NS = DECEMBER.start_ns + 4 * 24 * HOUR_NS
TEN_PERCENT = Terms("USD", discount_bps=1000)
CONDITIONS = Conditions(Issuer("Forebay Cloud"))
ACME = Profile("acme", "Acme Ltd", "1 Road", "DE1", "VAT", 1900)


def post(books: Books, *records: UsageRecord) -> None:
    usage_writes.post_usage(books, list(records), lambda tenant: "USD", lambda: LATER_NS)


def finalise(books: Books, tenant: str = "acme", month: Month = NOVEMBER) -> Any:
    return invoices.finalise(books, tenant, month, CONDITIONS, "operator", LATER_NS)


def grant(books: Books, amount: int, kind: Any = "prepaid", **changes: Any) -> Any:
    values: dict[str, Any] = {"priority": 0, "effective_at_ns": 0, "expires_at_ns": None} | changes
    return credits.grant(
        books, "acme", kind, "Welcome", "USD", amount, values["priority"], values["effective_at_ns"], values["expires_at_ns"], "operator",
        NOVEMBER.start_ns, False,
    )  # fmt: skip


def plan(books: Books, tenant: str = "acme", terms: Terms = TEN_PERCENT, month: Month = NOVEMBER) -> None:
    plans.change_plan(books, tenant, terms, month, "USD", 1, "operator", new=True)


def sound(books: Books) -> bool:
    return checks.differences(books.connection) == []


@pytest.fixture
def engines(migrated_url: str) -> Iterator[Engines]:
    opened = open_engines(migrated_url, 5)
    with writing(opened) as connection:
        prices_writes.seed(Books(connection), 1)
        plan(Books(connection))
    yield opened
    opened.dispose()


@pytest.fixture
def books(engines: Engines) -> Iterator[Books]:
    with writing(engines) as connection:
        yield Books(connection)


@pytest.fixture
def billed(books: Books, usage: Callable[..., UsageRecord]) -> Any:
    """An hour of acme's, with tax and plan, finalised: 2.00."""
    profiles.change(books, ACME, "operator", 1)
    post(books, usage(duration_ns=HOUR_NS), usage("other/1", tenant="globex", user="globex-owner"))
    return finalise(books)[0]


def test_an_invoice_is_what_was_drafted_and_the_ledger_says_the_same(books: Books, usage: Callable[..., UsageRecord]) -> None:
    profiles.change(books, ACME, "operator", 1)
    grant(books, 50, "promotional")
    grant(books, 100)
    post(books, usage(duration_ns=HOUR_NS))
    (draft,) = invoices_reads.drafts(books.connection, "acme", NOVEMBER)
    (made,) = finalise(books)
    assert made.draft == draft and made.issuer == Issuer("Forebay Cloud") and made.name == "INV-000001"
    found = [(line.kind, line.amount_minor) for line in made.draft.lines]
    assert found == [("usage", 200), ("discount", -20), ("promotional", -50), ("tax", 25), ("prepaid", -100)]
    assert made.state == "open" and made.open_minor == 55
    accounts = (receivable("acme"), "tax", "discount", "rounding")
    stands = {name: usage_reads.posted(books.connection, name, NOVEMBER)["USD"] for name in accounts}
    cents = GRAINS_PER_UNIT // 100
    assert stands == {receivable("acme"): 55 * cents, "tax": -25 * cents, "discount": 20 * cents, "rounding": 0}
    assert usage_reads.posted(books.connection, credit_of("acme"), None) == {"USD": 0}
    assert sound(books)


def test_finalising_twice_gives_the_same_invoice_and_moves_nothing(books: Books, billed: Invoice) -> None:
    before = usage_reads.posted(books.connection, receivable("acme"), None)
    assert finalise(books) == [billed]
    assert usage_reads.posted(books.connection, receivable("acme"), None) == before
    assert finalise(books, "globex")[0].name == "INV-000002"


def test_a_statement_is_still_proven_after_invoice_and_payment(books: Books, billed: Invoice) -> None:
    invoices.pay(books, billed.name, 100, "bank", "1", "operator", LATER_NS)
    statement = usage_reads.statement(books.connection, "acme", None, NOVEMBER, LATER_NS)
    assert [total.amount_minor for total in statement.totals] == [200]


def test_late_usage_goes_to_the_next_invoice_and_is_named_there(books: Books, billed: Invoice, usage: Callable[..., UsageRecord]) -> None:
    post(books, usage("late/1", duration_ns=HOUR_NS))
    assert invoices_reads.invoice(books.connection, billed.name, None) == billed
    (draft,) = invoices_reads.drafts(books.connection, "acme", DECEMBER)
    (line, *_) = draft.lines
    assert line.usage is not None and line.usage.late and line.label == "small.64gb for acme-member (late)"


def test_a_month_is_finalised_when_it_is_over_and_those_before_it_are(books: Books, usage: Callable[..., UsageRecord]) -> None:
    october = Month(2026, 10)
    post(books, usage(), usage("before/1", started_at_ns=october.start_ns), usage("now/1", started_at_ns=DECEMBER.start_ns))
    with pytest.raises(NotNow, match="2026-10 of the tenant acme is open"):
        finalise(books)
    with pytest.raises(NotNow, match="is not over"):
        finalise(books, month=DECEMBER)
    assert [finalise(books, month=month)[0].name for month in (october, NOVEMBER)] == ["INV-000001", "INV-000002"]
    assert finalise(books, "nobody") == []


def test_a_commitment_is_invoiced_for_a_month_without_usage(books: Books) -> None:
    plan(books, "idle", Terms("USD", commitment_nano=10**9), Month(2026, 10))
    assert invoices_reads.tenants_with_open_months(books.connection, NOVEMBER) == ["idle"]
    assert invoices_reads.open_months(books.connection, "idle", NOVEMBER) == [Month(2026, 10), NOVEMBER]
    with pytest.raises(NotNow, match="2026-10"):
        finalise(books, "idle")
    for month in (Month(2026, 10), NOVEMBER):
        (made,) = finalise(books, "idle", month)
        assert [(line.kind, line.amount_minor) for line in made.draft.lines] == [("commitment", 100)]
    assert invoices_reads.tenants_with_open_months(books.connection, NOVEMBER) == [] and sound(books)


def test_less_than_half_of_the_smallest_coin_is_no_invoice_and_keeps_no_later_month_open(books: Books) -> None:
    plan(books, "idle", Terms("USD", commitment_nano=4_999_999), Month(2026, 9))
    plan(books, "idle", Terms("USD", commitment_nano=5_000_001), NOVEMBER)
    assert finalise(books, "idle", Month(2026, 10)) == []
    assert invoices_reads.open_months(books.connection, "idle", NOVEMBER) == [NOVEMBER]
    (made,) = finalise(books, "idle")
    assert [(line.kind, line.amount_minor) for line in made.draft.lines] == [("commitment", 1)] and sound(books)


def test_a_month_without_usage_or_commitment_has_no_invoice_although_there_is_a_plan_and_a_tax(books: Books) -> None:
    plan(books)
    profiles.change(books, ACME, "operator", 1)
    assert invoices_reads.drafts(books.connection, "acme", NOVEMBER) == []
    assert finalise(books) == []
    assert books.finalised("acme") == frozenset()


def test_credits_of_a_draft_are_those_that_earlier_drafts_leave(books: Books, usage: Callable[..., UsageRecord]) -> None:
    grant(books, 250)
    post(books, usage(duration_ns=HOUR_NS), usage("next/1", started_at_ns=DECEMBER.start_ns, duration_ns=HOUR_NS))
    (draft,) = invoices_reads.drafts(books.connection, "acme", DECEMBER)
    assert [line.amount_minor for line in draft.lines] == [200, -20, -70]


def test_what_corrections_leave_owed_is_carried_over_to_the_next_month(books: Books, billed: Invoice) -> None:
    usage_writes.correct(books, "pool", "lease-1/1", "wrong", lambda: LATER_NS, "operator")
    january = Month(2027, 1)
    (made,) = invoices.finalise(books, "acme", DECEMBER, CONDITIONS, "operator", january.start_ns)
    assert made.draft.total_minor == 0 and made.state == "paid"
    (credit,) = invoices_reads.credits_of(books.connection, "acme")
    assert (credit.grant.kind, credit.left_minor, credit.name) == ("prepaid", 214, "Carried over from INV-000002")
    assert sound(books)


def test_credit_notes_have_their_own_numbers_and_never_exceed_the_invoice(books: Books, billed: Invoice) -> None:
    total = billed.draft.total_minor
    assert (total, billed.draft.tax_minor) == (214, 34)
    notes = [invoices.take_back(books, billed.name, part, "ours", CONDITIONS, "operator", LATER_NS) for part in (100, 100)]
    with pytest.raises(InvalidCredit, match=r"0\.14 can be taken back"):
        invoices.take_back(books, billed.name, 15, "ours", CONDITIONS, "operator", LATER_NS)
    notes.append(invoices.take_back(books, billed.name, 14, "ours", CONDITIONS, "operator", LATER_NS))
    assert [note.name for note in notes] == ["CN-000001", "CN-000002", "CN-000003"]
    assert sum(note.tax_minor for note in notes) == 34
    after = invoices_reads.invoice(books.connection, billed.name, None)
    assert (after.open_minor, after.state) == (0, "paid") and sound(books)
    assert usage_reads.posted(books.connection, "tax", NOVEMBER) == {"USD": 0}


def test_of_an_invoice_that_prepaid_credit_has_paid_mostly_the_notes_have_tax_at_its_rate(
    books: Books, usage: Callable[..., UsageRecord]
) -> None:
    """What a part of the supply was is not changed by who paid for it, and when."""
    profiles.change(books, ACME, "operator", 1)
    grant(books, 200)
    post(books, usage(duration_ns=HOUR_NS))
    (made,) = finalise(books)
    assert (made.draft.net_minor, made.draft.tax_minor, made.draft.credit_minor, made.draft.total_minor) == (180, 34, -200, 14)
    notes = [invoices.take_back(books, made.name, part, "ours", CONDITIONS, "operator", LATER_NS) for part in (4, 3)]
    assert [(note.net_minor, note.tax_minor) for note in notes] == [(3, 1), (3, 0)]
    invoices.void(books, made.name, "a gesture", "operator", LATER_NS)
    assert usage_reads.posted(books.connection, "tax", NOVEMBER) == {"USD": -grains_of_minor(34 - 2, "USD")}
    assert sound(books)


def test_payments_refunds_and_voids_are_in_the_ledger(books: Books, billed: Invoice) -> None:
    name = billed.name
    paid = invoices.pay(books, name, 214, "bank", "transfer 1", "operator", LATER_NS)
    assert (paid.state, paid.open_minor, paid.paid_minor) == ("paid", 0, 214)
    with pytest.raises(InvalidCredit, match=r"0\.00 is open"):
        invoices.pay(books, name, 1, "bank", "transfer 2", "operator", LATER_NS)
    with pytest.raises(NotNow, match="only an open one"):
        invoices.void(books, name, "x", "operator", LATER_NS)
    invoices.take_back(books, name, 14, "ours", CONDITIONS, "operator", LATER_NS)
    with pytest.raises(InvalidCredit, match=r"0\.14 is owed"):
        invoices.refund(books, name, 15, "bank", "back", "operator", LATER_NS)
    back = invoices.refund(books, name, 14, "bank", "back", "operator", LATER_NS)
    assert (back.open_minor, back.paid_minor) == (0, 200)
    assert usage_reads.posted(books.connection, PAYMENTS, None) == {"USD": grains_of_minor(200, "USD")}
    (other,) = finalise(books, "globex")
    gone = invoices.void(books, other.name, "a mistake", "operator", LATER_NS)
    assert (gone.state, gone.open_minor) == ("void", 0) and sound(books)
    with pytest.raises(NotNow, match="is void"):
        invoices.take_back(books, other.name, 1, "x", CONDITIONS, "operator", LATER_NS)


@pytest.mark.parametrize("noted_first", [True, False])
def test_who_pays_at_stripe_what_a_credit_note_takes_back_is_owed_it_in_either_order(
    books: Books, billed: Invoice, noted_first: bool
) -> None:
    total = billed.draft.total_minor
    at_stripe = Known("invoice", billed.name, "acme", "in_1", "paid", LATER_NS, "USD", total, total)
    acts = [
        lambda: invoices.take_back(books, billed.name, 7, "a fault of ours", CONDITIONS, "operator", LATER_NS),
        lambda: BookedPayments(lambda: LATER_NS)(books.connection, None, at_stripe),
    ]
    for act in acts if noted_first else acts[::-1]:
        act()
        books.look_again()
    found = invoices_reads.invoice(books.connection, billed.name, None)
    assert (found.paid_minor, found.open_minor, found.state) == (total, -7, "paid")
    assert sound(books)


def test_a_payment_of_the_same_reference_is_written_down_once(books: Books, billed: Invoice) -> None:
    invoices.pay(books, billed.name, 10, "bank", "transfer 1", "operator", LATER_NS)
    with pytest.raises(NotNow, match="written down already"):
        invoices.pay(books, billed.name, 10, "bank", "transfer 1", "operator", LATER_NS)


def test_prepaid_credit_is_refunded_once_nothing_may_need_it(books: Books, usage: Callable[..., UsageRecord]) -> None:
    credit, gift = grant(books, 300), grant(books, 10, "promotional")
    post(books, usage(duration_ns=HOUR_NS))

    def refund(id: int, amount: int | None = None) -> Any:
        return credits.refund(books, id, amount, "asked for", "operator", LATER_NS)

    with pytest.raises(NotNow, match="not finalised"):
        refund(credit.grant.id)
    finalise(books)
    with pytest.raises(NotNow, match="promotional"):
        refund(gift.grant.id)
    assert refund(credit.grant.id, 20).left_minor == 100
    with pytest.raises(InvalidCredit, match=r"1\.00 is left"):
        refund(credit.grant.id, 101)
    assert refund(credit.grant.id).left_minor == 0 and sound(books)


def test_credit_expires_after_the_months_that_could_use_it(books: Books, usage: Callable[..., UsageRecord]) -> None:
    expires_ns = NOVEMBER.start_ns + 3 * HOUR_NS
    grant(books, 150, "promotional", expires_at_ns=expires_ns)
    post(books, usage(duration_ns=HOUR_NS // 2))
    assert credits.expire(books, NOVEMBER.end_ns, LATER_NS) == 0
    finalise(books)
    assert credits.expire(books, expires_ns - 1, LATER_NS) == 0
    assert credits.expire(books, NOVEMBER.end_ns, LATER_NS) == 1
    assert credits.expire(books, NOVEMBER.end_ns, LATER_NS) == 0
    assert invoices_reads.credits_of(books.connection, "acme")[0].left_minor == 0 and sound(books)


@pytest.mark.parametrize(
    "changes", [{"amount": 0}, {"amount": 10**16}, {"priority": 101}, {"expires_at_ns": NOVEMBER.start_ns}, {"effective_at_ns": -1}]
)
def test_a_credit_that_cannot_be_is_refused(books: Books, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidCredit):
        grant(books, **({"amount": 1} | changes))


def test_the_currency_of_a_profile_stays_once_there_is_usage(books: Books, usage: Callable[..., UsageRecord]) -> None:
    profiles.change(books, replace(ACME, currency="EUR"), "operator", 1)
    assert (books.currency_of("acme", "USD"), books.currency_of("globex", "USD")) == ("EUR", "USD")
    prices_writes.change_price(books, "small.64gb", "EUR", 7, 0, lambda: 1, "operator")
    usage_writes.post_usage(books, [usage()], lambda tenant: books.currency_of(tenant, "USD"), lambda: LATER_NS)
    with pytest.raises(NotNow, match="currency stays"):
        profiles.change(books, ACME, "operator", 2)
    assert profiles.change(books, replace(ACME, currency="EUR", tax_bps=0), "operator", 2).version == 2
    assert finalise(books)[0].draft.currency == "EUR"


def test_an_invoice_whose_ledger_differs_is_refused_and_the_month_stays_open(engines: Engines, usage: Callable[..., UsageRecord]) -> None:
    with writing(engines) as connection:
        post(Books(connection), usage())
        acme = "(SELECT id FROM accounts WHERE name = 'receivable:acme')"
        connection.execute(text(f"UPDATE balances SET grains = grains + 1 WHERE account_id = {acme}"))  # noqa: S608 - our account
    with pytest.raises(LedgerError, match="stays open"), writing(engines) as connection:
        finalise(Books(connection))
    with reading(engines) as connection:
        assert invoices_reads.invoices_of(connection, None) == []


def test_the_check_finds_an_invoice_and_a_credit_that_the_ledger_does_not_have(books: Books, billed: Invoice) -> None:
    grant(books, 100)
    books.connection.execute(text("UPDATE balances SET milli = milli + 1 WHERE period = '2026-11'"))
    between = {difference.between for difference in checks.differences(books.connection)}
    assert {"invoices and balances", "credits and balances"} <= between


def test_the_database_refuses_gaps_and_excess(books: Books, billed: Invoice) -> None:
    credit = grant(books, 5)
    common = {"transaction_id": 1, "reason": "x"}
    note = {"series": "CN", "invoice_id": billed.id, "tax_minor": 0, "issued_at_ns": 1, "issued_by": "x"} | common
    move = {"grant_id": credit.grant.id, "kind": "refund", "invoice_id": None, "moved_at_ns": 1, "moved_by": "x"} | common
    for table, row, sentence in (
        (credit_notes, note | {"id": 1, "number": 2, "name": "CN-2", "amount_minor": 1}, "leave a gap"),
        (credit_notes, note | {"id": 1, "number": 1, "name": "CN-1", "amount_minor": 215}, "taken back than was asked"),
        (credit_moves, move | {"id": 1, "amount_minor": 6}, "used than was granted"),
    ):
        savepoint = books.connection.begin_nested()
        with pytest.raises(DBAPIError, match=sentence):
            books.connection.execute(insert(table).values(**row))
        savepoint.rollback()


@pytest.mark.databases("sqlite", "postgresql")
def test_finalisers_at_the_same_time_leave_no_gap_and_make_no_invoice_twice(engines: Engines, usage: Callable[..., UsageRecord]) -> None:
    """Each with connections of its own, as several services would; every third one fails after its invoice was written."""
    tenants = [f"tenant-{n}" for n in range(6)]
    with writing(engines) as connection:
        post(Books(connection), *(usage(f"{tenant}/1", tenant=tenant) for tenant in tenants))
    url, failures, start = engines.writer.url.render_as_string(hide_password=False), [], threading.Barrier(4)

    def work(worker: int) -> None:
        own = open_engines(url, 20)
        start.wait()
        for turn, tenant in enumerate(tenants[worker:] + tenants[:worker]):
            try:
                with writing(own) as connection:
                    finalise(Books(connection), tenant)
                    if (turn + worker) % 3 == 0:
                        raise RuntimeError("killed")
            except RuntimeError:
                pass
            except Exception as error:
                failures.append(error)
        own.dispose()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with writing(engines) as connection:
        for tenant in tenants:
            finalise(Books(connection), tenant)
        found = invoices_reads.invoices_of(connection, None)
        assert checks.differences(connection) == []
    assert [about.name for about in reversed(found)] == [f"INV-{n:06d}" for n in range(1, 7)]
    assert sorted(about.tenant for about in found) == tenants


def test_every_line_leads_to_its_cells(books: Books, usage: Callable[..., UsageRecord]) -> None:
    post(books, usage("a/1", duration_ns=2 * HOUR_NS), usage("b/1"), usage("c/1", user="acme-owner"))
    prices_writes.change_surcharge(books, "gpu", "USD", 5, 0, lambda: 0, "operator")
    post(books, usage("d/1", device_model="gpu"))
    usage_writes.correct(books, "pool", "b/1", "wrong", lambda: NOVEMBER.start_ns, "operator")
    (made,) = finalise(books)
    for line in made.draft.lines:
        cells, rest = [], 0
        while rest is not None:
            page, rest = invoices_reads.cells(books.connection, made.draft, line, 1, rest)
            cells += page
        if line.usage is not None:
            assert sum(cell.cost_grains for cell in cells) == line.cost_grains
            assert sum(cell.duration_ns for cell in cells) == line.usage.duration_ns
            assert all((cell.label, cell.cell) == ("digits.ipynb", 3) for cell in cells)
        else:
            assert len(cells) == 4
    grant(books, 1)
    with pytest.raises(UnknownInvoice):
        invoices_reads.line_of(made.draft, "tax")


@settings(settings.get_profile("costly"))
@given(st.randoms(use_true_random=False), st.integers(0, 400), st.integers(0, 400))
def test_the_order_and_repetition_of_deliveries_make_the_same_invoice(
    fresh_books: Any, usage: Callable[..., UsageRecord], chance: random.Random, prepaid: int, gift: int
) -> None:
    records = [
        usage(
            f"lease-{n}/1", user=f"user-{n % 3}", flavor=("small.64gb", "dev.1gb")[n % 2], device_model=("cpu-dev", "gpu")[n % 2],
            started_at_ns=NOVEMBER.start_ns + n * 50 * HOUR_NS, duration_ns=(n + 1) * 1_234_567_891_011,
        )
        for n in range(6)
    ]  # fmt: skip
    deliveries = [[record] for record in records] + [chance.sample(records, 3), [chance.choice(records)]]
    chance.shuffle(deliveries)
    made = []
    for batches in ([records], deliveries):
        with fresh_books() as opened, writing(opened) as connection:
            books = Books(connection)
            prices_writes.change_surcharge(books, "gpu", "USD", 7, 0, lambda: 0, "operator")
            profiles.change(books, ACME, "operator", 1)
            plan(books)
            if prepaid:
                grant(books, prepaid)
            if gift:
                grant(books, gift, "promotional", priority=1, expires_at_ns=NOVEMBER.start_ns + 100 * HOUR_NS)
            for batch in batches:
                post(books, *batch)
            (found,) = finalise(books)
            stands = usage_reads.posted(connection, receivable("acme"), NOVEMBER)
            assert stands == {"USD": grains_of_minor(sum(line.amount_minor for line in found.draft.lines), "USD")}
            assert all(credit.left_minor >= 0 for credit in invoices_reads.credits_of(connection, None))
            assert checks.differences(connection) == []
            made.append(asdict(found))
    assert made[0] == made[1]
