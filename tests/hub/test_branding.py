"""JupyterHub's pages in Forebay's branding: the operator's name, the reader's language, and help on each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from forebay_hub.branding import Branding, read_branding
from forebay_service.errors import SettingsError
from forebay_service.languages import COOKIE

ICON = (Path(__file__).parents[2] / "service" / "forebay_service" / "static" / "icon.svg").read_bytes()
FORM = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def visitor(hub: Any) -> httpx.Client:
    """Somebody who has not signed in."""
    return httpx.Client(base_url=hub.api_url.removesuffix("/hub/api"), headers={"Accept-Language": "ko-KR, en;q=0.5"})


@pytest.mark.parametrize(
    ("path", "korean", "english"), [("/hub/login", "로그인", "Sign in"), ("/hub/nothing", "시작 페이지", "To the start page")]
)
def test_a_page_is_in_the_browsers_language_until_somebody_chooses_another(
    visitor: httpx.Client, path: str, korean: str, english: str
) -> None:
    with visitor:
        page = visitor.get(path)
        assert korean in page.text and english not in page.text and 'root.lang = "ko"' in page.text
        form = {"language": "en", "_xsrf": visitor.cookies["_xsrf"]}
        answer = visitor.post("/hub/language", data=form, headers={**FORM, "Referer": str(visitor.base_url.join(path))})
        assert (answer.status_code, answer.headers["Location"]) == (303, path)
        assert english in visitor.get(path).text


def test_a_language_that_there_is_not_is_not_kept(visitor: httpx.Client) -> None:
    with visitor:
        visitor.get("/hub/login")
        form = {"language": "tlh", "_xsrf": visitor.cookies["_xsrf"]}
        answer = visitor.post("/hub/language", data=form, headers={**FORM, "Referer": "https://evil.example/x"})
        assert answer.headers["Location"] == "/hub/home" and COOKIE not in visitor.cookies


def test_a_page_has_the_operators_name_and_help_and_forebays_picture_and_colours(visitor: httpx.Client) -> None:
    with visitor:
        page = visitor.get("/hub/login").text
        assert "Acme &lt;Cloud&gt; 로그인" in page and "<Cloud>" not in page and "Acme &lt;Cloud&gt;</title>" in page
        assert 'href="https://help.example/"' in page and "--accent: #1b6670" in page
        assert visitor.get("/hub/logo").content == ICON


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ('name = ""', "look.name must not be empty"),
        ('logo = "/nowhere/logo.png"', "look.logo names /nowhere/logo.png, which is no file"),
        ('help_url = "javascript:alert(1)"', "look.help_url must begin with"),
        ("colour = 1", r"\[look\] may have the texts help_url, logo, name"),
    ],
)
def test_a_look_that_cannot_be_shown_is_refused_with_its_reason(tmp_path: Path, table: str, sentence: str) -> None:
    (tmp_path / "hub.toml").write_text(f"[look]\n{table}\n")
    with pytest.raises(SettingsError, match=sentence):
        read_branding(tmp_path / "hub.toml")


def test_a_file_without_a_look_has_forebays(tmp_path: Path) -> None:
    (tmp_path / "hub.toml").write_text("")
    assert read_branding(tmp_path / "hub.toml") == Branding("Forebay")
