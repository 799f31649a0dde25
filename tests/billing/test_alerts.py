"""Alerts on their way: signed webhooks to a real server, mails through a real SMTP server, retries, and addresses that are refused."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import socket
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from email import message_from_bytes
from email.message import Message
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword
from forebay_billing import failpoints
from forebay_billing.errors import InvalidRequest
from forebay_billing.model.types import Span, UsageRecord
from forebay_billing.rules.retries import GIVE_UP_NS
from forebay_billing.tasks import budget_watch, webhooks
from forebay_billing.tasks.webhooks import check_target, is_public, signature
from forebay_billing.writes.alerts import CLAIMS
from pydantic import SecretStr
from running_billing import Running

SECOND_NS = 10**9


class Receiver:
    """A web server of a tenant: keeps what it is sent, and answers as it is told."""

    def __init__(self) -> None:
        self.received: list[tuple[str, dict[str, str], bytes]] = []
        self.statuses: list[int] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.received.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
                self.send_response(outer.statuses.pop(0) if outer.statuses else 204)
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        self._thread = threading.Thread(target=self.server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


class Post:
    """A mail server that keeps what it takes; those who sign in must know the password."""

    def __init__(self) -> None:
        self.mails: list[Message] = []
        self.recipients: list[list[str]] = []
        self.refusals: list[str] = []
        self.signed_in: list[bytes] = []

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:
        if self.refusals:
            return self.refusals.pop()
        self.recipients.append(list(envelope.rcpt_tos))
        self.mails.append(message_from_bytes(envelope.content, policy=default))
        return "250 taken"

    def authenticate(self, _server: Any, _session: Any, _envelope: Any, _mechanism: str, data: Any) -> AuthResult:
        right = isinstance(data, LoginPassword) and data.password == b"post-password"
        if right:
            self.signed_in.append(data.login)
        return AuthResult(success=right)


@pytest.fixture
def post() -> Iterator[tuple[Post, int]]:
    handler = Post()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    controller = Controller(handler, hostname="127.0.0.1", port=port, authenticator=handler.authenticate, auth_require_tls=False)
    controller.start()
    yield handler, port
    controller.stop()


@pytest.fixture
def serving(
    settings: Any, clock: Any, running_service: Any, post: tuple[Post, int], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Any]]:
    """Starts the service with such settings; its loop goes round when the test says so."""
    monkeypatch.setattr(budget_watch.BudgetWatch, "start", lambda loop, leads: None)
    started = []

    def start(**changes: Any) -> Any:
        mail = {"smtp_host": "127.0.0.1", "smtp_port": post[1], "smtp_security": "none", "smtp_from": "bills@cloud.example"}
        started.append(running_service(settings.model_copy(update={"alert_private_addresses": True, **mail, **changes}), clock))
        return started[-1]

    yield start
    for service in started:
        service.stop()


def add(running: Running, kind: str, target: str, caller: str = "acme-owner", **more: Any) -> dict[str, Any]:
    response = running.request(caller, "POST", "/api/alerts/channels", json={"kind": kind, "target": target, **more})
    assert response.status_code == 200, response.text
    row: dict[str, Any] = response.json()
    return row


def spend(running: Running, usage: Callable[..., UsageRecord], thresholds: list[int], tenant: str = "acme") -> None:
    """Uses a budget of a minute up, which has these thresholds."""
    price = running.get("operator", "/api/prices", flavor="small.64gb").json()[0]["price_nano_per_hour"]
    body = {"tenant": tenant, "limit_nano": price // 60, "thresholds": thresholds, "on_limit": "drain", "new": True}
    assert running.request("operator", "PUT", "/api/budgets", json=body).status_code == 200
    assert running.post_usage(usage(f"{tenant}-1/1", tenant=tenant)).status_code == 200


def step(running: Running, seconds: float = 0) -> None:
    """Time passes, and the loop goes round until it has nothing left to do."""
    running.clock.now_ns += int(seconds * SECOND_NS)
    while running._run(running.service.budgets.step()):
        continue


def health(running: Running, caller: str = "acme-owner") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = running.get(caller, "/api/alerts/channels").json()
    return rows


def verified(secret: str, headers: dict[str, str], body: bytes) -> bool:
    """As a receiver checks it, with nothing of ours."""
    content = b".".join((headers["webhook-id"].encode(), headers["webhook-timestamp"].encode(), body))
    expected = b64encode(hmac.new(b64decode(secret.split("_", 1)[1]), content, hashlib.sha256).digest()).decode()
    return hmac.compare_digest(headers["webhook-signature"], f"v1,{expected}")


def test_the_signature_is_the_one_of_the_standards_example() -> None:
    secret, id = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek"
    assert signature(secret, id, 1614265330, b'{"test": 2432232314}') == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_webhook_is_signed_and_says_which_threshold_was_reached(serving: Any, receiver: Receiver, usage: Any) -> None:
    running = serving()
    channel = add(running, "webhook", receiver.url)
    spend(running, usage, [80, 100])
    step(running)
    assert len(receiver.received) == 2
    for path, headers, body in receiver.received:
        assert path == "/hook"
        assert verified(channel["secret"], headers, body)
        assert not verified(channel["secret"], headers, body + b" ")
        assert int(headers["webhook-timestamp"]) == running.clock() // SECOND_NS
        told = json.loads(body)
        assert (told["type"], told["data"]["tenant"], told["data"]["on_limit"]) == ("budget.threshold_reached", "acme", "drain")
        assert told["data"]["used_nano"] == told["data"]["limit_nano"] > 0
    assert {json.loads(body)["data"]["threshold"] for _, _, body in receiver.received} == {80, 100}
    (row,) = health(running)
    assert (row["waiting"], row["done"], row["dead"]) == (0, 2, 0)
    assert "secret" not in row and channel["secret"] not in json.dumps(row)


def test_a_delivery_that_fails_comes_again_with_the_same_name_and_is_given_up_in_the_end(
    serving: Any, receiver: Receiver, usage: Any
) -> None:
    running = serving()
    add(running, "webhook", receiver.url)
    receiver.statuses = [500, 302, 429]
    spend(running, usage, [100])
    step(running)
    assert len(receiver.received) == 1
    step(running, 0.1)
    assert len(receiver.received) == 1, "it waits before it comes again"
    for _ in range(3):
        step(running, 10)
    assert [path for path, _, _ in receiver.received] == ["/hook"] * 4, "no redirect was followed"
    assert len({headers["webhook-id"] for _, headers, _ in receiver.received}) == 1
    assert len({headers["webhook-signature"] for _, headers, _ in receiver.received}) == 4
    assert (health(running)[0]["done"], health(running)[0]["waiting"]) == (1, 0)
    step(running, 7200)
    assert len(receiver.received) == 4

    receiver.statuses = [500] * 1000
    spend(running, usage, [70])
    step(running)
    step(running, GIVE_UP_NS / SECOND_NS)
    (row,) = health(running)
    assert (row["dead"], row["note"]) == (1, "The webhook's address answered 500.")
    receiver.statuses = []
    assert running.request("acme-owner", "POST", f"/api/alerts/channels/{row['id']}", json={"action": "retry"}).json()["deliveries"] == 1
    step(running)
    assert (health(running)[0]["done"], health(running)[0]["dead"]) == (2, 0)


def test_a_mail_goes_through_the_operators_server(serving: Any, post: tuple[Post, int], usage: Any) -> None:
    running = serving(smtp_user="billing", smtp_password=SecretStr("post-password"))
    add(running, "email", "money@acme.example")
    post[0].refusals = ["451 try later"]
    spend(running, usage, [100])
    step(running)
    assert (post[0].mails, health(running)[0]["waiting"]) == ([], 1)
    step(running, 5)
    (mail,) = post[0].mails
    assert (mail["To"], mail["From"]) == ("money@acme.example", "bills@cloud.example")
    assert mail["Subject"] == "100 % of the budget for tenant acme is used"
    assert "in 2026-11, at list prices" in mail.get_content()  # type: ignore[attr-defined]
    assert mail["Message-ID"].startswith("<forebay-alert-1-1@")
    assert set(post[0].signed_in) == {b"billing"}


def test_a_chat_gets_a_line_that_calls_nobody_and_its_address_is_told_nobody(serving: Any, receiver: Receiver, usage: Any) -> None:
    running = serving()
    address = f"{receiver.url}/T0AB/B0CD/kept-to-itself"
    told = {add(running, "slack", address, caller)["target"] for caller in ("acme-owner", "operator")}
    assert told == {f"{receiver.url.removesuffix('hook')}…self"}
    assert add(running, "slack", receiver.url)["target"] == f"{receiver.url.removesuffix('hook')}…", "a short one is hidden wholly"
    refused = running.request("operator", "POST", "/api/alerts/channels", json={"kind": "slack", "target": address, "tenant": "amce"})
    assert refused.status_code == 404
    running.request("acme-owner", "PATCH", "/api/notices/preferences", json={"language": "ko"}).raise_for_status()
    price = running.get("operator", "/api/prices", flavor="small.64gb").json()[0]["price_nano_per_hour"]
    mine = {"limit_nano": price // 60, "thresholds": [100], "user": "acme-owner", "notebook": "<!channel> & co.ipynb"}
    assert running.request("acme-owner", "PUT", "/api/budgets", json=mine).status_code == 200
    span = Span("span-1", "cell", "<!channel> & co.ipynb", 1)
    assert running.post_usage(usage("a/1", user="acme-owner", span=span)).status_code == 200
    receiver.statuses = [500]
    step(running)
    step(running, 30)
    assert {path for path, _, _ in receiver.received} == {"/hook", "/hook/T0AB/B0CD/kept-to-itself"} and len(receiver.received) == 4
    lines = {json.loads(body)["text"] for _, _, body in receiver.received}
    assert all(body.startswith(b'{"text": ') and "webhook-signature" not in headers for _, headers, body in receiver.received)
    assert len(lines) == 2 and all("&lt;!channel&gt; &amp; co.ipynb" in line and "<" not in line for line in lines)
    assert any(line.startswith("100 % of the budget for notebook") and "in 2026-11, at list prices" in line for line in lines)
    assert any("정가 기준" in line for line in lines), "an owner's is in the owner's language"
    assert [(row["done"], row["dead"]) for row in health(running)] == [(1, 0), (1, 0)]
    for row in health(running):
        assert running.request("acme-owner", "DELETE", f"/api/alerts/channels/{row['id']}").status_code == 200
    seen = [health(running, "operator"), running.get("operator", "/api/audit").json(), health(running)]
    assert "kept-to-itself" not in json.dumps(seen) and "…self" in json.dumps(seen, ensure_ascii=False)


def test_a_mail_is_in_the_language_of_whoever_has_it_sent(serving: Any, post: tuple[Post, int], usage: Any) -> None:
    running = serving()
    running.request("acme-owner", "PATCH", "/api/notices/preferences", json={"language": "ko"}).raise_for_status()
    add(running, "email", "money@acme.example")
    add(running, "email", "all@cloud.example", "operator")
    spend(running, usage, [100])
    step(running)
    mails = {mail["To"]: (mail["Subject"], mail.get_content()) for mail in post[0].mails}  # type: ignore[attr-defined]
    subject, text = mails["money@acme.example"]
    assert subject == "테넌트 acme 예산의 100 %를 사용했습니다"
    assert "정가 기준" in text and "한도에 이르면 실행 중인 작업이 멈춥니다" in text and "예산을 정한 사람: operator (운영자)." in text
    assert mails["all@cloud.example"][0] == "100 % of the budget for tenant acme is used"


def test_a_mail_server_that_does_not_secure_the_connection_is_told_no_password(serving: Any, post: tuple[Post, int], usage: Any) -> None:
    running = serving(smtp_security="starttls", smtp_user="billing", smtp_password=SecretStr("post-password"))
    add(running, "email", "money@acme.example")
    spend(running, usage, [100])
    step(running)
    assert (post[0].mails, post[0].signed_in) == ([], [])
    assert "SMTPNotSupportedError" in health(running)[0]["note"]
    assert "post-password" not in health(running)[0]["note"]


def test_alerts_go_to_their_tenant_and_to_the_operators(serving: Any, receiver: Receiver, usage: Any) -> None:
    running = serving()
    for path, caller, more in (("acme", "acme-owner", {}), ("globex", "globex-owner", {}), ("all", "operator", {})):
        add(running, "webhook", f"{receiver.url}/{path}", caller, **more)
    gone = add(running, "webhook", f"{receiver.url}/gone")
    assert running.request("globex-owner", "DELETE", f"/api/alerts/channels/{gone['id']}").status_code == 404
    assert running.request("acme-owner", "DELETE", f"/api/alerts/channels/{gone['id']}").status_code == 200
    spend(running, usage, [100], "globex")
    step(running)
    assert sorted(path for path, _, _ in receiver.received) == ["/hook/all", "/hook/globex"]
    assert [row["target"].rpartition("/")[2] for row in health(running)] == ["acme"]
    smuggled = {"kind": "email", "target": "a@b.c\r\nBcc: x@y.z"}
    assert running.request("acme-owner", "POST", "/api/alerts/channels", json=smuggled).status_code == 400


def test_an_operators_channel_of_a_tenant_of_whom_nothing_was_recorded_is_refused(serving: Any, receiver: Receiver) -> None:
    running = serving()
    body = {"kind": "webhook", "target": receiver.url, "tenant": "amce"}
    refused = running.request("operator", "POST", "/api/alerts/channels", json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "unknown_tenant") and health(running, "operator") == []
    entry = running.get("operator", "/api/audit").json()["entries"][0]
    assert (entry["action"], entry["subject"], entry["after"]["code"]) == ("alerts.channel.add.refused", "amce", "unknown_tenant")


# Where a webhook may not go


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/", "https://127.0.0.1/", "https://[::1]/", "https://10.0.0.1/", "https://169.254.169.254/latest", "https://100.64.0.1/",
        "https://[::ffff:127.0.0.1]/", "https://[64:ff9b::a9fe:a9fe]/", "https://user:secret@example.com/", "https://example.com/#x", "ftp://example.com/",
        "https:///", "https://example.com:0/", "https://example.com:99999/", "file:///etc/passwd", "https://[bad/",
        "https://192.0.0.192/", "https://2130706433/", "https://0x7f.1/", "https://127.1/", "https://localhost/", "https://vault.internal./x",
    ],
)  # fmt: skip
def test_a_webhook_that_is_aimed_at_us_is_refused_at_once(url: str) -> None:
    with pytest.raises(InvalidRequest, match="target"):
        check_target(url, private_allowed=False, ports=(443, 8443))


@pytest.mark.parametrize(
    "address",
    [
        "2002:7f00:1::", "::127.0.0.1", "224.0.0.1", "fe80::1", "fd00::1", "198.18.0.1", "::ffff:10.0.0.1", "192.0.0.192", "192.88.99.1",
        "2001:db8::1", "3fff::1", "64:ff9b:1::1", "5f00::1", "255.255.255.255",
    ],
)  # fmt: skip
def test_addresses_that_the_internet_does_not_reach_are_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))
    assert is_public(ipaddress.ip_address("8.8.8.8")) and is_public(ipaddress.ip_address("2606:4700::1111"))


def test_webhooks_go_to_the_ports_that_an_operator_allows_and_to_no_other(
    serving: Any, receiver: Receiver, usage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A channel that was added while its port was allowed is refused when it is sent to."""
    for url in ("https://example.com:22/", "https://example.com:6379/", "https://example.com:80/", "https://[2606:4700::1111]:25/"):
        with pytest.raises(InvalidRequest, match="port 443 or 8443"):
            check_target(url, private_allowed=False, ports=(443, 8443))
    for url in ("https://example.com/", "https://example.com:443/", "https://example.com:8443/x"):
        check_target(url, private_allowed=False, ports=(443, 8443))

    async def resolve(_self: Any, _host: str, _port: int, _family: Any = 0) -> list[tuple[int, Any]]:
        return [(socket.AF_INET, ("8.8.8.8", receiver.server.server_port))]

    monkeypatch.setattr(webhooks.DefaultLoopResolver, "resolve", resolve)
    before = serving(alert_private_addresses=False, webhook_ports=(8444,))
    add(before, "webhook", "https://hooks.example.com:8444/hook")
    refused = before.request("acme-owner", "POST", "/api/alerts/channels", json={"kind": "slack", "target": "https://example.com/hook"})
    assert refused.status_code == 400 and "webhooks go to port 8444;" in refused.json()["error"]["message"]
    after = serving(alert_private_addresses=False)
    spend(after, usage, [100])
    step(after)
    assert "port 8444 is not one that webhooks may go to" in health(after)[0]["note"]


