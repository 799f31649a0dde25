"""Flavors that an installation could make for its devices: what is suggested, over HTTP and without."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from forebay_pool.model.catalogue import ACCELERATORS, MIB
from forebay_pool.model.events import PricesSet
from forebay_pool.model.policies import Policy
from forebay_pool.model.prices import Tariff
from forebay_pool.model.suggestions import Proposal, Suggestion, proposed_price, size_name, suggestions
from forebay_pool.model.types import Device, Equivalent, Flavor, Price
from forebay_pool.placement.fleet import Fleet
from forebay_pool.store.flavors import FlavorBody, scale, seeds, settings_of
from hypothesis import given, settings
from hypothesis import strategies as st

Make = Callable[..., Any]
GIB = 2**30
SCALE = scale()
DEFAULTS = {flavor.name: flavor for flavor in seeds()}
KINDS = {"MI": "hip", "cp": "cpu", "nu": "null"}
MEMORY_MIB = {one.name: one.memory_mib for one in ACCELERATORS} | {"A30": 24_169, "odd": 17_001, "cpu-dev": 4_096, "null": 4_096}
WHOLE_H100 = [{"model": "H100", "count": 1, "share_milli": 1000, "devices": 2, "speed": 100}]


def devices(**counts: int | tuple[int, ...]) -> list[Device]:
    """So many of each model, in one node or in several."""
    made = []
    for name, count in counts.items():
        model = name.replace("_", "-")
        for number, here in enumerate((count,) if isinstance(count, int) else count):
            node = f"n{number}"
            made += [node_device(model, node, index, MEMORY_MIB[model]) for index in range(here)]
    return made


def node_device(model: str, node: str, index: int, mib: int) -> Device:
    return Device(f"{node}/{model}:{index}", node, KINDS.get(model[:2], "cuda"), index, model, mib * MIB)  # type: ignore[arg-type]


def said(found: Sequence[Suggestion]) -> dict[str, str]:
    """What would be new of each."""
    ways = {one.flavor.name: " or ".join(f"{way.count * way.share_milli / 1000:g} {way.model}" for way in one.added) for one in found}
    return {one.flavor.name: ("+ " if one.present else "") + ways[one.flavor.name] for one in found}


def with_all(flavors: dict[str, Flavor], found: Sequence[Suggestion]) -> dict[str, Flavor]:
    return flavors | {one.flavor.name: one.flavor for one in found}


def old_defaults() -> dict[str, Flavor]:
    """As releases seeded them that knew AMD's models alone: MI300X in them as if it had 256 GB."""
    made = {}
    for flavor in DEFAULTS.values():
        units = round(flavor.memory_bytes / (65_520 * MIB))
        large = [Equivalent("MI300X", units // 4)] if units > 3 else []
        old = (Equivalent("MI250", max(1, units // 2)), Equivalent("MI210", units), *large)
        made[flavor.name] = replace(flavor, equivalents=old) if units else flavor
    return made


def test_a_new_installation_is_suggested_the_sizes_of_its_own_devices() -> None:
    found = suggestions(devices(H100=8, cpu_dev=2), DEFAULTS, SCALE)
    assert said(found) == {
        "3xsmall.10gb": "0.125 H100",
        "2xsmall.20gb": "0.25 H100",
        "xsmall.40gb": "0.5 H100",
        "small.80gb": "1 H100",
        "medium.160gb": "2 H100",
        "large.320gb": "4 H100",
        "xlarge.640gb": "8 H100",
    }, "what the default flavors have already is not suggested"
    whole = next(one.flavor for one in found if one.flavor.name == "small.80gb")
    assert whole.memory_bytes == 81_559 * MIB and whole.residents_max is None


def test_models_of_one_size_serve_one_flavor_that_fits_on_each() -> None:
    found = suggestions(devices(A100_80GB=2, H100=2, L40S=1, RTX_A6000=1, L4=1), DEFAULTS, SCALE)
    assert said(found) == {
        "3xsmall.10gb": "0.125 A100-80GB or 0.125 H100",
        "3xsmall.12gb": "0.5 L4 or 0.25 L40S or 0.25 RTX-A6000",
        "2xsmall.20gb": "0.25 A100-80GB or 0.25 H100",
        "2xsmall.24gb": "1 L4 or 0.5 L40S or 0.5 RTX-A6000",
        "xsmall.40gb": "0.5 A100-80GB or 0.5 H100",
        "xsmall.48gb": "1 L40S or 1 RTX-A6000",
        "small.80gb": "1 A100-80GB or 1 H100",
        "medium.160gb": "2 A100-80GB or 2 H100",
    }
    assert next(one.flavor.memory_bytes for one in found if one.flavor.name == "small.80gb") == 81_559 * MIB


def test_an_installation_of_before_is_suggested_what_its_default_flavors_lack() -> None:
    found = said(suggestions(devices(H100=8), old_defaults(), SCALE))
    assert {name: text for name, text in found.items() if text.startswith("+")} == {
        "small.64gb": "+ 1 H100",
        "medium.128gb": "+ 2 H100",
        "large.256gb": "+ 4 H100",
        "xlarge.512gb": "+ 7 H100",
    }, "as far as one node goes"
    corrected = suggestions(devices(MI300X=2), old_defaults(), SCALE)
    assert said(corrected)["large.256gb"] == "+ 2 MI300X"
    (large,) = [one for one in corrected if one.flavor.name == "large.256gb"]
    assert large.present == old_defaults()["large.256gb"]
    assert large.flavor.equivalents == (Equivalent("MI250", 2), Equivalent("MI210", 4), Equivalent("MI300X", 2)), "one way for a model"


def test_an_operators_own_flavor_stays_as_it_is_and_a_size_that_it_uses_is_not_suggested_again() -> None:
    own = [Flavor("big", 75 * GIB, (Equivalent("H100"),), 2), Flavor("small.40gb", 39 * GIB, (Equivalent("H100", 1, 500),))]
    assert set(said(suggestions(devices(H100=1), {flavor.name: flavor for flavor in own}, SCALE))) == {"3xsmall.10gb", "2xsmall.20gb"}


def test_a_name_that_is_taken_by_a_flavor_that_does_not_fit_is_not_used() -> None:
    own = {"small.80gb": Flavor("small.80gb", 81_920 * MIB, (Equivalent("A100-80GB"),))}
    assert said(suggestions(devices(H100=1), own, SCALE))["small.79gb"] == "1 H100"
    fitting = {"small.80gb": Flavor("small.80gb", 79 * GIB, (Equivalent("A100-80GB"),), 3)}
    found = {one.flavor.name: one for one in suggestions(devices(H100=1), fitting, SCALE)}
    assert said(list(found.values()))["small.80gb"] == "+ 1 H100" and found["small.80gb"].flavor.residents_max == 3


def test_development_devices_get_none() -> None:
    assert suggestions(devices(cpu_dev=4, null=4), {}, SCALE) == []


@pytest.mark.parametrize(
    ("gb", "name"),
    [
        *((0, "6xsmall.0gb"), (8, "3xsmall.8gb"), (10, "3xsmall.10gb"), (16, "2xsmall.16gb"), (24, "2xsmall.24gb"), (32, "xsmall.32gb")),
        *((63, "xsmall.63gb"), (64, "small.64gb"), (80, "small.80gb"), (141, "medium.141gb"), (256, "large.256gb"), (640, "xlarge.640gb")),
        *((1128, "2xlarge.1128gb"), (1440, "2xlarge.1440gb"), (100_000, "48xlarge.100000gb")),
    ],
)
def test_names_are_on_the_scale_of_the_defaults(gb: int, name: str) -> None:
    assert size_name(gb, SCALE) == name


MODELS = st.sampled_from(sorted(MEMORY_MIB))
GROUPS = st.lists(st.tuples(MODELS, st.integers(1, 10), st.sampled_from("abc"), st.sampled_from([0, 0, 900])), min_size=1, max_size=6)
PRESENT = st.sampled_from([{}, DEFAULTS, old_defaults(), {"small.80gb": Flavor("small.80gb", 75 * GIB, (Equivalent("A100-80GB"),))}])


def fleet_of(groups: list[tuple[str, int, str, int]]) -> list[Device]:
    """Groups of devices, some with a little less memory than the others of their model."""
    made: list[Device] = []
    for model, count, node, less_mib in groups:
        made += [node_device(model, node, len(made) + index, MEMORY_MIB[model] - less_mib) for index in range(count)]
    return made


@settings(deadline=None, max_examples=150)
@given(GROUPS, PRESENT, st.randoms(use_true_random=False))
def test_each_suggestion_can_be_served_in_one_node_and_is_made_once(groups: Any, present: dict[str, Flavor], chance: Any) -> None:
    there = fleet_of(groups)
    found = suggestions(there, present, SCALE)
    for one in found:
        assert one.present == present.get(one.flavor.name) and one.added
        models = [way.model for way in one.flavor.equivalents]
        assert len(set(models)) == len(models), "a model has one way to serve a flavor"
        for way in one.added:
            alone = replace(one.flavor, equivalents=(way,))
            assert Fleet(there, {alone.name: alone}, Policy(gang_spread="node")).capacity.why_not(alone, None) is None, (one, way)
        body = FlavorBody.model_validate_json(json.dumps(settings_of(one.flavor)))
        assert body.named(one.flavor.name) == one.flavor, "the endpoint takes it"
        if one.present is not None:
            kept = [way for way in one.present.equivalents if way.model not in [new.model for new in one.added]]
            assert (one.flavor.memory_bytes, list(one.flavor.equivalents[: len(kept)])) == (one.present.memory_bytes, kept)
    names = [one.flavor.name for one in found]
    assert len(set(names)) == len(names)
    shuffled = list(there)
    chance.shuffle(shuffled)
    assert suggestions(shuffled, dict(reversed(present.items())), SCALE) == found, "in the same order, whatever that of the devices"
    assert suggestions(there, with_all(present, found), SCALE) == [], "once they are made there are none"


@settings(deadline=None)
@given(GROUPS)
def test_every_whole_accelerator_has_a_flavor_that_uses_it_once_all_are_made(groups: Any) -> None:
    there = fleet_of(groups)
    flavors = with_all(DEFAULTS, suggestions(there, DEFAULTS, SCALE))
    for model in {device.model for device in there if device.kind in ("cuda", "hip")}:
        least = min(device.memory_bytes for device in there if device.model == model)
        using = [one.memory_bytes / least for one in flavors.values() if Equivalent(model) in one.equivalents]
        assert max(using, default=0) >= 0.85, model


def test_a_price_is_proposed_by_memory_as_the_flavor_next_in_size_has_it() -> None:
    small = (Flavor("small.64gb", 65_520 * MIB, ()), Price(2 * 10**9, "USD"))
    large = (Flavor("large", 262_080 * MIB, ()), Price(7 * 10**9, "USD"))
    assert proposed_price(81_559 * MIB, [large, small]) == Proposal(2_490_000_000, "USD", "small.64gb")
    assert proposed_price(4 * 65_520 * MIB, [small, large]) == Proposal(7_000_000_000, "USD", "large")
    assert proposed_price(65_520 * MIB, [(small[0], Price(7, "KRW"))]) == Proposal(7, "KRW", "small.64gb")
    assert proposed_price(GIB, []) is None and proposed_price(GIB, [(small[0], Price(None, "EUR"))]) is None


GROUP = {"kind": "cuda", "model": "H100", "memory": "81559 MiB", "count": 2}
HOST = [GROUP, {"kind": "cpu", "model": "cpu-dev", "memory": "4 GiB"}]


def test_operators_alone_read_suggestions_and_make_them_with_one_entry_of_the_audit_each(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(warm_workers=0, devices=HOST) as running:
            for who, status in ((None, 401), ("nobody", 401), ("ada", 403), ("guest", 403), ("dashboards", 403), ("operator", 200)):
                assert (await running.call("GET", "api/suggestions", who)).code == status, who
            rows = await running.get("api/suggestions", "operator")
            assert [row["name"] for row in rows] == ["3xsmall.10gb", "2xsmall.20gb", "xsmall.40gb", "small.80gb", "medium.160gb"]
            whole = rows[3]
            assert whole["added"] == whole["equivalents"] == WHOLE_H100
            assert (whole["memory_bytes"], whole["etag"], whole["proposed_nano_per_hour"]) == (81_559 * MIB, None, None), "nobody bills"
            for row in rows:
                equivalents = [{name: one[name] for name in ("model", "count", "share_milli")} for one in row["equivalents"]]
                body = {"memory_bytes": row["memory_bytes"], "equivalents": equivalents}
                made = await running.call("PUT", f"api/flavors/{row['name']}", "operator", body)
                assert json.loads(made.body)["servable"] is True
            assert await running.get("api/suggestions", "operator") == []
            audit = (await running.get("api/audit?action=flavor.set", "operator"))["entries"]
            assert sorted(entry["subject"] for entry in audit) == sorted(row["name"] for row in rows)
            assert {(entry["who"], entry["before"]) for entry in audit} == {("operator", None)}

    asyncio.run(scenario())


def test_a_suggestion_that_adds_to_a_flavor_has_its_tag_and_no_price(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(warm_workers=0, devices=HOST) as running:
            body = {"memory_bytes": 65_520 * MIB, "equivalents": [{"model": "MI210", "count": 1}]}
            set_back = json.loads((await running.call("PUT", "api/flavors/small.64gb", "operator", body)).body)
            prices = {("small.64gb", "EUR"): 2 * 10**9, ("dev.4gb", "EUR"): 10**12}
            running.service.shell.apply(PricesSet(Tariff(prices, {}, "EUR", {})))
            rows = {row["name"]: row for row in await running.get("api/suggestions", "operator")}
            there = rows["small.64gb"]
            assert there["etag"] == set_back["etag"] and there["proposed_nano_per_hour"] is None
            assert [one["model"] for one in there["equivalents"]] == ["MI210", "H100"]
            assert there["added"] == WHOLE_H100
            tenth = rows["3xsmall.10gb"]
            assert (tenth["proposed_nano_per_hour"], tenth["currency"], tenth["priced_as"]) == (311_000_000, "EUR", "small.64gb")

    asyncio.run(scenario())
