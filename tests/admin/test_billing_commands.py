"""``forebay admin prices``, ``plans`` and ``audit`` against a real billing service."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forebay.service import Service
from forebay.toolkit.command import main
from forebay_billing.model.months import Month
from forebay_billing.service import Service as Billing
from forebay_billing.service import authenticator_of
from forebay_billing.settings import Settings, TokenSettings
from forebay_service.identity import COMPUTE, OPERATE, SERVICE

NOW_NS = Month(2026, 11).start_ns + 86_400 * 10**9
HOUR_NS = 3600 * 10**9
TOKENS = (
    TokenSettings(token="token-of-the-operator", name="olga", kind="user", scopes=frozenset({OPERATE})),
    TokenSettings(token="token-of-the-user", name="ada", kind="user", tenant="acme", scopes=frozenset({COMPUTE})),
    TokenSettings(token="token-of-the-pool", name="pool", kind="service", scopes=frozenset({SERVICE})),
)
USAGE = {
    "source": "pool", "id": "a/1", "tenant": "acme", "user": "ada", "session": "s", "lease": "a",
    "span": {"id": "s", "kind": "cell", "label": "x.ipynb"}, "flavor": "small.64gb", "device_model": "cpu-dev", "devices": 1,
    "started_at_ns": Month(2026, 10).start_ns + HOUR_NS, "duration_ns": HOUR_NS, "close_reason": "drained",
}  # fmt: skip
SECONDS_MAX = 30.0


class Server:
    """Billing in a thread, at the address that a hub would give it."""

    def __init__(self, folder: Path) -> None:
        settings = Settings(database_url=f"sqlite:///{folder}/billing.sqlite3", port=0, tokens=TOKENS, prefix="/services/billing/")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._service = self._do(self._start(settings))
        self.pool_url = f"http://127.0.0.1:{self._service.port}/services/pool/"

    async def _start(self, settings: Settings) -> Billing:
        return Billing(settings, authenticator_of(settings), lambda: NOW_NS)

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS_MAX)

    def close(self) -> None:
        self._do(self._service.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def server(tmp_path: Path, migrated_books: Path) -> Iterator[Server]:
    shutil.copy(migrated_books, tmp_path / "billing.sqlite3")
    server = Server(tmp_path)
    Service(server.pool_url.replace("pool", "billing"), "token-of-the-pool").post("api/usage", {"records": [USAGE]})
    yield server
    server.close()


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def admin(server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs ``forebay admin``; returns status, output and errors."""

    def run(*words: str, who: str = "operator") -> tuple[int, str, str]:
        monkeypatch.setenv("FOREBAY_URL", server.pool_url)
        monkeypatch.setenv("FOREBAY_TOKEN", f"token-of-the-{who}")
        monkeypatch.delenv("FOREBAY_BOOKS_URL", raising=False)
        status = main(["admin", *words])
        return status, *capsys.readouterr()

    return run


def table(out: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in out.splitlines() if line.startswith("|")][1:]