def test_a_public_name_that_leads_to_a_private_address_gets_no_connection(
    serving: Any, receiver: Receiver, usage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a name leads to may change after it was set, and between looking and connecting: the connection goes where was looked."""
    port = receiver.server.server_port
    running = serving(alert_private_addresses=False, webhook_ports=(443, port))
    where = "8.8.8.8"

    async def resolve(_self: Any, _host: str, port: int, _family: Any = 0) -> list[tuple[int, Any]]:
        return [(socket.AF_INET, (where, port))]

    monkeypatch.setattr(webhooks.DefaultLoopResolver, "resolve", resolve)
    add(running, "webhook", f"https://hooks.example.com:{port}/hook")
    where = "127.0.0.1"
    later = {"kind": "webhook", "target": "https://other.example.com/hook"}
    refused = running.request("acme-owner", "POST", "/api/alerts/channels", json=later)
    assert refused.status_code == 400 and "not a public address" in refused.json()["error"]["message"]
    spend(running, usage, [100])
    step(running)
    assert receiver.received == []
    assert "not a public address" in health(running)[0]["note"]


class Killed(Exception):
    """What a point of failure raises in the place of the process's death."""


@pytest.mark.parametrize("kind", ["webhook", "email"])
@pytest.mark.parametrize("point", ["alert.before", "alert.after", "commit.before"])
def test_an_alert_that_is_cut_off_at_any_point_comes_at_least_once_and_is_recorded_once(
    serving: Any, receiver: Receiver, post: tuple[Post, int], usage: Any, kind: str, point: str
) -> None:
    """Before it is sent, after it was, and before that is written down; then another process goes on."""
    running = serving()
    add(running, kind, receiver.url if kind == "webhook" else "boss@acme.example")
    spend(running, usage, [100])
    reached: list[str] = []

    def die(name: str) -> None:
        reached.append(name)
        if name == point and (point != "commit.before" or "alert.after" in reached):
            raise Killed(name)

    with failpoints.armed(die), pytest.raises(Killed, match=point):
        step(running)
    sent = 0 if point == "alert.before" else 1
    arrived = receiver.received if kind == "webhook" else post[0].mails
    assert len(arrived) == sent
    again = serving()
    (row,) = health(again)
    assert (row["waiting"], row["done"]) == (1, 0)
    step(again)
    assert len(arrived) == sent, "it is whose that claimed it, until that is too long ago"
    step(again, CLAIMS.claim_ns / SECOND_NS + 1)
    (row,) = health(again)
    assert (row["waiting"], row["done"], row["dead"]) == (0, 1, 0)
    assert len(arrived) == sent + 1
    if kind == "webhook":
        assert len({headers["webhook-id"] for _, headers, _ in receiver.received}) == 1
    else:
        assert len({mail["Message-ID"] for mail in post[0].mails}) == 1
    step(again, 7200)
    assert len(arrived) == sent + 1
    assert len(again.get("acme-owner", "/api/alerts").json()) == 1


def test_a_letter_of_another_service_is_sent_at_once_or_refused_with_why(serving: Any, post: tuple[Post, int]) -> None:
    running = serving()
    letter = {"to": "carol@acme.example", "subject": "초대", "text": "Open this link.\n"}
    for caller in ("acme-owner", "operator"):
        assert running.request(caller, "POST", "/api/letters", json=letter).status_code == 403
    assert running.request("pool", "POST", "/api/letters", json=letter).json() == {"to": "carol@acme.example", "sent": True}
    (mail,) = post[0].mails
    assert (mail["To"], mail["Subject"]) == ("carol@acme.example", "초대")
    post[0].refusals = ["550 no such box"]
    refused = running.request("pool", "POST", "/api/letters", json=letter)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "undelivered")
    for wrong in ({"to": "carol"}, {"subject": "two\nlines"}, {"text": ""}):
        assert running.request("pool", "POST", "/api/letters", json={**letter, **wrong}).status_code == 400
