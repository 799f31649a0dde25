"""People are told of their own cells where they say: by mail once they know the code that went there, signed webhook, or in Slack's way."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from forebay_billing.documents.messages import line_of
from forebay_billing.reads.notices import Notice, Person
from forebay_billing.tasks import notices
from forebay_billing.writes.notices import ADDRESSES_DAILY_MAX, CHANNELS_PER_USER_MAX, CODE_TRIES_MAX, HOURLY_MAX
from running_billing import Running
from test_alerts import Post, Receiver, post, receiver, verified  # noqa: F401 - fixtures

MEMBER = "acme-member"
NOTICE = {"kind": "failed", "notebook": "train.ipynb", "cell": 7, "first_line": "fit()", "seconds": 75.4, "why": "ValueError"}


@pytest.fixture
def serving(
    settings: Any, clock: Any, running_service: Any, post: tuple[Post, int], monkeypatch: pytest.MonkeyPatch  # noqa: F811 - the fixture
) -> Iterator[Callable[..., Any]]:
    """Starts the service with such settings; its loop goes round when the test says so."""
    monkeypatch.setattr(notices.Notices, "start", lambda loop, leads: None)
    started = []

    def start(**changes: Any) -> Any:
        mail = {"smtp_host": "127.0.0.1", "smtp_port": post[1], "smtp_security": "none", "smtp_from": "bills@cloud.example"}
        started.append(running_service(settings.model_copy(update={"alert_private_addresses": True, **mail, **changes}), clock))
        return started[-1]

    yield start
    for service in started:
        service.stop()


def ask(running: Running, method: str, path: str, body: object = None, caller: str = MEMBER, status: int = 200) -> Any:
    response = running.request(caller, method, f"/api/notices{path}", **({} if body is None else {"json": body}))
    assert response.status_code == status, response.text
    return response.json()


def step(running: Running, seconds: float = 0) -> None:
    running.clock.now_ns += int(seconds * 10**9)
    while running._run(running.service.notices.step()):
        continue


def test_an_address_hears_nothing_before_its_owner_knows_the_code(serving: Any, post: tuple[Post, int]) -> None:  # noqa: F811
    running = serving()
    added = ask(running, "POST", "/channels", {"kind": "email", "target": "me@acme.example"})
    assert (added["confirmed"], added["secret"]) == (False, None)
    (mail,) = post[0].mails
    code = re.search(r"the code is (\w+)", mail.get_content())  # type: ignore[attr-defined]
    assert code is not None and mail["To"] == "me@acme.example"
    assert ask(running, "POST", "", NOTICE) == {"channels": 0}
    step(running)
    assert len(post[0].mails) == 1
    own = f"/channels/{added['id']}"
    assert ask(running, "POST", own, {"code": "wrong"}, status=400)["error"]["fault"]["code"] == "code_wrong"
    ask(running, "POST", own, {"code": code[1]}, caller="acme-owner", status=404)
    assert ask(running, "POST", own, {"code": code[1].upper()})["confirmed"] is True
    assert ask(running, "POST", "", NOTICE) == {"channels": 1}
    step(running)
    told = post[0].mails[-1]
    assert told["Subject"] == "train.ipynb: cell 7 failed after 1 min 15 s: ValueError"
    assert "fit()" in told.get_content()  # type: ignore[attr-defined]
    ask(running, "DELETE", own)
    assert ask(running, "GET", "/channels") == []
    kinds = [one["action"] for one in running.get("operator", "/api/audit", subject="acme").json()["entries"]]
    assert kinds[:3] == ["notices.channel.remove", "notices.channel.confirm", "notices.channel.add"]


def test_codes_are_not_guessed_and_not_mailed_without_end(serving: Any, post: tuple[Post, int]) -> None:  # noqa: F811
    running = serving()
    added = ask(running, "POST", "/channels", {"kind": "email", "target": "me@acme.example"})
    for _ in range(CODE_TRIES_MAX):
        ask(running, "POST", f"/channels/{added['id']}", {"code": "0" * 8}, status=400)
    spent = ask(running, "POST", f"/channels/{added['id']}", {"code": "0" * 8}, status=400)
    assert spent["error"]["fault"]["code"] == "code_spent"
    for number in range(1, ADDRESSES_DAILY_MAX):
        other = ask(running, "POST", "/channels", {"kind": "email", "target": f"n{number}@acme.example"})
        ask(running, "DELETE", f"/channels/{other['id']}")
    ask(running, "POST", "/channels", {"kind": "email", "target": "one-more@acme.example"}, status=413)
    running.clock.now_ns += 25 * 3600 * 10**9
    post[0].refusals = ["550 no such box"]
    ask(running, "POST", "/channels", {"kind": "email", "target": "gone@acme.example"}, status=409)
    assert [one["target"] for one in ask(running, "GET", "/channels")] == ["me@acme.example"], "what took no code is not kept"


def test_webhooks_are_signed_and_slack_gets_a_text(serving: Any, receiver: Receiver) -> None:  # noqa: F811
    running = serving()
    secret = ask(running, "POST", "/channels", {"kind": "webhook", "target": receiver.url})["secret"]
    ask(running, "POST", "/channels", {"kind": "slack", "target": receiver.url})
    receiver.statuses = [500]
    assert ask(running, "POST", "", {**NOTICE, "kind": "ended", "why": None}) == {"channels": 2}
    step(running)
    step(running, 30)
    bodies = [(headers, body, json.loads(body)) for _, headers, body in receiver.received]
    signed = [(headers, body, told) for headers, body, told in bodies if "data" in told]
    assert signed and all(verified(secret, headers, body) for headers, body, _ in signed)
    assert signed[0][2]["type"] == "notebook.cell_ended" and signed[0][2]["data"]["notebook"] == "train.ipynb"
    assert {"text": "train.ipynb: cell 7 has ended after 1 min 15 s."} in [told for _, _, told in bodies]
    assert len(bodies) == 3, "what failed came again"
    assert all("webhook-signature" not in headers for headers, _, told in bodies if "text" in told)
    assert [one["note"] for one in ask(running, "GET", "/channels")] == [None, None]


JOB = {
    "key": "pool/job-17/1/failed", "tenant": "acme", "user": MEMBER, "job": 17, "kind": "failed", "label": "job 17: train.py",
    "seconds": 75.4, "why": "The program ended with status 3.",
    "cause": {"code": "exit_status", "values": {"exit_status": 3, "time_limit_seconds": None}},
}  # fmt: skip


def test_people_are_told_of_their_jobs_as_each_job_says_or_as_they_prefer(serving: Any, receiver: Receiver) -> None:  # noqa: F811
    running = serving()
    ask(running, "POST", "/channels", {"kind": "webhook", "target": receiver.url})
    ask(running, "POST", "/channels", {"kind": "slack", "target": receiver.url})

    def told(key: str, **changes: Any) -> int:
        return int(ask(running, "POST", "/jobs", {**JOB, "key": key, **changes}, caller="pool")["channels"])

    assert told("a") == 0, "nothing is told of jobs before somebody asks for it"
    assert [told("b", notify="failures"), told("b", notify="failures"), told("c", notify="failures", kind="ended")] == [2, 0, 0]
    ask(running, "PATCH", "/preferences", {"jobs": "failures"})
    assert [told("d", kind="budget"), told("e", kind="retried"), told("f", notify="none")] == [2, 0, 0]
    assert told("g", notify="all", kind="ended") == 2, "each job may say otherwise"
    ask(running, "PATCH", "/preferences", {"jobs": "all"})
    assert told("h", kind="retried") == 2
    step(running)
    bodies = [json.loads(body) for _, _, body in receiver.received]
    assert {body["text"] for body in bodies if "text" in body} == {
        "job 17: train.py failed after 1 min 15 s: The program ended with status 3.",
        "job 17: train.py is stopped by a budget: The program ended with status 3.",
        "job 17: train.py has ended after 1 min 15 s.",
        "job 17: train.py is run again, as its run was lost: The program ended with status 3.",
    }
    assert {body["type"] for body in bodies if "type" in body} == {"job.failed", "job.budget", "job.ended", "job.retried"}
    (failed,) = (body["data"] for body in bodies if body.get("type") == "job.failed")
    assert (failed["job"], failed["label"], failed["why"]) == (17, "job 17: train.py", "The program ended with status 3.")
    ask(running, "POST", "/jobs", {**JOB, "key": "i"}, status=403)
    for wrong in ({"kind": "waits"}, {"notify": "some"}, {"job": -1}, {"cause": {"code": "A B", "values": {}}}):
        assert ask(running, "POST", "/jobs", {**JOB, **wrong}, caller="pool", status=400)["error"]["code"] == "invalid"


def test_each_is_told_in_the_language_that_they_chose_and_others_in_the_installations(
    serving: Any, receiver: Receiver, post: tuple[Post, int]  # noqa: F811
) -> None:  # fmt: skip
    running = serving(language="ko")
    ask(running, "POST", "/channels", {"kind": "slack", "target": receiver.url})
    ask(running, "POST", "/channels", {"kind": "slack", "target": receiver.url}, caller="acme-owner")
    ask(running, "PATCH", "/preferences", {"language": "en"}, caller="acme-owner")
    for user in (MEMBER, "acme-owner"):
        ask(running, "POST", "/jobs", {**JOB, "key": user, "user": user, "notify": "all"}, caller="pool")
    step(running)
    assert {json.loads(body)["text"] for _, _, body in receiver.received} == {
        "job 17: train.py failed after 1 min 15 s: The program ended with status 3.",
        "job 17: train.py: 1분 15초 만에 실패했습니다: 프로그램이 상태 3(으)로 끝났습니다.",
    }
    ask(running, "POST", "/channels", {"kind": "email", "target": "me@acme.example"})
    assert re.fullmatch(r"Forebay 코드: \w{8}", post[0].mails[-1]["Subject"])
    assert ask(running, "GET", "/preferences") == {"language": None, "jobs": None, "common_language": "ko"}
    ask(running, "PATCH", "/preferences", {"language": "xx"}, status=400)
    ask(running, "PATCH", "/preferences", {"language": "en"}, caller="operator")
    ask(running, "PATCH", "/preferences", {"language": "ko", "jobs": "all"})
    for changes, left in (({"jobs": "none"}, ("ko", "none")), ({}, ("ko", "none")), ({"language": None}, (None, "none"))):
        row = ask(running, "PATCH", "/preferences", changes)
        assert (row["language"], row["jobs"]) == left, "what is not named stays"
    ask(running, "GET", "/preferences", caller="pool", status=403)


def test_what_is_not_public_and_who_may_not_are_refused(serving: Any) -> None:
    running = serving(alert_private_addresses=False, smtp_host=None)
    for kind, target in (("webhook", "https://10.0.0.1/"), ("slack", "http://hooks.example/"), ("email", "me@acme.example")):
        ask(running, "POST", "/channels", {"kind": kind, "target": target}, status=400)
    ask(running, "GET", "/channels", caller="pool", status=403)
    ask(running, "POST", "", NOTICE, caller="operator", status=403)
    for wrong in ({"kind": "done"}, {"seconds": -1}, {"notebook": ""}, {"why": "x" * 301}):
        assert ask(running, "POST", "", {**NOTICE, **wrong}, status=400)["error"]["code"] == "invalid"
    assert ask(running, "GET", "/channels") == []


def test_so_many_notices_and_channels_are_a_persons_own_bound(serving: Any, receiver: Receiver) -> None:  # noqa: F811
    running = serving()
    for _ in range(CHANNELS_PER_USER_MAX):
        ask(running, "POST", "/channels", {"kind": "slack", "target": receiver.url})
    ask(running, "POST", "/channels", {"kind": "slack", "target": receiver.url}, status=413)
    for _ in range(HOURLY_MAX):
        ask(running, "POST", "", NOTICE)
    ask(running, "POST", "", NOTICE, status=413)
    running.clock.now_ns += 3601 * 10**9
    assert ask(running, "POST", "", NOTICE) == {"channels": CHANNELS_PER_USER_MAX}


def test_a_notice_is_one_line_whatever_a_notebook_is_called() -> None:
    notice = Notice(1, Person("acme", "ann"), "waits", "a\nb.ipynb", None, None, 7300.0, None, 0)
    assert line_of(notice, "en") == "a b.ipynb: cell ? waits for a device: no reason was told"
    ended = Notice(1, Person("acme", "ann"), "ended", "a.ipynb", 1, None, 7300.0, None, 0)
    assert line_of(ended, "en").endswith("after 2 h 1 min.")
