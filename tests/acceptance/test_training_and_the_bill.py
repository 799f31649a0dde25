"""``digits.ipynb`` trains on ``cuda:0`` through the kernel API, and the bill is the leases, to the nano."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import httpx
import pytest

pytestmark = [pytest.mark.acceptance, pytest.mark.slow, pytest.mark.timeout(600)]

NANO = 10**9
CPU_ONLY_CELL = "load_digits"


def leases(cloud: Any) -> list[dict[str, Any]]:
    """Every closed lease segment of acme's in the pool's own books, oldest first."""
    with sqlite3.connect(f"file:{cloud.state}/pool/pool.sqlite?mode=ro", uri=True) as books:
        books.row_factory = sqlite3.Row
        rows = [dict(row) for row in books.execute("select * from lease_segments where tenant = 'acme' order by started_at_unix_ns")]
    books.close()
    return [{**row, "span": json.loads(row["span"])} for row in rows]


def month() -> str:
    return datetime.now(UTC).strftime("%Y-%m")


@pytest.fixture(scope="module")
def trained(member: Any, kernel_type: Any) -> Iterator[list[tuple[str, str]]]:
    """Each cell of the executed ``digits.ipynb``, with what it printed."""
    kernel = kernel_type(member, "digits.ipynb")
    yield [(cell, kernel.run(cell)) for cell in kernel.cells]
    kernel.close()


@pytest.fixture(scope="module")
def billed(cloud: Any, member: Any, trained: Any, eventually: Any) -> list[dict[str, Any]]:
    """The usage records that acme-member sees, once every lease is closed and has arrived; oldest first."""
    token = member.new_token()
    operator = cloud.person("operator").new_token()

    def records() -> list[dict[str, Any]]:
        found = cloud.service("billing/api/usage", token, limit="200").raise_for_status().json()["records"]
        closed = cloud.service("pool/api/leases", operator).raise_for_status().json() == []
        return sorted(found, key=lambda record: record["started_at_ns"]) if closed and len(found) == len(leases(cloud)) else []

    found = eventually(records)
    assert found, f"{len(leases(cloud))} leases in the pool have not arrived at billing"
    assert isinstance(found, list)
    return found


CLIENT_CELL = """
import json
from forebay.client import Client

