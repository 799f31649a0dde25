"""Causes become sentences by one catalogue, in each language, and a peer is told what it can read."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from pathlib import Path

import pytest
from forebay_wire import messages
from forebay_wire.causes import cause_of, cause_of_budget
from forebay_wire.sentences import LANGUAGES, catalogue, sentence

ROOT = Path(__file__).resolve().parents[2]
WORDS = {"join_parts", "join_ways", "devices", "devices_one"}
"""What sentences are put together with; no codes."""
OF_THE_CATALOGUE = {
    1: "9bcc4ba2c4dc5d57", 2: "a92bcac9543bf44e", 3: "5fb98f9d08ceca5d",
    4: "356c886257545b68", 5: "387b1a19b7e2151b", 6: "368a843e795bb6fc", 7: "7e125d89ef728cc4", 8: "df6016fde09a7d98",
    9: "c4c5dbff5f113a48", 10: "9dd4048520da3066",
}
"""What the codes and places of each version are, as :func:`fingerprint` has it."""
HELD = messages.Cause(code="one_held", values={"device": "a/cpu:0", "flavor": "dev.1gb"})


def places(text: str) -> set[str]:
    return set(re.findall(r"\{(\w+)\}", text))


def fingerprint() -> str:
    """Of the codes, and of the places of each."""
    known = sorted(f"{code}: {' '.join(sorted(places(text)))}" for code, text in catalogue("en").items())
    return hashlib.sha256("\n".join(known).encode()).hexdigest()[:16]


def test_each_language_says_every_code_with_the_same_places() -> None:
    for language in LANGUAGES:
        said = {code: places(text) for code, text in catalogue(language).items()}
        assert said == {code: places(text) for code, text in catalogue("en").items()}, language


def test_no_sentence_names_a_device_or_a_node_of_the_operators() -> None:
    named = {code: places(text) & {"device", "devices", "node", "target", "worker"} for code, text in catalogue("en").items()}
    assert not [code for code, found in named.items() if found]


def test_the_extension_of_jupyterlab_has_the_same_catalogues() -> None:
    for language in LANGUAGES:
        ours, theirs = (ROOT / folder / f"{language}.json" for folder in ("wire/forebay_wire/sentences", "lab/src/text/sentences"))
        assert theirs.read_bytes() == ours.read_bytes(), f"copy {ours} to {theirs}"


def test_a_code_that_comes_or_changes_raises_the_catalogues_version() -> None:
    assert OF_THE_CATALOGUE.get(messages.CAUSES) == fingerprint(), "raise forebay_wire.messages.CAUSES, and name the new fingerprint here"


def made(tree: ast.AST) -> list[tuple[int, str, int | None, set[str] | None]]:
    """The causes that a module makes: line, code, the number of parts (None: any), and the values' names (None: any)."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id != "Cause" or not node.args:
            continue
        code, *parts = node.args
        names = {keyword.arg for keyword in node.keywords}
        count = None if any(isinstance(part, ast.Starred) for part in parts) else len(parts)
        for text in [code] if isinstance(code, ast.Constant) else []:
            found.append((node.lineno, text.value, count, None if None in names else {str(name) for name in names}))
    return found


def test_the_pool_gives_each_code_what_stands_in_its_sentence() -> None:
    count = 0
    for path in (ROOT / "pool" / "forebay_pool").rglob("*.py"):
        for line, code, parts, names in made(ast.parse(path.read_text(encoding="utf-8"))):
            wanted = places(catalogue("en")[code]) - {"parts", "ways"}
            numbers = {int(place) for place in wanted if place.isdigit()}
            where = f"{path.name}:{line} {code}"
            assert names is None or {place for place in wanted if not place.isdigit()} <= names, where
            assert parts is None or all(number < parts for number in numbers), where
            count += 1
    assert count > 60


def test_no_sentence_is_left_that_nothing_says() -> None:
    folders = ("pool/forebay_pool", "device/forebay", "wire/forebay_wire")
    source = "\n".join(path.read_text(encoding="utf-8") for folder in folders for path in (ROOT / folder).rglob("*.py"))
    built = re.compile(r"budget_(month|total)_(used|nearly)|whom_\w+|runtime_(torch|xla|exec)")
    codes = {code.removesuffix("_one") for code in catalogue("en").keys() - WORDS if not built.fullmatch(code)} | {"one_held"}
    assert {code for code in codes if f'"{code}"' not in source} == set()


@pytest.mark.parametrize(
    ("cause", "english", "korean"),
    [
        (
            HELD,
            "The one device that serves dev.1gb is held.",
            "dev.1gb 플레이버를 제공하는 유일한 장치가 사용 중입니다.",
        ),
        (
            messages.Cause(
                code="quota_small",
                values={"needed_milli": 2500, "most_milli": 1000},
                parts=(messages.Cause(code="whom_user", values={"user": "ada", "tenant": "acme"}),),
            ),
            "It takes 2.5 devices, and the quota of ada of acme is 1 device at a time; choose another flavor, or ask an operator.",
            "장치 2.5개가 필요하지만 acme의 ada의 할당량은 한 번에 장치 1개입니다. 다른 플레이버를 고르거나 운영자에게 문의하십시오.",
        ),
        (
            messages.Cause(code="too_small", values={"model": "T4", "device_bytes": 3 * 2**29, "flavor_bytes": 2**20}),
            "a T4 here has 1.5 GiB, the flavor 1.0 MiB",
            "이곳의 T4 메모리는 1.5 GiB, 플레이버는 1.0 MiB입니다",
        ),
        (
            messages.Cause(code="none_here", parts=tuple(messages.Cause(code="text", values={"text": one}) for one in "ABC")),
            "there is no A or B or C here",
            "이곳에는 A 또는 B 또는 C이(가) 없습니다",
        ),
        (
            messages.Cause(code="none_here", parts=tuple(messages.Cause(code="text", values={"text": one}) for one in "ABCD")),
            "there is no A, B, C or D here",
            "이곳에는 A, B, C 또는 D이(가) 없습니다",
        ),
        (
            messages.Cause(code="parking", values={"device": "d", "count": 1, "size": "1 GiB", "need": "2 GiB"}),
            "A resident session (1 GiB) must be parked to make room for 2 GiB.",
            "2 GiB을(를) 비우기 위해 상주하는 세션(1 GiB)을 보관해야 합니다.",
        ),
    ],
)
def test_a_cause_is_said_in_each_language_with_its_values_and_parts(cause: messages.Cause, english: str, korean: str) -> None:
    assert (cause.said(), cause.said("ko")) == (english, korean)


