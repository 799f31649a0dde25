"""The price list: what it says, what it changes, and that the book then says the same."""

from __future__ import annotations

import random
from typing import Any

import pytest
from forebay_billing.errors import ClosedToPrices, InvalidPriceList
from forebay_billing.model.months import Month
from forebay_billing.model.types import PARKED, ParkedPrice, PriceVersion, SurchargeVersion
from forebay_billing.rules.parked import ParkedBook
from forebay_billing.rules.price_list import STEPS_MAX, Change, PriceList, Step, changes, price_list_of, text_of, time_text
from forebay_billing.rules.prices import TIME_NS_MAX, Past, PriceBook
from hypothesis import given
from hypothesis import strategies as st
from running_billing import Running

pytestmark = pytest.mark.databases("sqlite")

NOW_NS = Month(2026, 11).start_ns + 123_456_789
DECEMBER_NS = Month(2026, 12).start_ns
LIST = """\
prices:
  "small.64gb":
    USD:
      - {nano_per_hour: 1_234_567_890}
      - from: 2026-12-01T00:00:00Z
        per_hour: 2.16
    JPY:
      - {from: 2026-11-01T00:00:00.5Z, nano_per_hour: 83000}
surcharges:
  "MI 250 \\"x\\"":
    USD: [{per_hour: 0.36}]
parked:
  USD:
    - per_gib_hour: 0.00005
"""
GPU = "@model/gpu"
FLAVORS, CURRENCIES = ("dev.1gb", "small.64gb", GPU), ("USD", "JPY")

times = st.integers(NOW_NS - 50, NOW_NS + 50)
books = st.lists(st.tuples(st.sampled_from(FLAVORS), st.sampled_from(CURRENCIES), st.integers(0, 3), times), max_size=10)
parked_books = st.lists(st.tuples(st.sampled_from(CURRENCIES), st.integers(0, 3), times), max_size=5)
steps = st.lists(st.integers(NOW_NS, NOW_NS + 50), unique=True, max_size=4).flatmap(
    lambda starts: st.tuples(*(st.integers(0, 3) for _ in range(len(starts) + 1))).map(
        lambda amounts: tuple(map(Step, [None, *sorted(starts)], amounts))
    )
)
lists = st.dictionaries(st.tuples(st.sampled_from([*FLAVORS, "new.1gb", PARKED]), st.sampled_from(CURRENCIES)), steps).map(PriceList)


def price_book(found: list[tuple[str, str, int, int]]) -> PriceBook:
    numbered = list(enumerate(found, 1))
    return PriceBook(
        (PriceVersion(f, c, n, amount, start, 0, "ann") for n, (f, c, amount, start) in numbered if f != GPU),
        (SurchargeVersion("gpu", c, n, amount, start, 0, "ann") for n, (f, c, amount, start) in numbered if f == GPU),
    )


def parked_book(found: list[tuple[str, int, int]]) -> ParkedBook:
    return ParkedBook(ParkedPrice(c, n, amount, start, 0, "ann") for n, (c, amount, start) in enumerate(found, 1))


def applied(wanted: PriceList, book: PriceBook, parked: ParkedBook, now_ns: int = NOW_NS) -> tuple[list[Change], PriceBook, ParkedBook]:
    done = changes(wanted, book, parked, lambda flavor, currency: Past(), now_ns, "ann")
    prices = [change.after for change in done if isinstance(change.after, PriceVersion)]
    of_parked = [change.after for change in done if isinstance(change.after, ParkedPrice)]
    surcharges = [change.after for change in done if isinstance(change.after, SurchargeVersion)]
    prices_after = PriceBook([*book.history(), *prices], [*book.surcharges.history(), *surcharges])
    return done, prices_after, ParkedBook([*parked.history(), *of_parked])


def amount_at(book: PriceBook, parked: ParkedBook, flavor: str, currency: str, at_ns: int) -> int | None:
    if flavor == PARKED:
        return parked.nano_per_gib_hour(currency, at_ns)
    if flavor == GPU:
        return book.surcharges.nano_per_hour("gpu", currency, at_ns)
    version = book.at(flavor, currency, at_ns)
    return None if version is None else version.amount_nano