client = Client()
print(json.dumps([[one.id, one.duration_ns, f"{one.cost_exact:f}"] for one in client.usage(page_records=2)]))
print(json.dumps([one.flavor for one in client.prices(flavor="dev.1gb")]), {one.user for one in client.sessions()})
"""


def test_a_client_without_arguments_tells_the_notebook_the_same(billed: list[dict[str, Any]], member: Any, open_notebook: Any) -> None:
    usage, others = open_notebook(member, "words.ipynb").run(CLIENT_CELL).strip().split("\n")
    assert json.loads(usage) == [[one["id"], one["duration_ns"], one["cost_exact"]] for one in reversed(billed)]
    assert re.fullmatch(r"\[\"dev.1gb\"\] (set\(\)|\{'acme-member'\})", others)


def test_the_notebook_sees_a_virtual_device(trained: Any) -> None:
    assert "cuda available: True" in trained[0][1]
    assert len(trained[0][1].splitlines()) == 2


def test_stock_pytorch_learns_the_digits_on_it(trained: Any) -> None:
    (accuracy,) = re.findall(r"test accuracy ([\d.]+)%", trained[-1][1])
    assert float(accuracy) >= 97


def test_the_notebooks_page_brings_our_extension_and_its_kernel_knows_the_device_before_pytorch(member: Any, open_notebook: Any) -> None:
    assert '"forebay-lab"' in member.open_lab().text
    assert "import torch" in open_notebook(member, "words.ipynb").run("%gpu")


def test_the_notebook_imports_nothing_of_ours(trained: Any) -> None:
    assert not [cell for cell, _ in trained if "forebay" in cell]


def test_every_lease_is_on_the_bill_as_the_pool_measured_it(cloud: Any, billed: Any) -> None:
    facts = ("id", "lease", "session", "tenant", "user", "flavor", "device_model", "devices", "span", "duration_ns", "close_reason")
    kept = [[lease["started_at_unix_ns"], *(lease[fact] for fact in facts)] for lease in leases(cloud)]
    assert kept == [[record["started_at_ns"], *(record[fact] for fact in facts)] for record in billed]


def cells_of(billed: list[dict[str, Any]]) -> set[int]:
    """The numbers of the training notebook's cells that are on the bill, beside those of other tests' notebooks."""
    return {record["span"]["cell"] for record in billed if record["span"]["label"] == "digits.ipynb"}


def test_the_cells_that_trained_and_tested_are_billed_by_their_number(billed: Any, trained: Any) -> None:
    numbers = {number for number, (cell, _) in enumerate(trained, start=1) if "to(device)" in cell}
    assert cells_of(billed) == numbers
    assert {record["span"]["kind"] for record in billed} == {"cell"}


def test_a_cell_that_computes_on_the_cpu_alone_is_not_on_the_bill(billed: Any, trained: Any) -> None:
    (number,) = [number for number, (cell, _) in enumerate(trained, start=1) if CPU_ONLY_CELL in cell]
    assert number not in cells_of(billed)


def test_the_statement_is_the_sum_of_the_leases_to_the_last_nano(cloud: Any, billed: Any) -> None:
    token = cloud.person("acme-owner").new_token()
    statement = cloud.service("billing/api/statement", token, tenant="acme", month=month()).raise_for_status().json()
    prices = {price["flavor"]: price["price_nano_per_hour"] for price in cloud.service("billing/api/prices", token).json()}
    prices["@parked"] = 0  # of tensors that rested between two tests on a slow machine; this installation sets no price
    exact = sum(lease["duration_ns"] * prices[lease["flavor"]] for lease in leases(cloud))
    (total,) = statement["totals"]
    whole, _, fraction = total["cost_exact"].partition(".")
    assert int(whole) * NANO * NANO + int(fraction.ljust(18, "0")) == round(Fraction(exact, 3600))
    assert sum(line["leases"] for line in statement["lines"]) == len(billed)
    assert sum(line["duration_ns"] for line in statement["lines"]) == sum(lease["duration_ns"] for lease in leases(cloud))


def test_a_member_sees_each_billed_cell_on_my_usage(cloud: Any, billed: Any, text_of: Any) -> None:
    page = text_of(cloud.person("acme-member").web.get("/services/dashboards/usage").raise_for_status())
    assert "digits.ipynb" in page and "dev.4gb" in page


def test_the_operator_sees_tenant_user_and_flavor(cloud: Any, billed: Any, text_of: Any) -> None:
    operator = cloud.person("operator")
    page = text_of(operator.web.get("/services/dashboards/operator/usage").raise_for_status())
    assert "acme" in page and "dev.4gb" in page
    page = text_of(operator.web.get("/services/dashboards/operator/tenant/acme").raise_for_status())
    assert "acme-member" in page and "dev.4gb" in page


def test_another_tenants_owner_sees_nothing_of_it(cloud: Any, billed: Any) -> None:
    stranger = cloud.person("globex-owner")
    token = stranger.new_token()
    assert {record["tenant"] for record in cloud.service("billing/api/usage", token).raise_for_status().json()["records"]} <= {"globex"}
    for path in ("billing/api/usage", "billing/api/summary", "billing/api/statement"):
        answer = cloud.service(path, token, tenant="acme", **({"month": month()} if "statement" in path else {}))
        assert answer.status_code == httpx.codes.FORBIDDEN, path
    assert "acme-member" not in stranger.web.get("/services/dashboards/tenant").text


def test_a_member_cannot_change_a_price(cloud: Any, member: Any) -> None:
    answer = httpx.put(
        f"{cloud.url}/services/billing/api/prices/dev.4gb",
        headers={"Authorization": f"token {member.new_token()}"},
        json={"price_nano_per_hour": 0, "currency": "USD"},
    )
    assert answer.status_code == httpx.codes.FORBIDDEN


@pytest.fixture
def dearer(cloud: Any, billed: Any, eventually: Any) -> str:
    """The operator's token, after dev.4gb has been made to cost 7 USD a second and the pool has taken notice."""
    token: str = cloud.person("operator").new_token()
    address = f"{cloud.url}/services/billing/api/prices/dev.4gb"
    new = {"price_nano_per_hour": 3600 * 7 * NANO, "currency": "USD"}
    httpx.put(address, headers={"Authorization": f"token {token}"}, json=new).raise_for_status()

    def known() -> bool:
        flavors = cloud.service("pool/api/flavors", token).raise_for_status().json()
        return any(flavor["name"] == "dev.4gb" and flavor["price_nano_per_hour"] == 3600 * 7 * NANO for flavor in flavors)

    assert eventually(known)
    return token


def test_a_new_price_holds_for_leases_opened_from_then_on(
    cloud: Any, member: Any, billed: Any, dearer: str, open_notebook: Any, eventually: Any
) -> None:
    before = {record["id"]: record["cost_nano"] for record in billed}
    open_notebook(member, "words.ipynb").run("import torch\nprint(torch.ones(3, device='cuda').sum().item())")

    def records() -> dict[str, Any]:
        found = cloud.service("billing/api/usage", dearer, tenant="acme", limit="200").json()["records"]
        return {record["id"]: record for record in found} if len(found) > len(before) else {}

    after = eventually(records)
    assert {key: after[key]["cost_nano"] for key in before} == before
    (added,) = [record for key, record in after.items() if key not in before]
    assert added["price_nano_per_hour"] == 3600 * 7 * NANO
    assert added["cost_nano"] == added["duration_ns"] * 7


def test_a_small_gpt_learns_english(member: Any, open_notebook: Any, full_sweep: bool) -> None:
    """``words.ipynb``: stock transformers; the mean loss of the last steps is well below that of the first. All steps with --full-sweep."""
    kernel = open_notebook(member, "words.ipynb")
    cells = "\0".join(kernel.cells)
    assert "range(1, 201)" in cells and "range(100)" in cells
    if not full_sweep:
        cells = cells.replace("range(1, 201)", "range(1, 76)").replace("range(100)", "range(20)")
    printed = "".join(kernel.run(cell) for cell in cells.split("\0"))
    first, last = re.search(r"the loss fell from ([\d.]+) to ([\d.]+)", printed).groups()  # type: ignore[union-attr]
    assert float(last) < 0.9 * float(first)