def test_a_code_that_is_new_or_lacks_a_value_or_a_part_is_not_said() -> None:
    assert sentence("made_up", {}, ()) is None
    assert sentence("one_held", {"device": "d"}, ()) is None
    assert sentence("no_budget", {}, ()) is None
    new = messages.Cause(code="made_up")
    assert messages.Cause(code="device_closed", values={"device": "d"}, parts=(new,)).said() is None
    assert messages.Queued(request=1, position=1, reason="It waits.", cause=new).said("ko") == "It waits."
    assert messages.Queued(request=1, position=1, cause=new).said() == "made_up", "better than nothing"


def test_what_stands_in_a_value_is_never_read_as_a_place() -> None:
    cause = messages.Cause(code="text", values={"text": "{0} {device.__class__} %(x)s"})
    assert cause.said() == "{0} {device.__class__} %(x)s"


TOLD = [
    messages.Queued(request=1, position=2, reason="It is held.", cause=HELD),
    messages.Revoking(epoch=1, seconds=5.0, reason="It is held.", cause=HELD),
    messages.SessionLost(message="It is held.", cause=HELD),
    messages.Refused(code="budget", message="It is held.", cause=HELD),
]


@pytest.mark.parametrize("message", TOLD, ids=lambda message: message.type)
def test_a_client_without_a_catalogue_gets_the_fields_that_it_always_had(message: messages.Explained) -> None:
    row = json.loads(message.encode())
    assert "cause" not in row and row[message.explanation] == "It is held."
    assert messages.to_client(message.encode()).said("ko") == "It is held."  # type: ignore[union-attr]


@pytest.mark.parametrize("message", TOLD, ids=lambda message: message.type)
def test_a_client_with_the_catalogue_gets_no_english_and_one_with_an_older_catalogue_both(message: messages.Explained) -> None:
    row = json.loads(message.encode(messages.CAUSES))
    assert message.explanation not in row and row["cause"]["code"] == "one_held"
    told = messages.to_client(message.encode(messages.CAUSES))
    assert told.said() == HELD.said() and told.said("ko") == HELD.said("ko")  # type: ignore[union-attr]
    later = message.encode(messages.CAUSES + 1)
    assert json.loads(later) == row, "a catalogue only grows"


def test_a_client_whose_catalogue_is_older_than_the_pools_gets_cause_and_english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "CAUSES", messages.CAUSES + 1)
    row = json.loads(TOLD[0].encode(messages.CAUSES - 1))
    assert row["reason"] == "It is held." and row["cause"]["code"] == "one_held"


def test_a_pool_that_tells_no_cause_is_told_as_it_was_sent() -> None:
    old = json.dumps({"type": "queued", "request": 1, "position": 1, "reason": "It waits.", "code": "shortage"})
    assert messages.to_client(old).said("ko") == "It waits."  # type: ignore[union-attr]


def test_a_row_has_its_cause_and_what_somebody_typed_as_a_text() -> None:
    typed = {"message": "a fan is loud", "code": None, "values": {}, "parts": []}
    closed = {"message": "…", "code": "device_closed", "values": {"device": "d"}, "parts": [typed]}
    found = cause_of(closed)
    assert found is not None and found.said() == "A device is closed (a fan is loud)"
    assert cause_of(None) is None and cause_of({"code": "Not a code", "values": {}, "parts": []}) is None and cause_of({}) is None


BUDGET = {"tenant": "acme", "user": "ada", "notebook": "a.ipynb", "period": "2026-11", "origin": "owner", "code": "nearly_used_up"}


def test_a_budgets_row_has_its_cause_for_whom_when_and_who_can_raise_it() -> None:
    cases = {
        "The budget of 2026-11 for notebook a.ipynb of ada (acme) is nearly used up; the tenant's owner can raise it.": {},
        "The budget for ada of acme is used up; an operator can raise it.": {
            "notebook": None, "period": "total", "origin": "operator", "code": "used_up",
        },
        "The budget for tenant acme is nearly used up; the tenant's owner can raise it.": {
            "user": None, "notebook": None, "period": "total",
        },
        "The budget for notebook a.ipynb of ada (acme) is used up; ada of acme can raise it.": {
            "period": "total", "origin": "user", "code": "used_up",
        },
    }  # fmt: skip
    for english, changes in cases.items():
        found = cause_of_budget({**BUDGET, **changes})
        assert found is not None and found.said() == english and found.said("ko") is not None


@pytest.mark.parametrize("changes", [{"code": None}, {"code": "made_up"}, {"origin": "somebody"}, {"period": None}])
def test_a_budgets_row_of_another_release_has_no_cause(changes: dict[str, str | None]) -> None:
    assert cause_of_budget({**BUDGET, **changes}) is None
