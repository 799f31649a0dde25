"""The flavor editor: what a form means, and a price's way from the page to the price book and the next lease."""

from __future__ import annotations

import re
from typing import Any

import pytest
from dashboards_installation import Installation, eventually
from forebay_dashboards.errors import FormError
from forebay_dashboards.forms.flavor import (
    Edit,
    Editor,
    FlavorRow,
    NewPrice,
    Typed,
    Unsaved,
    format_equivalents,
    judge,
    open_editor,
    parse_equivalents,
    reopen,
    table,
)
from forebay_dashboards.rows.bases import Equivalent
from forebay_dashboards.rows.billing import PriceVersion
from forebay_dashboards.rows.pool import Flavor
from forebay_service.languages import Text
from hypothesis import given
from hypothesis import strategies as st

FLAVOR = Flavor(name="dev.1gb", memory_bytes=2**30, equivalents=(Equivalent(model="cpu-dev", count=1),), servable=True, etag='"f"')
PRICE = PriceVersion(flavor="dev.1gb", price_nano_per_hour=360_000_000, currency="USD", valid_from_ns=0, version=4, etag='"4"')
ROW = FlavorRow("dev.1gb", FLAVOR, (PRICE,), {"USD": "4"})
UNCHANGED = {"memory": "1 GiB", "equivalents": "1 cpu-dev", "price": "0.36", "currency": "USD", "stamp": "4", "flavor_stamp": "f"}


def judged(**changes: Any) -> Editor | Edit:
    return judge(ROW, Typed.model_validate({**UNCHANGED, **changes}))


def problems(**changes: Any) -> dict[str, str]:
    editor = judged(**changes)
    assert isinstance(editor, Editor)
    return {**editor.problems, **{f"price {field.currency}".strip(): field.problem for field in editor.prices if field.problem}}


def test_the_form_opens_with_the_values_in_force_and_saving_it_changes_nothing() -> None:
    editor = open_editor(ROW)
    assert (editor.memory, editor.equivalents) == ("1 GiB", "1 cpu-dev")
    assert [(field.currency, field.text) for field in editor.prices] == [("USD", "0.36"), ("", "")]
    assert [field.stamp for field in editor.prices] == ["4", ""] and editor.flavor_stamp == "f"
    assert judged() == Edit(2**30, FLAVOR.equivalents, flavor_changed=False, prices=(), flavor_stamp="f")


def test_the_boxes_say_what_a_flavor_offers_and_a_form_without_them_leaves_it() -> None:
    row = FlavorRow("dev.1gb", FLAVOR.model_copy(update={"runtimes": ("torch", "exec")}), (PRICE,), {"USD": "4"})
    assert open_editor(row).runtimes == ("torch", "exec") and open_editor(ROW).runtimes == ()
    for ticked, offered in (
        (None, ("torch", "exec")), (["", "exec", "torch"], ("torch", "exec")), ([""], None), (["", "xla"], ("xla",)), (["", "cuda"], None),
    ):  # fmt: skip
        edit = judge(row, Typed.model_validate({**UNCHANGED, **({} if ticked is None else {"runtimes": ticked})}))
        assert isinstance(edit, Edit)
        assert (edit.runtimes, edit.flavor_changed) == (offered, offered != ("torch", "exec"))
    again = judge(row, Typed.model_validate({**UNCHANGED, "memory": "much", "runtimes": ["", "xla"]}))
    assert isinstance(again, Editor) and again.runtimes == ("xla",)


def test_places_that_processes_may_reach_are_typed_and_a_form_without_them_leaves_them() -> None:
    row = FlavorRow("dev.1gb", FLAVOR.model_copy(update={"egress": ("pypi.org:443",)}), (PRICE,), {"USD": "4"})
    closed = FlavorRow("dev.1gb", FLAVOR.model_copy(update={"egress": ()}), (PRICE,), {"USD": "4"})
    assert (open_editor(row).egress, open_editor(closed).egress, open_editor(ROW).egress) == ("pypi.org:443", "none", "")
    for typed, places in (
        (None, ("pypi.org:443",)), ("", None), (" , ", None), ("None", ()), ("pypi.org:443", ("pypi.org:443",)),
        ("PyPI.org:443,\na.example:1", ("pypi.org:443", "a.example:1")), ("none a.example:1", ("none", "a.example:1")),
    ):  # fmt: skip
        edit = judge(row, Typed.model_validate({**UNCHANGED, **({} if typed is None else {"egress": typed})}))
        assert isinstance(edit, Edit)
        assert (edit.egress, edit.flavor_changed) == (places, places != ("pypi.org:443",))
    again = judge(row, Typed.model_validate({**UNCHANGED, "memory": "much", "egress": "Nobody knows"}))
    assert isinstance(again, Editor) and again.egress == "Nobody knows"
    assert isinstance(left := judge(row, Typed.model_validate({**UNCHANGED, "memory": "much"})), Editor) and left.egress == "pypi.org:443"


