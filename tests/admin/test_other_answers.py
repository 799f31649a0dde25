"""``forebay admin`` against an HTTP server that answers what was not asked for; and what each command says of itself."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forebay.toolkit.command import main, parser

sys.path.append(str(Path(__file__).parents[1] / "device"))

from rest_pool import DEV, TOKEN, RestPool, served

LISTINGS = {
    "admin queue": "api/queue",
    "admin forecast": "api/forecast",
    **{f"admin {name} list": f"api/{name}" for name in ("nodes", "devices", "models", "flavors", "quotas", "sessions")},
    **{f"admin {name} list": f"api/{name}" for name in ("invoices", "credits", "budgets", "tenants")},
}


@pytest.fixture
def rest_pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[RestPool]:
    with served() as server:
        monkeypatch.setenv("FOREBAY_URL", server.url)
        monkeypatch.setenv("FOREBAY_TOKEN", TOKEN)
        yield server


@pytest.mark.parametrize("body", [b"", b"null", b"{}", b"[]"])
@pytest.mark.parametrize(
    "words",
    [
        "admin nodes drain main",
        "admin devices cordon main/cpu:0",
        "admin models set MI250",
        "admin quotas set acme",
        "admin sessions revoke s-1",
        "admin sessions move s-1",
    ],
)
def test_what_something_else_answered_is_not_said_to_be_done(
    rest_pool: RestPool, capsys: pytest.CaptureFixture[str], words: str, body: bytes
) -> None:
    rest_pool.refusal = (200, body)
    assert main(words.split()) == 1
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"forebay: What answers at {rest_pool.url}/ is not a Forebay pool; check FOREBAY_URL.\n")


@pytest.mark.parametrize(("words", "row"), [*((words, {}) for words in LISTINGS), ("admin flavors list", {**DEV, "memory_bytes": 10**400})])
def test_a_row_of_another_shape_is_one_sentence(
    rest_pool: RestPool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, row: dict[str, Any]
) -> None:
    monkeypatch.setenv("FOREBAY_BOOKS_URL", rest_pool.url)
    rest_pool.answers[LISTINGS[words]] = [row]
    assert main(words.split()) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("forebay: The ") and said.err.count("\n") == 1
    assert f"at {rest_pool.url}/ answered what this release of forebay cannot read (" in said.err


@pytest.mark.parametrize("answer", [[1], {"lines": 3}, "text", 7])
def test_an_answer_that_is_no_invoice_is_one_sentence(
    rest_pool: RestPool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: Any
) -> None:
    monkeypatch.setenv("FOREBAY_BOOKS_URL", rest_pool.url)
    rest_pool.answers["api/invoices/F-1"] = answer
    assert main(["admin", "invoices", "show", "F-1"]) == 1
    assert "check FOREBAY_BOOKS_URL, and both releases." in capsys.readouterr().err


def test_help_is_there_for_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    every = list(commands_of(parser(), ()))
    expected = {"run", "smi", "flavor set", "device add", "doctor", "admin nodes drain", "admin devices cordon", "admin flavors set"}
    assert expected <= {" ".join(words) for words, _ in every}
    for words, command in every:
        said, description = command.format_help(), command.description
        assert said.startswith(" ".join(["usage: forebay", *words])) and description and description.split()[0] in said, words
    for words, command in every[:3] + every[-3:]:
        with pytest.raises(SystemExit) as ended:
            main([*words, "--help"])
        assert (ended.value.code, capsys.readouterr().out) == (0, command.format_help())


def commands_of(command: argparse.ArgumentParser, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    yield words, command
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, under in action.choices.items():
                yield from commands_of(under, (*words, name))
