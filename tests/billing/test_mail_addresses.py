"""One address is one recipient, whoever gives it, and nobody has more sent than a channel's share of a day."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from forebay_billing.documents.messages import Message
from forebay_billing.tasks.smtp import Mailbox
from forebay_billing.tasks.webhooks import Undelivered
from forebay_billing.writes import alerts, notices
from forebay_service.people.addresses import address_of, is_address
from test_alerts import Post, Receiver, add, health, post, receiver  # noqa: F401 - fixtures
from test_notices import NOTICE, ask, serving, step  # noqa: F401 - fixtures

NO_ADDRESSES = (
    "me@=?utf-8?q?mine.cc=2Cv0=40x0.cc=2Cv1=40x1.cc?=", "me@=?utf-8?q?mine.cc=0D=0ASubject=3A_Win?=", "=?utf-8?q?a=40x.cc=2Cb?=@x.cc",
    "=?utf-8?b?YUB4LmNjLGI=?=@x.cc", "a@x.cc,b@y.cc", "a@x.cc;b@y.cc", "a@x.cc b@y.cc", "Ann <a@x.cc>", "<a@x.cc>", "a@x.cc (b)",
    "g:a@x.cc,b@y.cc;", '"a,b"@x.cc', '"a@y.cc"@x.cc', "a@b@x.cc", "a@[10.0.0.1]", "a@x.cc\r\nBcc: b@y.cc", "a@x.cc\n", " a@x.cc",
    "a\x00@x.cc", "a\u202e@x.cc", "a@x.cc\u2028", "\u00fc@x.cc", "@x.cc", "a@", "a", "a..b@x.cc", ".a@x.cc", "a@-x.cc",
    f"{'a' * 65}@x.cc", f"a@{'x' * 64}.cc", f"a@{'.'.join(['x' * 60] * 5)}.cc", "a@x..cc",
)  # fmt: skip
"""Each is no address, or more than one to some mail program."""
PLACES = (
    ("acme-owner", "POST", "/api/notices/channels", {"kind": "email"}, "target"),
    ("acme-owner", "POST", "/api/alerts/channels", {"kind": "email"}, "target"),
    ("acme-owner", "POST", "/api/reports/recipients", {}, "target"),
    ("pool", "POST", "/api/letters", {"subject": "Hello", "text": "Hello.\n"}, "to"),
    ("acme-owner", "PUT", "/api/profiles/acme", {"legal_name": "Acme"}, "email"),
    ("operator", "PUT", "/api/payments/contacts/acme", {"name": "Acme"}, "email"),
)
"""Where billing takes an address."""


def mailbox(port: int) -> Mailbox:
    return Mailbox("127.0.0.1", port, "none", "bills@cloud.example")


@pytest.mark.parametrize("text", NO_ADDRESSES)
def test_what_could_be_several_addresses_is_none(text: str, post: tuple[Post, int]) -> None:  # noqa: F811
    with pytest.raises(ValueError):
        address_of(text)
    with pytest.raises(Undelivered, match="cannot be written"):
        mailbox(post[1]).send(text, Message("m-1", "Hello", "Hello.\n"), 0)
    assert post[0].mails == []


@pytest.mark.parametrize("text", ["a@x.cc", "ada.lovelace+gpu@mail.example.org", "root@localhost", "ops@corp.local", "o'neil=x?y@x.cc"])
def test_what_is_one_address_gets_the_mail_alone(text: str, post: tuple[Post, int]) -> None:  # noqa: F811
    assert is_address(text)
    mailbox(post[1]).send(text, Message("m-1", "Hello", "Hello.\n"), 0)
    (mail,) = post[0].mails
    assert post[0].recipients == [[text]] and [one.addr_spec for one in mail["To"].addresses] == [text]
    assert address_of("a@b\u00fccher.example") == "a@xn--bcher-kva.example"


def test_every_place_that_takes_an_address_takes_one_alone(serving: Any, post: tuple[Post, int]) -> None:  # noqa: F811
    running = serving()
    for caller, method, path, body, field in PLACES:
        for text in NO_ADDRESSES:
            answer = running.request(caller, method, path, json={**body, field: text})
            assert answer.status_code == 400, (path, text, answer.text)
        assert running.request(caller, method, path, json={**body, field: "me@acme.example"}).status_code != 400, path
    assert post[0].recipients == [["me@acme.example"]] * 2, "a code and a letter"


def test_a_subject_is_what_it_says_and_no_encoded_word_in_it_is_decoded(post: tuple[Post, int]) -> None:  # noqa: F811
    subject = "=?utf-8?q?Win_a_prize=0D=0ABcc=3A_b=40y.cc?=: cell 7 has ended"
    mailbox(post[1]).send("a@x.cc", Message("m-1", subject, "Hello.\n"), 0)
    (mail,) = post[0].mails
    assert mail["Subject"] == subject.replace("=?", "= ?") and mail["Bcc"] is None and post[0].recipients == [["a@x.cc"]]


def test_a_channel_gets_its_share_of_a_days_notices_and_no_more(
    serving: Callable[..., Any], receiver: Receiver, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:
    monkeypatch.setattr(notices, "CHANNEL_DAILY_MAX", 3)
    running = serving()
    ask(running, "POST", "/channels", {"kind": "webhook", "target": receiver.url})
    assert [ask(running, "POST", "", NOTICE)["channels"] for _ in range(5)] == [1, 1, 1, 0, 0]
    ask(running, "POST", "/channels", {"kind": "slack", "target": receiver.url})
    assert ask(running, "POST", "", NOTICE)["channels"] == 1, "another channel has a share of its own"
    running.clock.now_ns += 24 * 3600 * 10**9 + 1
    assert ask(running, "POST", "", NOTICE)["channels"] == 2


def test_a_tenants_channel_gets_its_share_of_a_days_alerts_and_the_rest_can_be_had_later(
    serving: Callable[..., Any], receiver: Receiver, usage: Any, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:
    """Nor does asking again bring more within the day."""
    monkeypatch.setattr(alerts, "CHANNEL_DAILY_MAX", 3)
    running = serving()
    add(running, "webhook", f"{receiver.url}/acme")
    add(running, "webhook", f"{receiver.url}/all", "operator")
    price = running.get("operator", "/api/prices", flavor="small.64gb").json()[0]["price_nano_per_hour"]
    body = {"limit_nano": price // 60, "thresholds": [10, 20, 30, 40, 50], "new": True}
    assert running.request("acme-owner", "PUT", "/api/budgets", json=body).status_code == 200
    assert running.post_usage(usage("a/1")).status_code == 200

    def deliver() -> list[str]:
        receiver.received.clear()
        while running._run(running.service.budgets.step()):
            continue
        return sorted(path.rpartition("/")[2] for path, _, _ in receiver.received)

    assert deliver() == ["acme"] * 3 + ["all"] * 5
    (row,) = health(running)
    assert (row["done"], row["dead"]) == (3, 2) and "3 alerts went there within a day" in row["note"]
    again = {"action": "retry"}
    own = f"/api/alerts/channels/{row['id']}"
    assert running.request("acme-owner", "POST", own, json=again).json()["deliveries"] == 0
    running.clock.now_ns += 24 * 3600 * 10**9 + 1
    assert running.request("acme-owner", "POST", own, json=again).json()["deliveries"] == 2
    assert deliver() == ["acme"] * 2


def test_an_address_that_was_kept_before_the_rule_gets_nothing(serving: Any, post: tuple[Post, int]) -> None:  # noqa: F811
    running = serving()
    added = ask(running, "POST", "/channels", {"kind": "email", "target": "me@acme.example"})
    code = re.search(r"the code is (\w+)", post[0].mails[0].get_content())  # type: ignore[attr-defined]
    assert code is not None
    ask(running, "POST", f"/channels/{added['id']}", {"code": code[1]})

    def spoil(books: Any) -> None:
        books.connection.exec_driver_sql("UPDATE notice_channels SET target = 'me@=?utf-8?q?mine.cc=2Cv=40x.cc?='")

    running.service.store.submit(spoil).result()
    ask(running, "POST", "", NOTICE)
    step(running)
    assert len(post[0].mails) == 1 and "cannot be written" in ask(running, "GET", "/channels")[0]["note"]
