"""Every operation that the services' OpenAPI documents have for tenants is called by the client, with each of its arguments and fields."""

from __future__ import annotations

import json
import re
import runpy
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from http.client import HTTPResponse
from inspect import signature
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from forebay.client import Client, Conflict, Forbidden, NotFound, PreconditionFailed, Refused
from forebay.service import Service

WRITER = runpy.run_path(str(Path(__file__).parents[2] / "device" / "client_models.py"))
NAMES = {"pool": "pool", "billing service": "billing"}
START = datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
LAST_MONTH = START - timedelta(days=3)
SECOND_NS = 10**9


def ns(moment: datetime) -> int:
    return int(moment.timestamp()) * SECOND_NS


@dataclass
class Heard:
    """What was asked: of each service, method and path the names of arguments and of the body's fields."""

    calls: dict[tuple[str, str, str], set[str]] = field(default_factory=lambda: defaultdict(set))

    def hear(self, service: str, method: str, path: str, body: bytes | None, headers: Any) -> None:
        path, _, query = path.partition("?")
        names = {name for name, _ in parse_qsl(query)} | set(json.loads(body) if body else ()) | set(headers)
        self.calls[service, method, "/" + path] |= names

    def missing(self, documents: dict[str, Any]) -> list[str]:
        """What nobody asked."""
        found = []
        for service, document in documents.items():
            for method, path, operation in WRITER["operations"](document):
                pattern = re.sub(r"{\w+}", "[^/]+", path)
                calls = {what: names for (of, how, what), names in self.calls.items() if (of, how) == (service, method.upper())}
                asked = [names for what, names in calls.items() if re.fullmatch(pattern, what)]
                named = f"{service}: {method.upper()} {path}"
                unnamed = sorted(arguments(operation, document) - set().union(*asked))
                found += [named] if not asked else [f"{named} {name}" for name in unnamed]
        return found