def test_an_exact_price_is_taken_over() -> None:
    edit = judged(price="3.6")
    assert isinstance(edit, Edit)
    assert (edit.prices, edit.flavor_changed) == ((NewPrice(3_600_000_000, "USD", stamp="4"),), False)


def test_a_price_begins_at_the_moment_that_was_typed_and_one_that_is_none_is_told_beside_it() -> None:
    edit = judged(price="3.6", start="2027-01-01T00:30")
    assert isinstance(edit, Edit) and edit.start_ns == 1_798_763_400 * 10**9
    for start, sentence in (("soon", "is not a date and a time"), ("1066-10-14T09:00", "between 1970 and 2260")):
        editor = judged(price="3.6", start=start)
        assert isinstance(editor, Editor) and sentence in editor.problems["start"] and editor.start == start
    unchanged = judged(start="2027-01-01T00:30")
    assert isinstance(unchanged, Editor) and "No price was changed" in unchanged.problems["start"]


def test_a_price_that_cannot_be_billed_exactly_is_offered_rounded_and_saved_only_when_accepted() -> None:
    editor = judged(price="2.9900000006")
    assert isinstance(editor, Editor)
    assert editor.prices[0].offer == "2.990000001"
    assert "2.9900000006 USD per hour has more than nine decimals" in (editor.prices[0].problem or "")
    accepted = judged(price="2.9900000006", use_price="USD 2.990000001")
    assert isinstance(accepted, Edit)
    assert accepted.prices == (NewPrice(2_990_000_001, "USD", stamp="4"),)


def test_a_price_below_zero_is_refused_and_what_was_typed_is_kept() -> None:
    editor = judged(price="-1")
    assert isinstance(editor, Editor)
    assert [field.text for field in editor.prices] == ["-1", ""]
    assert editor.prices[0].offer is None
    assert "cannot be below zero" in (editor.prices[0].problem or "")


def test_every_wrong_field_is_named_at_once() -> None:
    assert problems(memory="64 GB", equivalents="many", price="free").keys() == {"memory", "equivalents", "price USD"}


def test_what_was_refused_as_overtaken_comes_back_as_typed_over_what_stands_now_and_what_was_saved_is_not_told_of() -> None:
    jpy = PRICE.model_copy(update={"currency": "JPY", "version": 2})
    now = FlavorRow("dev.1gb", FLAVOR.model_copy(update={"etag": '"g"'}), (PRICE, jpy), {"USD": "4", "JPY": "2", "EUR": "1"})
    fields = {"price": ["7.2", "3", "1"], "currency": ["USD", "JPY", "EUR"], "stamp": ["3", "1", ""], "memory": "2 GiB"}
    typed = Typed.model_validate({**UNCHANGED, **fields})
    editor = reopen(now, typed, Unsaved(Text("Nothing was saved."), False, frozenset({"JPY"})))
    assert [(field.text, field.stamp) for field in editor.prices] == [("7.2", "4"), ("3", "2"), ("1", "1")]
    usd, saved, to_come = (field.problem for field in editor.prices)
    assert usd is not None and "changed the prices in USD after this form was opened: now it is 0.36 per hour" in usd
    assert saved is None and to_come is not None and "prices in EUR that are to come" in to_come
    assert (editor.memory, editor.flavor_stamp) == ("2 GiB", "g")
    assert "now they are 1 GiB, and 1 cpu-dev" in editor.problems["memory"]
    kept = reopen(now, typed, Unsaved(Text("Nothing was saved."), True, frozenset({"JPY"})))
    assert kept.problems.keys() == {"form"} and kept.flavor_stamp == "g"


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(ValueError):
        Typed.model_validate({**UNCHANGED, "owner": "me"})


def test_a_flavor_without_a_price_keeps_its_editor_for_the_rest() -> None:
    edit = judge(FlavorRow("dev.1gb", FLAVOR, ()), Typed(memory="2 GiB", equivalents="1 cpu-dev"))
    assert edit == Edit(2**31, FLAVOR.equivalents, flavor_changed=True, prices=())