def test_a_list_is_read_as_it_is_written() -> None:
    assert price_list_of(LIST).steps == {
        ("small.64gb", "USD"): (Step(None, 1_234_567_890), Step(DECEMBER_NS, 2_160_000_000)),
        ("small.64gb", "JPY"): (Step(Month(2026, 11).start_ns + 500_000_000, 83_000),),
        ('@model/MI 250 "x"', "USD"): (Step(None, 360_000_000),),
        (PARKED, "USD"): (Step(None, 50_000),),
    }


@given(lists, books, parked_books)
def test_after_it_is_applied_the_book_says_what_the_list_says_at_every_later_moment_and_nothing_else_changed(
    wanted: PriceList, found: list[tuple[str, str, int, int]], of_parked: list[tuple[str, int, int]]
) -> None:
    book, parked = price_book(found), parked_book(of_parked)
    _, after, parked_after = applied(wanted, book, parked)
    for flavor in (*FLAVORS, "new.1gb", PARKED):
        for currency in CURRENCIES:
            said = wanted.steps.get((flavor, currency))
            for at_ns in (*range(NOW_NS - 60, NOW_NS + 60), TIME_NS_MAX):
                before = amount_at(book, parked, flavor, currency, at_ns)
                if said is None or at_ns < NOW_NS:
                    expected = before
                else:
                    expected = [step.amount_nano for step in said if step.start_ns is None or step.start_ns <= at_ns][-1]
                assert amount_at(after, parked_after, flavor, currency, at_ns) == expected
    assert applied(wanted, after, parked_after)[0] == [], "the same list again changes nothing"


@given(books, parked_books, st.integers(0, 60))
def test_what_was_exported_changes_nothing_now_or_later(
    found: list[tuple[str, str, int, int]], of_parked: list[tuple[str, int, int]], later_ns: int
) -> None:
    book, parked = price_book(found), parked_book(of_parked)
    text = text_of(book, parked, NOW_NS)
    if "prices:\n" in text.splitlines(keepends=True):
        assert applied(price_list_of(text), book, parked, NOW_NS + later_ns)[0] == []


def test_an_export_says_what_is_in_force_and_what_is_scheduled() -> None:
    book = price_book([("dev.1gb", "USD", 30_000_000, 0), ("dev.1gb", "USD", 31_000_001, DECEMBER_NS), ("dev.1gb", "JPY", 5, DECEMBER_NS)])
    assert text_of(book, parked_book([("USD", 50_000, 0)]), NOW_NS).partition("prices:\n")[2] == (
        '  "dev.1gb":\n'
        "    JPY:\n"
        "      - {from: 2026-12-01T00:00:00Z, per_hour: 0.000000005}\n"
        "    USD:\n"
        "      - {per_hour: 0.03}\n"
        "      - {from: 2026-12-01T00:00:00Z, per_hour: 0.031000001}\n"
        "parked:\n"
        "  USD:\n"
        "    - {per_gib_hour: 0.00005}\n"
    )


@given(st.integers(0, TIME_NS_MAX))
def test_times_are_written_to_the_nanosecond(time_ns: int) -> None:
    text = f"prices: {{a: {{USD: [{{from: {time_text(time_ns)}, nano_per_hour: 1}}]}}}}"
    assert price_list_of(text).steps == {("a", "USD"): (Step(time_ns, 1),)}


def test_a_price_from_the_past_is_refused_where_it_would_change_what_was_billed() -> None:
    book = price_book([("dev.1gb", "USD", 8681, 0)])
    wanted = price_list_of("prices: {dev.1gb: {USD: [{from: 2026-10-31T00:00:00Z, nano_per_hour: 1}]}}")

    def past_of(past: Past) -> Any:
        return lambda flavor, currency: past

    with pytest.raises(ClosedToPrices, match="rated up to"):
        changes(wanted, book, ParkedBook(()), past_of(Past(NOW_NS)), NOW_NS, "ann")
    with pytest.raises(ClosedToPrices, match="The month 2026-10 is finalised"):
        changes(wanted, book, ParkedBook(()), past_of(Past(0, Month(2026, 10))), NOW_NS, "ann")
    same = price_list_of("prices: {dev.1gb: {USD: [{from: 2026-10-31T00:00:00Z, nano_per_hour: 8681}]}}")
    assert changes(same, book, ParkedBook(()), past_of(Past(NOW_NS, Month(2026, 10))), NOW_NS, "ann") == []
    (change,) = changes(wanted, book, ParkedBook(()), past_of(Past(5)), NOW_NS, "ann")
    assert change.after.valid_from_ns == Month(2026, 11).start_ns - 86_400 * 10**9