def arguments(operation: dict[str, Any], document: dict[str, Any]) -> set[str]:
    """The names of all that may be sent, paths aside. A key that makes a request be done once is the connection's affair."""
    names = {one["name"] for one in operation.get("parameters", []) if one["in"] != "path"}
    for content in operation.get("requestBody", {}).get("content", {}).values():
        names |= set(document["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]["properties"])
    return names - {"Idempotency-Key", "If-None-Match"}


@pytest.fixture(scope="module")
def heard() -> Iterator[Heard]:
    """Listens to all calls of this module, which go on to the services."""
    heard, opened = Heard(), Service._open

    def listen(self: Service, method: str, path: str, body: bytes | None, kind: str, headers: Any, seconds: float) -> HTTPResponse:
        heard.hear(NAMES[self.name], method, path, body, headers)
        return opened(self, method, path, body, kind, headers, seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Service, "_open", listen)
        yield heard


@pytest.fixture(scope="module")
def used(cloud: Any) -> list[dict[str, Any]]:
    """Usage of this month, the newest first, and of the last one, whose invoice is final and has a credit note."""
    put = {"price_nano_per_hour": 3_600_000_000, "currency": "USD", "valid_from_ns": ns(LAST_MONTH - timedelta(days=20))}
    cloud.ask("billing", "operator", "PUT", "api/prices/dev.1gb", json=put)
    surcharge = {"surcharge_nano_per_hour": 7, "currency": "USD"}
    cloud.ask("billing", "operator", "PUT", "api/surcharges/null", json=surcharge)
    cloud.ask("billing", "operator", "PUT", "api/parked-prices/USD", json={"price_nano_per_gib_hour": 10**6})
    hour = 3600 * SECOND_NS
    records = [cloud.record_usage(started_at_ns=ns(LAST_MONTH) + at * hour, duration_ns=hour + 1) for at in range(3)]
    month = f"{LAST_MONTH:%Y-%m}"
    (invoice,) = cloud.ask("billing", "operator", "POST", "api/invoices", json={"tenant": "acme", "month": month})
    note = {"amount_minor": 1, "reason": "a gift"}
    cloud.ask("billing", "operator", "POST", f"api/invoices/{invoice['number']}/credit-notes", json=note)
    plan = {"currency": "USD", "valid_from": f"{START:%Y-%m}", "discount_bps": 500}
    cloud.ask("billing", "operator", "PUT", "api/plans/acme", json=plan)
    credit = {"tenant": "acme", "kind": "prepaid", "name": "Ahead", "amount_minor": 2}
    cloud.ask("billing", "operator", "POST", "api/credits", json=credit)
    return [cloud.record_usage(), cloud.record_usage(), *reversed(records)]


@pytest.fixture(scope="module")
def owner(heard: Heard, used: Any, client_of: Callable[[str], Client]) -> Client:
    return client_of("acme-owner")


@pytest.fixture(scope="module")
def operator(heard: Heard, used: Any, client_of: Callable[[str], Client]) -> Client:
    return client_of("operator")


def test_the_pool_is_asked_for_flavors_sessions_queue_and_the_choice(cloud: Any, owner: Client) -> None:
    flavor = next(one for one in owner.flavors() if one.name == "dev.1gb")
    assert flavor.servable and flavor.memory_bytes == 2**30 and flavor.equivalents[0].count == 1
    assert owner.choose_flavor("dev.4gb") == owner.chosen_flavor() == "dev.4gb"
    assert owner.choose_flavor("dev.1gb") == "dev.1gb"
    with cloud.session("acme-owner") as link:
        (session,) = owner.sessions()
        assert (session.user, session.flavor, session.state) == ("acme-owner", "dev.1gb", "idle")
        granted = link.acquire()
        owner_row = next(one for one in owner.sessions() if one.session == session.session)
        assert owner_row.state == "active" and owner_row.span is not None and owner_row.span.label == "digits.ipynb"
        assert owner.queue() == []
        link.release(granted.epoch)
        deadline = time.monotonic() + 20
        while not (found := owner.receipts(f"{START:%Y-%m}", after="!")).receipts and time.monotonic() < deadline:
            time.sleep(0.05)
        (closed,) = [receipt for one in found.receipts if (receipt := json.loads(one.text))["kind"] == "closed"]
        assert (closed["lease"], closed["user"], len(found.key)) == (granted.lease, "acme-owner", 64)
        owner.end_session(session.session)
        assert owner.sessions() == []
    with pytest.raises(NotFound):
        owner.end_session("none")


def test_an_owner_bounds_members_within_what_an_operator_set(cloud: Any, owner: Client) -> None:
    assert owner.quota("acme").devices_milli is None
    bounds: dict[str, Any] = {"devices_milli": 1500, "device_seconds": 36_000, "window_seconds": 86_400, "on_exhausted": "revoke"}
    more: dict[str, Any] = {"priority_max": -1, "weight": 2, "parked_bytes": 2**30, "on_parked_full": "end"}
    made = owner.set_quota("acme", "acme-member", **bounds, **more, etag=owner.quota("acme", "acme-member").etag)
    assert (made.user, made.devices_milli, made.origin) == ("acme-member", 1500, "owner")
    assert [one.user for one in owner.quotas() if one.tenant == "acme"] == ["acme-member"]
    with pytest.raises(PreconditionFailed):
        owner.set_quota("acme", "acme-member", etag='"gone"')
    assert owner.set_quota("acme", "acme-member").devices_milli is None
    cloud.ask("pool", "operator", "PUT", "api/quotas/acme/acme-member", json={"devices_milli": 1000})
    with pytest.raises(Forbidden, match="An operator set what acme-member is held to"):
        owner.set_quota("acme", "acme-member", devices_milli=9000)
    with pytest.raises(Forbidden):
        owner.quota("globex")
    cloud.ask("pool", "operator", "PUT", "api/quotas/acme/acme-member", json={})


def test_notices_go_where_their_person_says(owner: Client) -> None:
    added = owner.add_notice_channel("slack", "https://hooks.acme.example/T1")
    assert (added.confirmed, added.kind) == (True, "slack")
    assert owner.confirm_notice_channel(added.id, "none is needed").target == added.target
    assert owner.notify("failed", "train.ipynb", 75.0, cell=7, first_line="fit()", why="ValueError") == 1
    assert [one.id for one in owner.notice_channels()] == [added.id]
    assert owner.prefer_notices(language="ko", jobs="failures").language == "ko"
    assert (owner.notice_preferences().jobs, owner.prefer_notices(jobs="none").language) == ("failures", "ko")
    owner.remove_notice_channel(added.id)
    assert owner.notify("ended", "train.ipynb", 75.0) == 0


def test_jobs_are_submitted_followed_and_cancelled(owner: Client, tmp_path: Path) -> None:
    terms: dict[str, Any] = {"kind": "script", "folder": "work", "name": "nightly", "flavor": "dev.1gb"}
    bounds: dict[str, Any] = {"retries_max": 1, "time_limit_seconds": 60, "notify": "all", "environment": "work"}
    job = owner.submit("work/train.py", ["--epochs", "3"], **terms, **bounds)
    (tmp_path / "sent").mkdir()
    (tmp_path / "sent" / "train.py").write_text("print(1)")
    files = owner.send_files(tmp_path / "sent")
    named = owner.submit("work/train.py", label="experiment first")
    assert named.label == "experiment first" and owner.cancel_job(named.id).label == named.label
    assert (job.name, job.arguments, job.retries_max, job.label) == ("nightly", ["--epochs", "3"], 1, f"job {job.id}: nightly")
    assert (job.notify, job.environment) == ("all", "work")
    assert owner.jobs(limit=1, before=named.id, everybody=True)[0].id == owner.job(job.id).id == job.id
    assert owner.job_output(job.id, attempt=1, after=0, wait_seconds=0).pieces == []
    assert owner.cancel_job(job.id).sentence == "Its user cancelled it."
    with pytest.raises(Conflict, match=f"Job {job.id} is cancelled already"):
        owner.cancel_job(job.id)
    assert "".join(owner.follow_job(job.id)) == ""
    made = owner.schedule("30 2 * * 1-5", "work/train.py", [], zone="Asia/Seoul", label="experiment first", files=files, **terms, **bounds)
    assert made.label == "experiment first" and made.files == files
    assert made in owner.schedules(everybody=True) and made.next_at_ns > ns(START)
    owner.remove_schedule(made.id)
    assert owner.schedules() == []
    with pytest.raises(NotFound):
        owner.job(10**6)
    brought = owner.submit("train.py", files=files)
    assert brought.files == files and owner.cancel_job(brought.id).files == files
    with pytest.raises(Refused, match="left no files"):
        owner.fetch_files(brought.id, tmp_path / "back")


def test_a_notebook_is_shared_read_and_taken_back(owner: Client, client_of: Callable[[str], Client]) -> None:
    member = client_of("acme-member")
    made = owner.share_page("digits.ipynb", "<p>0.5</p>", days=1)
    assert member.shared_page(made.id, key=made.key) == "<p>0.5</p>" == owner.shared_page(made.id)
    assert member.shared_notebook(made.id, key=made.key).user == "acme-owner"
    assert [one.id for one in owner.shared_notebooks(everybody=True)] == [made.id]
    owner.unshare(made.id)
    with pytest.raises(NotFound, match="This link opens nothing for you"):
        member.shared_notebook(made.id, key=made.key)


def test_events_come_as_they_happen(cloud: Any, owner: Client) -> None:
    with owner.events() as events, cloud.session("acme-owner") as link:
        link.release(link.acquire().epoch)
        kinds = set()
        for event in events:
            kinds.add(event.kind)
            assert event.row["user"] == "acme-owner"
            if kinds == {"session", "lease"}:
                break


def test_usage_comes_a_page_at_a_time_and_is_exact(owner: Client, used: list[dict[str, Any]]) -> None:
    assert {one.id for one in owner.usage(user="acme-member")} == {one["id"] for one in used}
    asked = {"notebook": "digits.ipynb", "cell": 7, "user": "acme-member", "tenant": "acme"}
    month = list(owner.usage(LAST_MONTH, START, page_records=2, **asked))
    assert [one.id for one in month] == [one["id"] for one in used[2:]]
    exact = Decimal(3600 * SECOND_NS + 1) * 3_600_000_000 / Decimal(3600 * SECOND_NS) / SECOND_NS
    assert {one.cost_exact for one in month} == {exact} and all(type(one.cost_exact) is Decimal for one in month)
    assert [one.duration_ns for one in month] == [3600 * SECOND_NS + 1] * 3
    assert list(owner.usage(ns(LAST_MONTH), ns(START), page_records=2, **asked)) == month
    assert list(owner.usage(cell_id="none")) == []


def test_usage_is_summed_and_stated(owner: Client, used: list[dict[str, Any]]) -> None:
    rows = owner.summary(("day", "user"), LAST_MONTH, START, zone="Asia/Seoul", tenant="acme", user="acme-member", notebook="digits.ipynb")
    assert sum(one.leases for one in rows) == 3 and {one.user for one in rows} == {"acme-member"}
    statement = owner.statement(f"{LAST_MONTH:%Y-%m}", tenant="acme", user="acme-member")
    assert statement.totals[0].amount == sum(line.amount for line in statement.lines) > 0
    assert owner.statement_file(f"{LAST_MONTH:%Y-%m}", "csv").count(b"\n") > 1
    assert owner.forecast(tenant="acme", user="acme-member")[0].currency == "USD"
    assert owner.balance(tenant="acme").balances[0].owed_nano > 0


def test_runs_of_jobs_have_their_costs(cloud: Any, owner: Client) -> None:
    span = {"id": "job-7/2/" + "0" * 32, "kind": "process", "label": "job 7: train.py"}
    record = cloud.record_usage(span=span, user="acme-owner")
    (cost,) = owner.job_costs([7, 8], LAST_MONTH, tenant="acme", user="acme-owner")
    assert (cost.job, cost.attempt, cost.duration_ns, cost.open_nano) == (7, 2, record["duration_ns"], 0)
    assert type(cost.cost_exact) is Decimal and cost.cost_exact > 0


def test_prices_are_told(owner: Client) -> None:
    (price,) = owner.prices(flavor="dev.1gb", history=True)[-1:]
    assert price.price_nano_per_hour == 3_600_000_000 and price.changed_by == "operator"
    assert owner.surcharges(history=True)[0].surcharge_nano_per_hour == 7
    assert owner.parked_prices()[0].price_nano_per_gib_hour == 10**6
    assert "dev.1gb" in owner.price_list()
    plans = owner.plans(tenant="acme", history=True) + owner.plans(month=f"{START:%Y-%m}")
    assert {one.discount_bps for one in plans} >= {500}


def test_budgets_are_made_changed_and_removed(owner: Client) -> None:
    terms: dict[str, Any] = {"tenant": "acme", "user": "acme-member", "currency": "USD", "window": "total", "thresholds": [50]}
    made = owner.set_budget(10**12, notebook="digits.ipynb", on_limit="drain", grace_seconds=5, new=True, **terms)
    (standing,) = owner.budgets(tenant="acme", user="acme-member")
    assert (standing.id, standing.limit_nano, standing.grace_seconds) == (made.id, 10**12, 5)
    changed = owner.set_budget(2 * 10**12, notebook="digits.ipynb", etag=made.etag, **terms)
    assert changed.limit_nano == 2 * 10**12
    owner.remove_budget(changed.id, etag=changed.etag)
    assert owner.budgets() == []


def test_alerts_and_reports_have_addresses(owner: Client) -> None:
    assert owner.alerts(tenant="acme", user="acme-member", since=START) == []
    channel = owner.add_alert_channel("webhook", "http://127.0.0.1:9/", tenant="acme")
    assert channel.secret and owner.alert_channels(tenant="acme")[0].secret is None
    assert owner.retry_alert_channel(channel.id) == 0
    owner.remove_alert_channel(channel.id)
    chat = owner.add_alert_channel("slack", "http://127.0.0.1:9/services/T0AB/B0CD/secret", tenant="acme")
    assert (chat.secret, chat.target) == (None, "http://127.0.0.1:9/…cret")
    owner.remove_alert_channel(chat.id)
    recipient = owner.add_report_recipient("pays@acme.example", tenant="acme")
    assert owner.report_recipients(tenant="acme") == [recipient]
    owner.remove_report_recipient(recipient.id)
    assert owner.report_file(f"{LAST_MONTH:%Y-%m}", tenant="acme").startswith(b"%PDF")


def test_invoices_are_read_with_their_lines_and_cells(owner: Client, used: list[dict[str, Any]]) -> None:
    month, this = f"{LAST_MONTH:%Y-%m}", f"{START:%Y-%m}"
    (short,) = owner.invoices(tenant="acme", month=month, state="open")
    assert owner.invoices(tenant="acme", limit=1, before=short.number) == []
    invoice = owner.invoice(short.number)
    assert invoice.total == sum(line.amount for line in invoice.lines) + invoice.tax - invoice.credit
    key = next(line.key for line in invoice.lines if line.usage is not None)
    cells = list(owner.invoice_cells(short.number, key, page_cells=2))
    assert sorted(cell.record_id for cell in cells) == sorted(one["id"] for one in used[2:])
    assert owner.invoice_file(short.number, "pdf").startswith(b"%PDF")
    (note,) = invoice.credit_notes
    assert owner.credit_note(note.name).amount == Decimal("0.01")
    assert owner.credit_note_file(note.name, "html").startswith(b"<!")
    assert b"BilledCost" in owner.focus_file(month, tenant="acme")
    (draft,) = owner.drafts(this, tenant="acme", currency="USD")
    line = next(line for line in draft.lines if line.usage is not None)
    cells = list(owner.draft_cells(this, line.key, tenant="acme", currency="USD", page_cells=1))
    assert len(cells) == 2 and owner.draft_file(this, "csv", tenant="acme", currency="USD")


def test_who_pays_is_told_and_changed(owner: Client, operator: Client) -> None:
    told = owner.set_profile("acme", legal_name="Acme", address="Here", tax_id="1", email="a@acme.example")
    taxed = operator.set_profile("acme", tax_label="VAT", tax_bps=1000, etag=told.etag)
    with pytest.raises(Conflict, match="currency stays as it is"):
        operator.set_profile("acme", currency="JPY")
    with pytest.raises(PreconditionFailed):
        owner.set_profile("acme", legal_name="Other", etag=told.etag)
    assert owner.profile("acme") == taxed and taxed.legal_name == "Acme" and taxed.tax_bps == 1000
    assert owner.credits(tenant="acme")[0].amount == Decimal("0.02")
    assert owner.tenants(tenant="acme")[0].currency == "USD"
    assert owner.set_payment_contact("acme", "Acme", email="a@acme.example") == owner.payment_contact("acme")
    assert owner.payment_invoices(tenant="acme") == []
    with pytest.raises(Conflict, match="has no customer at Stripe"):
        owner.payment_portal(tenant="acme")


def test_a_member_is_refused_what_is_the_owners(used: Any, client_of: Callable[[str], Client]) -> None:
    with pytest.raises(Forbidden) as refusal:
        client_of("acme-member").invoices()
    assert (refusal.value.code, refusal.value.status) == ("forbidden", 403)


def test_no_operation_for_tenants_is_out_of_the_clients_reach(heard: Heard, request: pytest.FixtureRequest) -> None:
    """After the tests that ask."""
    tests = {name: one for name, one in vars(request.module).items() if name.startswith("test_")}
    asking = {name for name, one in tests.items() if "owner" in signature(one).parameters}
    if not asking <= {item.name for item in request.session.items}:
        pytest.skip("the tests that ask are not all run")
    assert heard.missing(WRITER["DOCUMENTS"]) == [], "add a method to forebay.client, and a test here that calls it"


def test_an_operation_or_an_argument_that_nobody_gives_would_be_found() -> None:
    kind = {"tags": ["tenants"], "parameters": [{"name": "limit", "in": "query"}], "responses": {}}
    staff = {**kind, "tags": ["operators"]}
    document = {"paths": {"/api/news": {"get": kind, "put": staff}, "/api/news/{name}": {"get": kind}}}
    heard = Heard()
    heard.hear("pool", "GET", "api/news/today", None, ())
    assert heard.missing({"pool": document}) == ["pool: GET /api/news", "pool: GET /api/news/{name} limit"]
    heard.hear("pool", "GET", "api/news/now?limit=1", None, ())
    assert heard.missing({"pool": document}) == ["pool: GET /api/news"]


@pytest.mark.parametrize("service", WRITER["DOCUMENTS"])
def test_types_of_answers_are_those_of_the_documents(service: str) -> None:
    written = (WRITER["FOLDER"] / f"{service}.py").read_text(encoding="utf-8")
    assert WRITER["models_of"](service) == written, "run .venv/bin/python device/client_models.py"