def test_each_currency_has_its_price_and_only_what_changes_is_saved() -> None:
    row = FlavorRow("dev.1gb", FLAVOR, (PRICE, PRICE.model_copy(update={"currency": "JPY"})), {"USD": "4", "JPY": "1"})
    assert [field.currency for field in open_editor(row).prices] == ["USD", "JPY", ""]
    fields = {**UNCHANGED, "price": ["0.36", "3.6", "7.2"], "currency": ["USD", "JPY", " eur "], "stamp": ["4", "1", ""]}
    edit = judge(row, Typed.model_validate(fields))
    assert isinstance(edit, Edit)
    assert edit.prices == (NewPrice(3_600_000_000, "JPY", stamp="1"), NewPrice(7_200_000_000, "EUR"))
    inexact = judge(row, Typed.model_validate({**fields, "price": ["0.36", "2.9900000006", "7.2"]}))
    assert isinstance(inexact, Editor)
    assert [bool(field.offer) for field in inexact.prices] == [False, True, False]


def test_a_flavor_without_a_price_gets_its_first_one() -> None:
    row = FlavorRow("dev.1gb", FLAVOR, ())
    assert [(field.currency, field.text) for field in open_editor(row).prices] == [("", "")]
    edit = judge(row, Typed.model_validate({**UNCHANGED, "price": "3.6", "currency": "usd", "stamp": ""}))
    assert isinstance(edit, Edit)
    assert edit.prices == (NewPrice(3_600_000_000, "USD", first=True),)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"currency": ""}, "Name the currency"),
        ({"currency": "US"}, "Name the currency"),
        ({"price": ["1.8", "3.6"], "currency": ["USD", "USD"], "stamp": ["4", "4"]}, "is there twice"),
    ],
)
def test_a_price_without_a_place_in_the_book_is_refused(changes: dict[str, Any], says: str) -> None:
    assert says in " ".join(problems(**{"price": "3.6", **changes}).values())


def test_prices_that_lack_a_currency_or_a_stamp_are_refused() -> None:
    with pytest.raises(ValueError, match="each price needs a currency and a stamp"):
        Typed.model_validate({**UNCHANGED, "price": ["1", "2"]})


@given(
    st.lists(
        st.builds(
            Equivalent,
            model=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9 ._()+/-]{0,20}[A-Za-z0-9)]", fullmatch=True),
            count=st.integers(1, 100_000),
        )
        | st.builds(
            Equivalent,
            model=st.from_regex(r"[A-Z][A-Z0-9]{0,9}", fullmatch=True),
            count=st.just(1),
            share_milli=st.integers(1, 999),
        ),
        min_size=1,
        max_size=32,
        unique_by=lambda equivalent: equivalent.model,
    )
)
def test_equivalents_are_read_back_as_they_are_shown(equivalents: list[Equivalent]) -> None:
    assert parse_equivalents(format_equivalents(tuple(equivalents))) == tuple(equivalents)


def test_equivalents_may_be_typed_as_people_write_them() -> None:
    wanted = (Equivalent(model="MI250", count=16), Equivalent(model="MI300X", count=8))
    for text in ("16 MI250, 8 MI300X", "16 x MI250\n8 x MI300X", "16 \N{MULTIPLICATION SIGN} MI250,8 \N{MULTIPLICATION SIGN} MI300X,"):
        assert parse_equivalents(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        *("", ",", "MI250", "0 MI250", "-1 MI250", "1 MI250, 2 MI250", "999999 MI250", "0.000 A100", "1.5 A100"),
        ", ".join(f"1 m{n}" for n in range(33)),
    ],
)
def test_equivalents_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(FormError):
        parse_equivalents(text)


def test_the_table_holds_what_either_service_knows() -> None:
    other = PRICE.model_copy(update={"flavor": "retired.1gb"})
    rows = table((FLAVOR,), (PRICE, other))
    assert [(row.name, row.flavor is not None, len(row.prices)) for row in rows] == [("retired.1gb", False, 1), ("dev.1gb", True, 1)]


# With real services


def form_of(cloud: Installation, flavor: str) -> dict[str, str]:
    """The fields of the editor as the page shows them."""
    return fields_of(cloud.get("operator", f"operator/flavors/{flavor}/edit", headers={"HX-Request": "true"}).text)


