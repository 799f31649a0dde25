"""A tenant's month as PDF, for those who may see it and by e-mail."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from forebay_billing.documents.monthly_report import Report
from forebay_billing.documents.report_pdf import pdf
from forebay_billing.model.months import Month
from forebay_billing.model.types import Span, UsageRecord
from forebay_billing.rules.retries import GIVE_UP_NS
from forebay_billing.tasks import monthly_reports
from pypdf import PdfReader
from running_billing import Running

from tests.billing.test_alerts import Post, post  # noqa: F401 - a fixture

SECOND_NS = 10**9
DAY_NS = 86_400 * SECOND_NS
NOVEMBER = Month(2026, 11)

Make = Callable[..., UsageRecord]


@pytest.fixture
def serving(
    settings: Any, clock: Any, running_service: Any, post: tuple[Post, int], monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> Iterator[Callable[..., Any]]:  # fmt: skip
    """Starts the service with such settings; its loop goes round when the test says so."""
    monkeypatch.setattr(monthly_reports.MonthlyReports, "start", lambda loop, leads: None)
    started = []

    def start(**changes: Any) -> Any:
        mail = {"smtp_host": "127.0.0.1", "smtp_port": post[1], "smtp_security": "none", "smtp_from": "bills@cloud.example"}
        started.append(running_service(settings.model_copy(update={**mail, **changes}), clock))
        return started[-1]

    yield start
    for service in started:
        service.stop()


def step(running: Running, seconds: float = 0) -> None:
    running.clock.now_ns += int(seconds * SECOND_NS)
    running._run(running.service.reports.step())


def pages(content: bytes) -> str:
    return "\n".join(page.extract_text() for page in PdfReader(io.BytesIO(content)).pages)


def use(running: Running, usage: Make) -> None:
    answer = running.post_usage(
        usage("a/1", span=Span("s", "cell", "digits.ipynb", 3), duration_ns=3600 * SECOND_NS),
        usage("b/1", user="민수", span=Span("s", "process", "python train.py <b>", None), started_at_ns=NOVEMBER.start_ns + 3 * DAY_NS),
        usage("c/1", flavor="@parked", parked_bytes=2**30, duration_ns=3600 * SECOND_NS),
        usage("d/1", tenant="globex", user="globex-owner", span=Span("s", "cell", "secret.ipynb", 1)),
    )
    assert answer.status_code == 200, answer.text


def recipients(running: Running, caller: str = "acme-owner") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = running.get(caller, "/api/reports/recipients").json()
    return rows


def subscribe(running: Running, target: str = "money@acme.example", caller: str = "acme-owner", **more: Any) -> Any:
    return running.request(caller, "POST", "/api/reports/recipients", json={"target": target, **more})


def test_a_report_says_what_the_summary_says_on_both_databases(running_anywhere: Running, usage: Make) -> None:
    use(running_anywhere, usage)
    answer = running_anywhere.get("acme-billing", "/api/reports", month="2026-11")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/pdf" and 'filename="usage-2026-11.pdf"' in answer.headers["content-disposition"]
    text = pages(answer.content)
    (row,) = running_anywhere.get("acme-owner", "/api/summary", by="tenant").json()
    assert f"{row['cost_nano'] / 1e9:.9f} USD for 1.0167 device hours in 2 leases" in text
    for word in ("Usage of acme in 2026-11", "acme-member", "digits.ipynb", "python train.py <b>", "small.64gb", "parked memory"):
        assert word in text, word
    assert "secret" not in text and "globex" not in text
    assert "Nothing was used in this month." in pages(running_anywhere.get("acme-owner", "/api/reports", month="2026-10").content)


def test_the_same_report_makes_the_same_bytes_and_long_ones_take_pages() -> None:
    from forebay_billing.reads.summaries import SummaryRow

    rows = tuple(SummaryRow({"user": f"user-{number}"}, "USD", 10**9, 10**18, 1, 0) for number in range(200))
    total = SummaryRow({}, "USD", 200 * 10**9, 200 * 10**18, 200, 0)
    report = Report("acme", NOVEMBER, (total,), (), rows, (), ())
    assert pdf(report, "en") == pdf(report, "en") != pdf(report, "ko") == pdf(report, "ko")
    assert all(len(PdfReader(io.BytesIO(pdf(report, language))).pages) > 3 for language in ("en", "ko"))


def test_a_report_and_its_mail_are_in_the_language_of_whoever_has_it(
    serving: Any, post: tuple[Post, int], usage: Make  # noqa: F811
) -> None:  # fmt: skip
    running = serving()
    use(running, usage)
    running.request("acme-owner", "PATCH", "/api/notices/preferences", json={"language": "ko"}).raise_for_status()
    texts = {who: pages(running.get(who, "/api/reports", month="2026-11").content) for who in ("acme-owner", "acme-billing")}
    assert "acme 사용량, 2026-11" in texts["acme-owner"] and "노트북 또는 명령" in texts["acme-owner"]
    assert not any(word in texts["acme-owner"] for word in ("Usage", "Member", "Leases", "device", "list prices"))
    assert "Usage of acme in 2026-11" in texts["acme-billing"]
    subscribe(running)
    running.clock.now_ns = NOVEMBER.end_ns + 2 * DAY_NS
    step(running)
    (mail,) = post[0].mails
    (attached,) = mail.iter_attachments()  # type: ignore[attr-defined]
    assert mail["Subject"] == "acme 사용량, 2026-11" and "장치 시간" in pages(attached.get_content())


@pytest.mark.parametrize("query", [{}, {"month": "November"}, {"month": "2026-11", "format": "xml"}])
def test_a_bad_question_for_a_report_is_refused(serving: Any, query: dict[str, str]) -> None:
    assert serving().get("acme-owner", "/api/reports", **query).status_code == 400


def test_a_month_is_mailed_once_a_day_after_its_end_to_those_who_were_there_before(
    serving: Any, post: tuple[Post, int], usage: Make  # noqa: F811
) -> None:  # fmt: skip
    running = serving()
    use(running, usage)
    assert subscribe(running).status_code == 200
    step(running)
    assert post[0].mails == [] and recipients(running)[0]["latest"] is None
    running.clock.now_ns = NOVEMBER.end_ns + DAY_NS // 2
    subscribe(running, "late@acme.example")
    step(running)
    assert post[0].mails == []
    step(running, 86_400)
    (mail,) = post[0].mails
    assert (mail["To"], mail["Subject"]) == ("money@acme.example", "Usage of acme in 2026-11")
    (attached,) = mail.iter_attachments()  # type: ignore[attr-defined]
    assert attached.get_filename() == "usage-2026-11.pdf" and "digits.ipynb" in pages(attached.get_content())
    step(running, 86_400)
    assert len(post[0].mails) == 1
    assert [row["latest"] for row in recipients(running)] == [{"month": "2026-11", "state": "done", "note": None}, None]
    running.clock.now_ns = Month(2026, 12).end_ns + 2 * DAY_NS
    step(running)
    assert sorted(mail["To"] for mail in post[0].mails[1:]) == ["late@acme.example", "money@acme.example"]


def test_a_mail_that_is_not_taken_comes_again_and_is_given_up_in_the_end(
    serving: Any, post: tuple[Post, int]  # noqa: F811
) -> None:  # fmt: skip
    running = serving()
    subscribe(running)
    running.clock.now_ns = NOVEMBER.end_ns + 2 * DAY_NS
    post[0].refusals = ["451 try later"]
    step(running)
    assert post[0].mails == [] and "451" in recipients(running)[0]["latest"]["note"]
    step(running, 5)
    assert len(post[0].mails) == 1 and recipients(running)[0]["latest"]["state"] == "done"
    running.clock.now_ns = Month(2026, 12).end_ns + 2 * DAY_NS
    post[0].refusals = ["451 try later"] * 2
    step(running)
    step(running, GIVE_UP_NS / SECOND_NS)
    assert recipients(running)[0]["latest"]["state"] == "dead"
    step(running, 86_400)
    assert len(post[0].mails) == 1


def test_recipients_are_the_tenants_own_and_every_change_is_in_the_audit(serving: Any) -> None:
    running = serving()
    id = subscribe(running).json()["id"]
    assert recipients(running, "globex-owner") == []
    assert running.request("globex-owner", "DELETE", f"/api/reports/recipients/{id}").status_code == 404
    assert subscribe(running, caller="globex-owner", tenant="acme").status_code == 403
    assert subscribe(running, "no address").status_code == 400
    assert subscribe(running, "a@b.c\r\nBcc: x@y.z").status_code == 400
    assert subscribe(running, caller="operator").status_code == 400, "of which tenant?"
    assert running.request("acme-owner", "DELETE", f"/api/reports/recipients/{id}").json() == {"id": id, "removed": True}
    assert running.request("acme-owner", "DELETE", f"/api/reports/recipients/{id}").status_code == 404
    entries = running.get("operator", "/api/audit").json()["entries"]
    assert [entry["action"] for entry in entries[:2]] == ["reports.recipient.remove", "reports.recipient.add"]


def test_an_operators_recipient_of_a_tenant_of_whom_nothing_was_recorded_is_refused_until_it_has_a_profile(serving: Any) -> None:
    running = serving()
    refused = subscribe(running, caller="operator", tenant="amce")
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "unknown_tenant")
    assert "set its billing profile first" in refused.text
    entry = running.get("operator", "/api/audit").json()["entries"][0]
    assert (entry["action"], entry["subject"], entry["after"]["code"]) == ("reports.recipient.add.refused", "amce", "unknown_tenant")
    assert running.request("operator", "PUT", "/api/profiles/amce", json={"legal_name": "Amce"}).status_code == 200
    assert subscribe(running, caller="operator", tenant="amce").status_code == 200


def test_without_a_mail_server_nobody_is_promised_mail(settings: Any, clock: Any, running_service: Any) -> None:
    running = running_service(settings, clock)
    try:
        answer = subscribe(running)
        assert answer.status_code == 400 and "smtp_host" in answer.json()["error"]["message"]
    finally:
        running.stop()