def test_a_list_that_is_applied_twice_changes_nothing_the_second_time_also_if_the_clock_of_the_pool_is_ahead() -> None:
    wanted, past = price_list_of("prices: {dev.1gb: {USD: [{nano_per_hour: 7}]}}"), Past(NOW_NS + 50)
    book = price_book([("dev.1gb", "USD", 8681, 0)])
    (change,) = changes(wanted, book, ParkedBook(()), lambda flavor, currency: past, NOW_NS, "ann")
    assert change.after.valid_from_ns == NOW_NS + 50
    after = PriceBook([*book.history(), change.after])  # type: ignore[list-item]
    assert changes(wanted, after, ParkedBook(()), lambda flavor, currency: past, NOW_NS, "ann") == []


ONE = "prices:\n  small.64gb:\n    USD:\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "Line 1 .*nothing in it"),
        ("prices: [", "Line 1 .*not YAML"),
        ("\x00", "not YAML"),
        ("prices: {}\n---\nprices: {}", "Line 3 .*second document"),
        ("- prices", "'the list' needs names"),
        ("price: {}", "Line 1 .*'price' is not known here; there is prices, surcharges, parked"),
        ("prices: {}\nprices: {}", "Line 2 .*'prices' is given twice"),
        ("prices: {}\nparked:\n  ? [a]\n  : b", "Line 3 .*a name is a plain text"),
        (ONE + "      - {nano_per_hour: 1}\n    USD:\n      - {nano_per_hour: 2}", "Line 5 .*'USD' is given twice"),
        (ONE + "      &a\n      - {nano_per_hour: 1}", "anchors"),
        (ONE + "      - {nano_per_hour: !!int 1}", "Line 4 .*tags"),
        (ONE + "      - {nano_per_hour: *a}", "Line 4 .*aliases"),
        (ONE + "      555556", "Line 4 .*prices are a list"),
        (ONE + "      []", "Line 4 .*prices are a list"),
        (ONE + "      - {nano_per_hour: 1, from: 2026-12-01T00:00:00Z}\n      - {nano_per_hour: 2}", 'Line 5 .*without "from"'),
        (
            ONE + "      - {nano_per_hour: 1, from: 2026-12-01T00:00:00Z}\n      - {nano_per_hour: 2, from: 2026-12-01T00:00:00Z}",
            "Line 5 .*begins after the one before",
        ),
        (ONE + "      - {}", "either nano_per_hour or per_hour"),
        (ONE + "      - {nano_per_hour: 1, per_hour: 1}", "either nano_per_hour or per_hour"),
        (ONE + "      - {nano_per_gib_hour: 1}", "'nano_per_gib_hour' is not known here"),
        (ONE + "      - {nano_per_hour: -1}", "'-1' is not a whole number"),
        (ONE + "      - {nano_per_hour: 1.5}", "is not a whole number"),
        (ONE + "      - {nano_per_hour: [1]}", "a single value"),
        (ONE + "      - {per_hour: 1e3}", "is not an amount"),
        (ONE + "      - {per_hour: 2.0000000006}", "2.0000000006 cannot be billed exactly: .* nearest is 2.000000001"),
        (ONE + "      - {nano_per_second: 5}", "Line 4 .*instead of nano_per_second give nano_per_hour, which is 3600 times as much"),
        (ONE + "      - {nano_per_hour: 1, from: 2026-13-01T00:00:00Z}", "is not a time in UTC"),
        (ONE + "      - {nano_per_hour: 1, from: 2026-12-01}", "is not a time in UTC"),
        (ONE + "      - {nano_per_hour: 1, from: 1969-12-31T23:59:59Z}", "is not a time in UTC"),
        ("[" * 100_000, "Line 1 .*nested more than 8 deep"),
        ("parked: {USD: [{per_gib_hour: 0.0000000001}]}", "cannot be billed exactly"),
    ],
)
def test_a_text_that_is_no_list_is_refused_with_its_line(text: str, sentence: str) -> None:
    with pytest.raises(InvalidPriceList, match=sentence) as refusal:
        price_list_of(text)
    assert str(refusal.value).endswith(".") and len(str(refusal.value)) < 300