def fields_of(page: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for name, value in re.findall(r'<input[^>]* name="(\w+)" value="([^"]*)"', page):
        fields.setdefault(name, value)  # the empty field of another currency comes last
    fields.pop("_xsrf")
    return fields


def price_of(cloud: Installation, flavor: str) -> int:
    found = [row for row in cloud.ask("billing", "operator", "GET", "api/prices") if row["flavor"] == flavor]
    price: int = found[0]["price_nano_per_hour"]
    return price


def test_a_price_changed_on_the_page_is_that_of_the_next_lease_and_not_of_the_open_one(cloud: Installation) -> None:
    eventually(lambda: {row["name"]: row for row in cloud.ask("pool", "operator", "GET", "api/flavors")}["dev.4gb"]["price_nano_per_hour"])
    with cloud.session("acme-member", "dev.4gb") as session:
        first = session.acquire()
        old = first.flavor.price_nano_per_hour
        saved = cloud.post("operator", "operator/flavors/dev.4gb/edit", {**form_of(cloud, "dev.4gb"), "price": "7.2"})
        assert "dev.4gb is saved. A price applies from now on, the rest to leases opened from now on." in saved.text
        assert "7.20 USD/h" in saved.text
        assert session.release(first.epoch).cost_nano is not None
        second = session.acquire()
        session.release(second.epoch)
    assert price_of(cloud, "dev.4gb") == 7_200_000_000
    assert second.flavor.price_nano_per_hour == 7_200_000_000
    mine = {"user": "acme-member", "limit": 10}
    eventually(lambda: len(_priced(cloud, mine, (first.lease, second.lease))) == 2)
    assert _priced(cloud, mine, (first.lease, second.lease)) == {first.lease: old, second.lease: 7_200_000_000}
    history = cloud.get("operator", "operator/flavors/dev.4gb/prices").text
    assert "7.20 USD/h" in history
    assert "seed" in history


def _priced(cloud: Installation, query: dict[str, Any], leases: tuple[str, ...]) -> dict[str, int]:
    records = cloud.ask("billing", "operator", "GET", "api/usage", params=query)["records"]
    return {row["lease"]: row["price_nano_per_hour"] for row in records if row["lease"] in leases}


def test_a_price_from_a_later_moment_on_leaves_the_present_one_in_force_and_one_in_a_rated_past_is_refused(cloud: Installation) -> None:
    flavor, path = "2xlarge.1024gb", "operator/flavors/2xlarge.1024gb/edit"
    before = price_of(cloud, flavor)
    later = cloud.post("operator", path, {**form_of(cloud, flavor), "price": "3.6", "start": "2033-01-01T00:00"})
    assert "Prices apply from 2033-01-01 00:00:00 UTC on" in later.text
    assert price_of(cloud, flavor) == before != 3_600_000_000
    newest = cloud.ask("billing", "operator", "GET", "api/prices", params={"flavor": flavor, "history": 1})[-1]
    assert (newest["price_nano_per_hour"], newest["valid_from_ns"]) == (3_600_000_000, 1_988_150_400 * 10**9)
    assert "2033-01-01" in cloud.get("operator", path.replace("edit", "prices")).text
    cloud.record_usage(flavor=flavor)
    past = cloud.post("operator", path, {**form_of(cloud, flavor), "price": "7.2", "start": "2026-01-01T00:00"})
    assert "Nothing was saved." in past.text and 'role="alert"' in past.text
    assert price_of(cloud, flavor) == before


def test_memory_and_equivalents_changed_on_the_page_are_the_pools(cloud: Installation) -> None:
    before = price_of(cloud, "small.64gb")
    typed = {**form_of(cloud, "small.64gb"), "memory": "1.5 GiB", "equivalents": "1 x null, .25 MI300X"}
    assert "is saved" in cloud.post("operator", "operator/flavors/small.64gb/edit", typed).text
    found = next(row for row in cloud.ask("pool", "operator", "GET", "api/flavors") if row["name"] == "small.64gb")
    assert found["memory_bytes"] == 3 * 2**29
    served = [(row["model"], row["count"], row["share_milli"]) for row in found["equivalents"]]
    assert served == [("null", 1, 1000), ("MI300X", 1, 250)]
    assert price_of(cloud, "small.64gb") == before


@pytest.mark.parametrize(
    ("price", "says"), [("-1", "cannot be below zero"), ("2.9900000006", "Save with 2.990000001"), ("a lot", "is not a price per hour")]
)
def test_a_price_that_is_refused_changes_nothing_and_the_form_comes_back_with_a_sentence(
    cloud: Installation, price: str, says: str
) -> None:
    before = price_of(cloud, "large.256gb")
    answer = cloud.post("operator", "operator/flavors/large.256gb/edit", {**form_of(cloud, "large.256gb"), "price": price})
    assert says in answer.text
    assert f'value="{price}"' in answer.text
    assert price_of(cloud, "large.256gb") == before


def test_two_operators_do_not_overwrite_each_other(cloud: Installation) -> None:
    opened = form_of(cloud, "medium.128gb")
    assert "is saved" in cloud.post("operator", "operator/flavors/medium.128gb/edit", {**opened, "price": "3.6"}).text
    mine = {**opened, "price": "36", "memory": "7 GiB"}
    answer = cloud.post("operator", "operator/flavors/medium.128gb/edit", {**mine, "memory": opened["memory"]})
    assert "changed the prices in USD after this form was opened: now it is 3.60 per hour" in answer.text
    assert "Nothing was saved." in answer.text and price_of(cloud, "medium.128gb") == 3_600_000_000
    saved = cloud.post("operator", "operator/flavors/medium.128gb/edit", {**opened, "price": "3.6", "memory": "6 GiB"})
    assert "is saved" in saved.text
    refused = cloud.post("operator", "operator/flavors/medium.128gb/edit", mine)
    assert "changed memory and equivalents after this form was opened: now they are 6 GiB" in refused.text
    assert 'value="7 GiB"' in refused.text and price_of(cloud, "medium.128gb") == 3_600_000_000
    again = fields_of(refused.text)
    assert (again["memory"], again["price"]) == ("7 GiB", "36")
    assert "is saved" in cloud.post("operator", "operator/flavors/medium.128gb/edit", again).text
    assert price_of(cloud, "medium.128gb") == 36_000_000_000


def test_a_price_that_is_to_come_keeps_a_form_that_did_not_show_it_from_being_saved_unseen(cloud: Installation) -> None:
    path = "operator/flavors/8xlarge.4096gb/edit"
    opened = form_of(cloud, "8xlarge.4096gb")
    assert "is saved" in cloud.post("operator", path, {**opened, "price": "3.6", "start": "2033-01-01T00:00"}).text
    refused = cloud.post("operator", path, {**opened, "price": "36"})
    assert "Somebody else changed the prices in USD" in refused.text
    assert "is saved" in cloud.post("operator", path, fields_of(refused.text)).text
    assert price_of(cloud, "8xlarge.4096gb") == 36_000_000_000


def test_the_editor_works_without_scripts(cloud: Installation) -> None:
    page = cloud.get("operator", "operator/flavors/xlarge.512gb/edit").text
    assert "<h1>Operator</h1>" in page
    assert 'method="post" action="/services/dashboards/operator/flavors/xlarge.512gb/edit"' in page
    answer = cloud.post("operator", "operator/flavors/xlarge.512gb/edit", {**form_of(cloud, "xlarge.512gb"), "price": "36"}, fragment=False)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/services/dashboards/operator/flavors")
    assert price_of(cloud, "xlarge.512gb") == 36_000_000_000


def test_a_first_price_and_a_price_in_another_currency_are_set_on_the_page(cloud: Installation) -> None:
    served = {"memory_bytes": 2**30, "equivalents": [{"model": "null", "count": 1}]}
    cloud.ask("pool", "operator", "PUT", "api/flavors/fresh.1gb", json=served)
    opened = form_of(cloud, "fresh.1gb")
    assert (opened["currency"], opened["price"], opened["stamp"]) == ("USD", "", "")
    assert "is saved" in cloud.post("operator", "operator/flavors/fresh.1gb/edit", {**opened, "currency": "USD", "price": "3.6"}).text
    again = {**form_of(cloud, "fresh.1gb"), "currency": ["USD", "JPY"], "price": ["3.6", "360"], "stamp": ["1", ""]}
    saved = cloud.post("operator", "operator/flavors/fresh.1gb/edit", again).text
    assert "is saved" in saved and "3.60 USD/h" in saved and "360.00 JPY/h" in saved
    found = [row for row in cloud.ask("billing", "operator", "GET", "api/prices") if row["flavor"] == "fresh.1gb"]
    assert [(row["currency"], row["price_nano_per_hour"], row["version"]) for row in found] == [
        ("JPY", 360_000_000_000, 1),
        ("USD", 3_600_000_000, 1),
    ]
    refused = cloud.post("operator", "operator/flavors/fresh.1gb/edit", {**form_of(cloud, "fresh.1gb"), "currency": "QQQ", "stamp": ""})
    assert "Nothing was saved." in refused.text and "is not a currency of ISO 4217" in refused.text


def test_a_flavor_that_does_not_exist_is_not_found(cloud: Installation) -> None:
    answer = cloud.get("operator", "operator/flavors/huge.1pb/edit")
    assert answer.status_code == 404
    assert "There is no flavor “huge.1pb”." in answer.text


def test_a_form_with_unknown_fields_is_refused(cloud: Installation) -> None:
    answer = cloud.post("operator", "operator/flavors/large.256gb/edit", {**form_of(cloud, "large.256gb"), "tenant": "acme"})
    assert answer.status_code == 400
    assert "The field tenant cannot be used" in answer.text
