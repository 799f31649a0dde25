"""The demo logins' file, and signing in with it."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path

import pytest
from forebay_hub.errors import LoginsError
from forebay_hub.logins import LoginsAuthenticator, ensure_logins, read_logins


def sign_in(path: Path, name: str, password: str) -> str | None:
    authenticator = LoginsAuthenticator(logins_file=str(path))
    return asyncio.run(authenticator.authenticate(None, {"username": name, "password": password}))


def test_the_first_start_makes_a_password_for_each(tmp_path: Path) -> None:
    logins = ensure_logins(tmp_path / "logins.json", ["b", "a"])
    assert list(logins) == ["a", "b"]
    assert logins["a"] != logins["b"] and all(len(password) >= 12 for password in logins.values())


def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    ensure_logins(tmp_path / "logins.json", ["a"])
    assert stat.S_IMODE((tmp_path / "logins.json").stat().st_mode) == 0o600


def test_the_second_start_keeps_passwords_and_adds_new_people(tmp_path: Path) -> None:
    first = ensure_logins(tmp_path / "logins.json", ["a"])
    second = ensure_logins(tmp_path / "logins.json", ["a", "b"])
    assert second["a"] == first["a"] and second["b"]
    assert ensure_logins(tmp_path / "logins.json", ["a", "b"]) == second


def test_who_has_left_is_removed(tmp_path: Path) -> None:
    ensure_logins(tmp_path / "logins.json", ["a", "b"])
    ensure_logins(tmp_path / "logins.json", ["b"])
    assert list(read_logins(tmp_path / "logins.json")) == ["b"]


def test_name_and_password_must_match(tmp_path: Path) -> None:
    path = tmp_path / "logins.json"
    logins = ensure_logins(path, ["a", "b"])
    assert sign_in(path, "a", logins["a"]) == "a"
    assert sign_in(path, "a", logins["b"]) is None
    assert sign_in(path, "a", "") is None
    assert sign_in(path, "nobody", logins["a"]) is None
    assert sign_in(path, "nobody", "") is None


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "logins.json"
    ensure_logins(path, ["a"])
    path.chmod(0o644)
    with pytest.raises(LoginsError, match="run: chmod 600"):
        read_logins(path)


@pytest.mark.parametrize("content", ["{", "[]", json.dumps({"a": 1})])
def test_a_garbled_file_says_what_to_do(tmp_path: Path, content: str) -> None:
    path = tmp_path / "logins.json"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(LoginsError, match="remove it to get new passwords"):
        read_logins(path)
