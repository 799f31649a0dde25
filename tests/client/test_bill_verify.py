"""``forebay bill verify``: what is right is found right to the nano-unit, and each of a thousand tamperings is named."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import bill_tampering
import billed_months
import pytest
from bill_tampering import OF_INVOICES, OF_RECORDS, USER, TamperedRecord
from billed_months import DAY_NS, NOVEMBER, OCTOBER, Lease, Signer, World
from forebay.service.record import Record
from forebay.toolkit.command import main
from forebay.toolkit.invoices import invoice, verifier

SEEDS = (1, 2, 3)
TAMPERINGS, FEW_TAMPERINGS = 1_000, 200
MONTH = "2026-11"


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[int, World]:
    return {seed: billed_months.make(tmp_path_factory.mktemp("billed"), seed) for seed in SEEDS}


def written(folder: Path, *documents: Any) -> list[Path]:
    paths = [folder / f"{number}.json" for number in range(len(documents))]
    for path, document in zip(paths, documents, strict=True):
        path.write_text(json.dumps(document))
    return paths


def verified(folder: Path, records: list[Record], *documents: Any) -> verifier.Outcome:
    invoices = [one for path in written(folder, *documents) for one in invoice.read(path)]
    return verifier.verify(invoices, records)


@pytest.mark.parametrize("seed", SEEDS)
def test_invoices_of_real_billing_are_equal_to_the_receipts_of_each_user_and_of_all(
    worlds: dict[int, World], seed: int, tmp_path: Path
) -> None:
    world = worlds[seed]
    for month, document in world.invoices.items():
        for user, record in world.records.items():
            outcome = verified(tmp_path, [record], document)
            lines = [line for line in document["lines"] if line["usage"] is not None and line["usage"]["user"] == user]
            assert (outcome.findings, outcome.lines) == ((), len(lines)), month
        everybody = verified(tmp_path, list(world.records.values()), document)
        assert everybody.findings == () and everybody.unproved == ()
    assert sum(len(document["lines"]) for document in world.invoices.values()) > 20


@pytest.mark.timeout(600)
def test_each_of_a_thousand_tamperings_is_named(worlds: dict[int, World], tmp_path: Path, full_sweep: bool) -> None:
    """Without --full-sweep, each of two hundred."""
    named: Counter[str] = Counter()
    tamperings = TAMPERINGS if full_sweep else FEW_TAMPERINGS
    for seed in range(tamperings):
        chance = random.Random(seed)
        world = worlds[SEEDS[seed % len(SEEDS)]]
        document, record = copy.deepcopy(world.invoices[MONTH]), world.records[USER]
        if seed % 2:
            tampering = OF_INVOICES[seed // 2 % len(OF_INVOICES)]
            fault = tampering(document, chance)
            name = tampering.__name__
        else:
            changing = OF_RECORDS[seed // 2 % len(OF_RECORDS)]
            tampered = TamperedRecord(record, tmp_path / str(seed), chance)
            fault, record, name = changing(tampered), tampered.record, changing.__name__
        found = {finding.fault for finding in verified(tmp_path, [record], document).findings}
        assert fault in found, (seed, name, found)
        named[name] += 1
    assert named.total() == tamperings and len(named) == len(OF_INVOICES) + len(OF_RECORDS)
    assert min(named.values()) >= tamperings // 48


def test_an_invoice_that_is_mended_after_no_change_is_the_one_that_billing_made(worlds: dict[int, World]) -> None:
    """So that tamperings are found for what they change, and not for how they are made to look right."""
    document = worlds[1].invoices[MONTH]
    assert bill_tampering.mend(copy.deepcopy(document)) == document


def test_usage_that_comes_after_its_month_was_finalised_is_checked_with_that_months_invoice(tmp_path: Path) -> None:
    signer = Signer()
    leases = [Lease(USER, "s", number, "large", OCTOBER.start_ns + number * DAY_NS, number * 10**12 + 1) for number in range(1, 6)]
    leases += [Lease(USER, "s", 6, "large", NOVEMBER.start_ns + DAY_NS, 7 * 10**12)]
    with billed_months.running(tmp_path) as service:
        billed_months.post(service, leases[:3])
        october = billed_months.finalised(service, "2026-10")
        billed_months.post(service, leases[3:])
        november = billed_months.finalised(service, MONTH)
    record = billed_months.kept(tmp_path / "record", leases, signer)
    assert [line["usage"]["late"] for line in november["lines"] if line["usage"] is not None] == [True, False]
    assert verified(tmp_path, [record], october, november).findings == ()
    assert [one.fault for one in verified(tmp_path, [record], november).findings] == ["late"]
    assert [one.fault for one in verified(tmp_path, [record], october).findings] == ["time"]
    november["lines"][0]["usage"]["duration_ns"] += 1
    assert {one.fault for one in verified(tmp_path, [record], october, bill_tampering.mend(november)).findings} == {"time"}


def test_what_a_record_cannot_prove_is_said_and_not_taken_for_right(worlds: dict[int, World], tmp_path: Path) -> None:
    world = worlds[1]
    (others,) = verified(tmp_path, [world.records[USER]], world.invoices[MONTH]).unproved
    assert "of which no receipts are here: of other users" in others
    stranger = billed_months.kept(tmp_path / "stranger", [Lease("dan", "d", 1, "small", NOVEMBER.start_ns, 10**9)], Signer())
    stranger.folder.joinpath("key").write_text(f"{world.signer.key}\n")
    assert [one.fault for one in verified(tmp_path, [stranger], world.invoices[MONTH]).findings] == ["no_line"]
    empty = Record(tmp_path / "empty")
    empty.pin(world.signer.key)
    with pytest.raises(verifier.NothingToCheckBy, match="There is no record of any user of this invoice \\(ada, ben, cyd\\) here"):
        verified(tmp_path, [empty], world.invoices[MONTH])


def test_the_command_says_what_differs_and_its_status_tells_it_from_what_it_could_not_check(
    worlds: dict[int, World], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = worlds[1]
    document = copy.deepcopy(world.invoices[MONTH])
    folder = str(world.records[USER].folder)
    (right,) = written(tmp_path, document)
    assert main(["bill", "verify", str(right), "--record", folder]) == 0
    assert f"{document['number']}: " in capsys.readouterr().out.splitlines()[-1]
    bill_tampering.lengthened(document, random.Random(5))
    (wrong,) = written(tmp_path, document)
    assert main(["bill", "verify", str(wrong), "--record", folder, "--json"]) == 3
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["fault"] == "time" and "ns more than the receipts" in finding["text"]
    wrong.write_text('{"lines": []}')
    assert main(["bill", "verify", str(wrong), "--record", folder]) == 1
    assert "is no invoice as billing gives it in JSON: tenant: Field required." in capsys.readouterr().err
    assert main(["bill", "verify", str(tmp_path / "none.json")]) == 1
    assert "cannot be read: No such file or directory." in capsys.readouterr().err


def test_a_draft_is_checked_as_an_invoice_is(tmp_path: Path) -> None:
    leases = [Lease(USER, "s", 1, "small", NOVEMBER.start_ns + 9 * DAY_NS - 10**12, 3 * 10**12)]
    with billed_months.running(tmp_path) as service:
        billed_months.post(service, leases)
        drafts = service.get("acme-owner", "/api/drafts", tenant="acme", month=MONTH).json()
    outcome = verified(tmp_path, [billed_months.kept(tmp_path / "record", leases, Signer())], drafts)
    assert (outcome.findings, outcome.lines) == ((), 2)
    line = drafts[0]["lines"][0]
    assert Fraction(line["cost_exact"]) == pytest.approx(Fraction(line["usage"]["duration_ns"] * 2_990_000_251, 3600 * 10**18), abs=1e-18)


def test_an_invoice_and_drafts_are_got_as_billing_gives_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    leases = [Lease(USER, "s", 1, "small", NOVEMBER.start_ns, 10**12)]
    with billed_months.running(tmp_path) as service:
        billed_months.post(service, leases)
        monkeypatch.setenv("FOREBAY_BOOKS_URL", f"http://127.0.0.1:{service.service.port}/")
        monkeypatch.setenv("FOREBAY_TOKEN", "token-of-acme-owner")
        assert main(["bill", "get", MONTH]) == 0
        (draft,) = json.loads(capsys.readouterr().out)
        finalised = billed_months.finalised(service, MONTH)
        assert main(["bill", "get", finalised["number"], "--output", str(tmp_path / "invoice.json")]) == 0
        assert main(["bill", "get", "INV-999999"]) == 1
    assert "There is no invoice 'INV-999999'." in capsys.readouterr().err
    assert json.loads((tmp_path / "invoice.json").read_text()) == finalised
    assert draft["lines"] == finalised["lines"] and "number" not in draft