def answer(admin: Run, *words: str) -> Any:
    status, out, err = admin(*words, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


def test_prices_are_set_now_and_later_and_listed(admin: Run) -> None:
    status, out, _ = admin("prices", "set", "small.64gb", "--per-hour", "2.16", "--currency", "USD")
    assert (status, table(out)) == (0, [["small.64gb", "2.16 USD/h", "2160000000", "2026-11-02 00:00:00", "2", "-"]])
    later = ("prices", "set", "small.64gb", "--nano", "2520000000", "--currency", "USD", "--from", "2026-12-01T01:00:00+01:00")
    assert answer(admin, *later)["valid_from_ns"] == Month(2026, 12).start_ns
    assert table(admin("prices", "list", "--flavor", "small.64gb", "--history")[1]) == [
        ["small.64gb", "2.00 USD/h", "2000000000", "always", "1", "seed"],
        ["small.64gb", "2.16 USD/h", "2160000000", "2026-11-02 00:00:00", "2", "olga"],
        ["small.64gb", "2.52 USD/h", "2520000000", "2026-12-01 00:00:00", "3", "olga"],
    ]
    assert len(table(admin("prices", "list")[1])) == 15
    assert "There is no flavor 'tiny'" in admin("prices", "set", "tiny", "--nano", "1", "--currency", "USD")[2]
    assert answer(admin, "prices", "set", "tiny", "--nano", "1", "--currency", "JPY", "--new")["version"] == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--per-hour", "2.0000000016"), "cannot be billed exactly; the nearest that is one is 2.000000002"),
        (("--per-hour", "1e3"), "is not a number such as 2.16"),
        (("--nano", "-1"), "is not a whole number"),
        (("--nano", "1", "--from", "tomorrow"), "is no time"),
        (("--nano", "1", "--from", "2026-12-01T00:00:00"), "has no time zone"),
    ],
)
def test_a_price_that_cannot_be_is_said_before_billing_is_asked(
    admin: Run, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(SystemExit):
        admin("prices", "set", "small.64gb", "--currency", "USD", *(f"{words[i]}={words[i + 1]}" for i in range(0, len(words), 2)))
    assert sentence in capsys.readouterr().err


def test_parked_bytes_get_a_price(admin: Run) -> None:
    assert admin("prices", "parked", "list")[1] == "Parked bytes cost nothing.\n"
    status, out, _ = admin("prices", "parked", "set", "USD", "--per-gib-hour", "0.00005")
    assert (status, table(out)) == (0, [["USD", "0.00005", "2026-11-02 00:00:00", "1", "olga"]])
    assert table(admin("prices", "parked", "list")[1]) == table(out)


def test_a_model_gets_a_surcharge(admin: Run) -> None:
    assert admin("prices", "surcharges", "list")[1] == "No model costs more.\n"
    status, out, _ = admin("prices", "surcharges", "set", "MI250", "--per-hour", "0.36", "--currency", "USD")
    assert (status, table(out)) == (0, [["MI250", "0.36 USD/h", "360000000", "2026-11-02 00:00:00", "1", "olga"]])
    later = admin("prices", "surcharges", "set", "MI250", "--nano", "5", "--currency", "USD", "--from", "2026-12-01T00:00:00Z")
    assert table(later[1])[0][2:4] == ["5", "2026-12-01 00:00:00"]
    assert table(admin("prices", "surcharges", "list")[1]) == table(out)
    assert table(admin("prices", "surcharges", "list", "--history")[1]) == [*table(out), *table(later[1])]


def test_a_price_list_is_exported_edited_compared_and_applied(admin: Run, tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    assert admin("prices", "export", str(file)) == (0, f"The price list is in {file}.\n", "")
    assert admin("prices", "export")[1] == file.read_text()
    assert admin("prices", "diff", str(file)) == (0, "The price list changes nothing.\n", "")
    file.write_text(file.read_text().replace(" 2.00}", " 2.16}"))
    change = [["small.64gb", "USD", "nano_per_hour", "2000000000", "2160000000", "2026-11-02 00:00:00"]]
    assert table(admin("prices", "diff", str(file))[1]) == change
    preview = table(admin("prices", "preview", "--list", str(file))[1])
    assert preview[0] == ["acme", "USD", "2.00", "2.00", "2.16", "2.16", "0.16"]
    assert table(admin("prices", "apply", str(file))[1]) == change
    assert admin("prices", "apply", str(file))[1] == "The price list changed nothing.\n"
    file.write_text("prices: {x: 1}")
    assert admin("prices", "apply", str(file)) == (1, "", "forebay: Line 1 of the price list: 'x' needs names with values below it.\n")
    assert admin("prices", "diff", str(tmp_path / "none"))[2].endswith("cannot be read (No such file or directory).\n")
    assert admin("prices", "export", str(tmp_path))[2].endswith("(Is a directory).\n")


def test_plans_are_set_listed_and_previewed(admin: Run) -> None:
    assert admin("plans", "list")[1] == "All pay the list price.\n"
    terms = ("--currency", "USD", "--discount", "12.5", "--free", "1.5", "--free-hours", "dev.1gb=100", "--tier", "1000=5", "--tier",
             "10000=10", "--commitment", "500")  # fmt: skip
    status, out, err = admin("plans", "set", "acme", "--from", "2026-11", *terms)
    row = ["acme", "2026-11", "1", "USD", "12.5 %", "1.50", "dev.1gb=100", "1000.00=5 %, 10000.00=10 %", "500.00", "olga"]
    assert (status, table(out), err) == (0, [row], "")
    assert table(admin("plans", "list", "--tenant", "acme", "--month", "2027-01")[1]) == [row]
    assert admin("plans", "list", "--month", "2026-10")[1] == "All pay the list price.\n"
    assert len(answer(admin, "plans", "list", "--history")) == 1
    preview = table(admin("plans", "preview", "acme", "--currency", "USD", "--discount", "50")[1])
    assert preview == [
        ["acme", "USD", "2.00", "2.00", "2.00", "1.00", "-1.00"],
        ["all", "USD", "-", "2.00", "-", "1.00", "-1.00"],
    ]
    assert admin("prices", "preview", "--set", "dev.1gb=1.8", "--month", "2026-05")[1] == "Nothing was used in 2026-05.\n"
    refused = admin("plans", "set", "umbrella", "--from", "2026-11", "--currency", "USD")
    assert refused[0] == 1 and "Nothing was ever recorded for a tenant 'umbrella'" in refused[2]
    assert answer(admin, "plans", "set", "umbrella", "--from", "2026-11", "--currency", "USD", "--new")["version"] == 1


def test_the_audit_tells_who_changed_what_and_what_was_refused(admin: Run) -> None:
    admin("prices", "set", "small.64gb", "--nano", "2160000000", "--currency", "USD")
    admin("prices", "set", "small.64gb", "--nano", "1", "--currency", "USD", "--from", "2026-10-01T00:00:00Z")
    refused, changed = table(admin("audit", "--who", "olga")[1])
    assert refused[:5] == ["2026-11-02 00:00:00", "olga", "price.change.refused", "small.64gb/USD", "-"]
    assert refused[5].startswith("Usage of small.64gb in USD is rated up to")
    assert changed[2] == "price.change"
    assert "price_nano_per_hour 2000000000" in changed[4] and "price_nano_per_hour 2160000000" in changed[5]
    assert len(answer(admin, "audit", "--limit", "3")["entries"]) == 3
    assert admin("audit", "--subject", "none")[1] == "Nothing was changed.\n"


def test_who_may_not_is_told_so_in_one_sentence(admin: Run) -> None:
    for words in (("audit",), ("prices", "set", "dev.1gb", "--nano", "1", "--currency", "USD"), ("plans", "list"), ("prices", "preview")):
        status, out, err = admin(*words, who="user")
        assert (status, out) == (1, "") and "needs the scope" in err and err.count("\n") == 1
    assert admin("prices", "list", who="user")[0] == 0


def test_a_billing_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FOREBAY_URL", "http://127.0.0.1:9/services/pool/")
    monkeypatch.setenv("FOREBAY_TOKEN", "t")
    monkeypatch.delenv("FOREBAY_BOOKS_URL", raising=False)
    assert main(["admin", "audit"]) == 1
    assert "The billing service at http://127.0.0.1:9/services/billing/ (FOREBAY_BOOKS_URL) cannot be reached" in capsys.readouterr().err


def test_a_budget_is_set_told_of_and_removed(admin: Run, server: Server) -> None:
    assert admin("budgets", "list")[1] == "No budget.\n"
    words = ("acme", "4.00", "--total", "--at-limit", "drain", "--grace", "30", "--warn", "50", "100")
    assert admin("budgets", "set", *words)[:2] == (0, "Budget 1 is set.\n")
    assert answer(admin, "budgets", "set", "acme", "1.50", "--user", "ada", "--notebook", "x.ipynb")["limit_nano"] == 1_500_000_000
    spent = "2.00"
    assert table(admin("budgets", "list", "--tenant", "acme")[1]) == [
        ["1", "acme", "USD", "total", "4.00", spent, "0.00", "2.00", spent, "drain (30 s)", "open"],
        ["2", "acme ada x.ipynb", "USD", "2026-11", "1.50", "0.00", "0.00", "1.50", "0.00", "notify", "open"],
    ]
    until = time.monotonic() + SECONDS_MAX
    while not (told := table(admin("budgets", "alerts")[1])):
        assert time.monotonic() < until
        time.sleep(0.1)
    assert told[0][1:] == ["acme", "total", "50 %", spent, "4.00", "USD"]
    assert admin("budgets", "remove", "1")[:2] == (0, "Budget 1 is removed.\n")
    assert "There is no budget" in admin("budgets", "remove", "1")[2]


def test_a_budget_or_a_credit_of_a_tenant_that_is_to_come_says_so(admin: Run) -> None:
    credit = ("credits", "grant", "umbrella", "prepaid", "100", "--name", "Ahead")
    for words in (("budgets", "set", "umbrella", "5"), credit):
        assert "Nothing was ever recorded for a tenant 'umbrella'" in admin(*words)[2]
    assert admin("budgets", "set", "umbrella", "5", "--new")[:2] == (0, "Budget 1 is set.\n")
    assert admin(*credit)[0] == 0, "the budget made it known"
    assert admin("credits", "grant", "initech", *credit[3:], "--new")[0] == 0


def test_a_notebook_has_a_user(admin: Run) -> None:
    assert "say whose with --user" in admin("budgets", "set", "acme", "1", "--notebook", "x.ipynb")[2]