def says_something_or_is_refused(text: str) -> bool:
    try:
        return all(steps and all(step.amount_nano >= 0 for step in steps) for steps in price_list_of(text).steps.values())
    except InvalidPriceList as refusal:
        return str(refusal).endswith(".")


@given(st.text(max_size=200) | st.lists(st.sampled_from([*LIST]), max_size=300).map("".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    assert says_something_or_is_refused(text)


def test_a_list_with_any_part_cut_out_is_read_or_refused() -> None:
    chance = random.Random(1)
    for _ in range(300):
        start, end = sorted(chance.choices(range(len(LIST)), k=2))
        assert says_something_or_is_refused(LIST[:start] + LIST[end:])


def test_a_list_of_too_many_prices_is_refused() -> None:
    text = "prices:\n  a:\n    USD:\n" + "".join(
        f"      - {{from: {time_text(n)}, nano_per_hour: {n % 2}}}\n" for n in range(STEPS_MAX + 1)
    )
    with pytest.raises(InvalidPriceList, match="at most"):
        price_list_of(text)


# Over HTTP


def put(run: Any, text: str, caller: str = "operator", **headers: str) -> Any:
    return run.request(caller, "PUT", "/api/price-list", content=text.encode(), headers=headers)


def diff(run: Any, text: str) -> Any:
    return run.request("operator", "POST", "/api/price-list/diff", content=text.encode())


def audit(run: Any, **query: Any) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = run.get("operator", "/api/audit", **query).json()["entries"]
    return entries


def test_a_list_is_exported_compared_applied_once_and_found_in_the_audit(running_anywhere: Running) -> None:
    run = running_anywhere
    exported = run.get("acme-member", "/api/price-list")
    assert exported.headers["content-type"].startswith("application/yaml")
    assert put(run, exported.text).json() == {"changes": []}
    now_ns = run.clock.now_ns
    text = LIST.replace("1_234_567_890", "2_520_000_000").replace("2026-11-01", "2026-12-24")
    text += '  JPY: [{from: "2027-01-01T00:00:00Z", per_gib_hour: 1}]\n'
    expected = [
        ("surcharge", None, "USD", "nano_per_hour", None, 360_000_000, now_ns),
        ("parked", None, "JPY", "nano_per_gib_hour", None, 10**9, Month(2027, 1).start_ns),
        ("parked", None, "USD", "nano_per_gib_hour", None, 50_000, now_ns),
        ("flavor", "small.64gb", "JPY", "nano_per_hour", None, 83_000, DECEMBER_NS + 23 * 86_400 * 10**9 + 500_000_000),
        ("flavor", "small.64gb", "USD", "nano_per_hour", 2_000_000_000, 2_520_000_000, now_ns),
        ("flavor", "small.64gb", "USD", "nano_per_hour", 2_520_000_000, 2_160_000_000, DECEMBER_NS),
    ]
    before = run.get("operator", "/api/prices", history="1").json()
    once = {"Idempotency-Key": "k"}
    for ask in (lambda: diff(run, text), lambda: put(run, text, **once), lambda: put(run, text, **once)):
        answer = ask()
        assert answer.status_code == 200, answer.text
        keys = ("kind", "flavor", "currency", "unit", "before", "after", "valid_from_ns")
        assert [tuple(change[key] for key in keys) for change in answer.json()["changes"]] == expected
        if answer.request.method == "POST":
            assert run.get("operator", "/api/prices", history="1").json() == before
    run.clock.now_ns += 10**9
    assert put(run, text).json() == diff(run, text).json() == {"changes": []}
    assert len(run.get("operator", "/api/prices", history="1").json()) == len(before) + 3
    assert [price["price_nano_per_gib_hour"] for price in run.get("acme-member", "/api/parked-prices").json()] == [10**9, 50_000]
    entries = audit(run, who="operator")
    assert [entry["subject"] for entry in entries] == [
        "small.64gb/USD", "small.64gb/USD", "small.64gb/JPY", "@parked/USD", "@parked/JPY", '@model/MI 250 "x"/USD',
    ]  # fmt: skip
    assert entries[0]["before"]["price_nano_per_hour"] == 2_520_000_000 and entries[0]["after"]["price_nano_per_hour"] == 2_160_000_000
    assert put(run, run.get("operator", "/api/price-list").text).json() == {"changes": []}


@pytest.mark.parametrize("nothing", ["[]", "[{per_hour: 0}]"])
def test_a_first_surcharge_that_was_scheduled_is_cancelled_by_the_list_and_so_is_a_first_price_of_parked_bytes(
    running: Running, nothing: str
) -> None:
    soon = "[{from: 2026-12-01T00:00:00Z, per_hour: 0.36}]"
    scheduled = f"surcharges: {{MI250: {{USD: {soon}}}}}\nparked: {{USD: {soon.replace('per_hour', 'per_gib_hour')}}}"
    assert [change["after"] for change in put(running, scheduled).json()["changes"]] == [360_000_000] * 2
    cancelled = f"surcharges: {{MI250: {{USD: {nothing}}}}}\nparked: {{USD: {nothing.replace('per_hour', 'per_gib_hour')}}}"
    changed = put(running, cancelled).json()["changes"]
    assert [(change["before"], change["after"], change["valid_from_ns"]) for change in changed] == [(360_000_000, 0, DECEMBER_NS)] * 2
    text = running.get("operator", "/api/price-list").text
    assert '"MI250":\n    USD: []\n' in text and "parked:\n  USD: []\n" in text
    assert put(running, text).json() == put(running, cancelled).json() == {"changes": []}


def test_whoever_still_sends_prices_per_second_is_told_so_in_one_sentence(running: Running) -> None:
    sentence = "prices are kept per hour: instead of {0}_nano_per_second send {0}_nano_per_hour, which is 3600 times as much."
    for kind, path in (("price", "prices/small.64gb"), ("surcharge", "surcharges/MI250")):
        body = {f"{kind}_nano_per_second": 1, "currency": "USD"}
        refused = running.request("operator", "PUT", f"/api/{path}", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid")
        assert sentence.format(kind) in refused.json()["error"]["message"]
        preview = {f"{kind}s": [{"flavor" if kind == "price" else "model": "small.64gb"} | body]}
        assert sentence.format(kind) in running.request("operator", "POST", "/api/preview", json=preview).json()["error"]["message"]


def test_a_surcharge_is_set_listed_refused_and_found_in_the_audit(running_anywhere: Running, usage: Any) -> None:
    run = running_anywhere
    assert run.get("acme-member", "/api/surcharges").json() == []
    first = run.set_surcharge("MI250", 100_000, valid_from_ns=0)
    assert (first.status_code, first.json()["version"], first.json()["changed_by"]) == (200, 1, "operator")
    assert run.set_surcharge("MI250", 5, caller="acme-owner").status_code == 403
    later = run.set_surcharge("MI250", 200_000, valid_from_ns=run.clock.now_ns + 5).json()
    in_force = {**first.json(), "etag": later["etag"]}
    assert run.get("acme-member", "/api/surcharges").json() == [in_force]
    assert run.get("acme-member", "/api/surcharges", history="1").json() == [in_force, later]
    assert run.post_usage(usage(device_model="MI250")).status_code == 200
    refused = run.set_surcharge("MI250", 1, valid_from_ns=usage().started_at_ns)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "already_rated")
    assert "Usage of MI250 in USD is rated up to 2026-11-01T01:01:00Z" in refused.json()["error"]["message"]
    run.service.store.submit(lambda books: books.finalise("acme", Month(2026, 11), run.clock.now_ns)).result()
    refused = run.set_surcharge("MI250", 1, valid_from_ns=run.clock.now_ns)
    assert "The month 2026-11 is finalised: a price of MI250 in USD from 2026-11-21T00:00:00Z on" in refused.json()["error"]["message"]
    (change, _) = audit(run, action="price.change", subject="@model/MI250/USD")
    assert change["before"]["surcharge_nano_per_hour"] == 100_000 and change["after"]["surcharge_nano_per_hour"] == 200_000
    assert [entry["after"]["code"] for entry in audit(run, action="price.change.refused")] == ["already_rated"] * 2
    bodies = ({"currency": "XYZ", "surcharge_nano_per_hour": 1}, {"currency": "USD", "surcharge_nano_per_hour": -1})
    for body in bodies:
        refused = run.request("operator", "PUT", "/api/surcharges/MI250", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_price")
    assert run.request("operator", "PUT", "/api/surcharges/MI%0A250", json=bodies[1]).status_code == 400
    assert run.get("operator", "/api/check").json() == {"differences": []}


def test_a_list_of_which_one_price_is_refused_changes_nothing_and_leaves_an_audit_row(running_anywhere: Running, usage: Any) -> None:
    run = running_anywhere
    assert run.post_usage(usage()).status_code == 200
    text = """
prices:
  "dev.1gb":
    USD: [{nano_per_hour: 1}]
  "small.64gb":
    USD: [{from: 2026-11-01T00:00:00Z, nano_per_hour: 1}]
"""
    history = run.get("operator", "/api/prices", history="1").json()
    for answer in (diff(run, text), put(run, text)):
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "already_rated")
        assert "Usage of small.64gb in USD is rated up to" in answer.json()["error"]["message"]
    assert run.get("operator", "/api/prices", history="1").json() == history
    (entry,) = audit(run, action="price-list.apply.refused")
    assert entry["who"] == "operator" and entry["after"]["asked"]["text"] == text and entry["after"]["code"] == "already_rated"


def test_a_price_that_would_change_a_closed_period_is_refused_by_name_with_an_audit_row(running_anywhere: Running) -> None:
    run = running_anywhere
    run.service.store.submit(lambda books: books.finalise("acme", Month(2026, 10), run.clock.now_ns)).result()
    for body in ({"valid_from_ns": Month(2026, 10).end_ns - 1}, {"valid_from_ns": 5}):
        refused = run.set_price("small.64gb", price_nano_per_hour=1, currency="USD", **body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "already_rated")
        message = refused.json()["error"]["message"]
        assert "The month 2026-10 is finalised" in message and "closed period" in message
    refusals = audit(run, action="price.change.refused", subject="small.64gb/USD")
    assert [entry["after"]["code"] for entry in refusals] == ["already_rated"] * 2
    assert audit(run, action="price.change.refused", subject="small.64gb") == refusals, "of a flavor: in whichever currency"
    assert audit(run, subject="small_64gb") == audit(run, subject="small") == []
    assert run.get("operator", "/api/prices", flavor="small.64gb").json()[0]["version"] == 1
    open_month = {"price_nano_per_hour": 1, "currency": "USD", "valid_from_ns": Month(2026, 10).end_ns}
    assert run.set_price("small.64gb", **open_month).json()["version"] == 2


@pytest.mark.parametrize(
    ("currency", "body", "status", "code"),
    [
        ("USD", {"price_nano_per_gib_hour": -1}, 400, "invalid_price"),
        ("XYZ", {"price_nano_per_gib_hour": 1}, 400, "invalid_price"),
        ("USD", {"price_nano_per_gib_hour": 1, "valid_from_ns": -1}, 400, "invalid_price"),
        ("USD", {"price_nano_per_gib_hour": 1.5}, 400, "invalid"),
        ("USD", {}, 400, "invalid"),
    ],
)
def test_a_bad_price_of_parked_bytes_is_refused(running: Running, currency: str, body: dict[str, Any], status: int, code: str) -> None:
    refused = running.request("operator", "PUT", f"/api/parked-prices/{currency}", json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)
    assert running.get("operator", "/api/parked-prices").json() == []
    assert len(audit(running, action="price.change.refused")) == (code != "invalid")


def test_a_body_that_is_no_list_is_refused(running: Running) -> None:
    for content, status, code in ((b"\xff", 400, "invalid"), (b"x", 400, "invalid_price_list"), (b"#" * 300_000, 413, "too_large")):
        refused = running.request("operator", "PUT", "/api/price-list", content=content)
        assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)


def test_the_audit_is_read_in_pages_newest_first(running: Running) -> None:
    for price in range(5):
        running.clock.now_ns += 1
        running.set_price("dev.1gb", price_nano_per_hour=price, currency="USD")
    seen: list[int] = []
    cursor: dict[str, Any] = {}
    while True:
        page = running.get("operator", "/api/audit", who="operator", limit=2, **cursor).json()
        seen += [entry["after"]["price_nano_per_hour"] for entry in page["entries"]]
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
    assert seen == [4, 3, 2, 1, 0]
    now_ns = running.clock.now_ns
    within = audit(running, since_ns=now_ns - 2, until_ns=now_ns)
    assert [entry["after"]["price_nano_per_hour"] for entry in within] == [3, 2]
    assert audit(running, who="nobody") == [] and audit(running, subject="x") == []
    assert running.get("operator", "/api/audit", limit=0).json()["error"]["code"] == "invalid"
