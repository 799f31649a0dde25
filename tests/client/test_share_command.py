"""``forebay share``, ``shares`` and ``unshare`` as people type them, on a real pool; pages are made by the real nbconvert."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from forebay.client import Client, NotFound
from forebay.toolkit.command import main
from forebay.toolkit.sharing.command import PAGE_BYTES_MAX, link_of

LINE = "forebay: device 0.120 s · waited 0.004 s · 0.000100 USD · dev.1gb"

pytestmark = pytest.mark.usefixtures("environment")


def write(path: Path, *outputs: Any) -> Path:
    cells = [nbformat.v4.new_markdown_cell("# 손실\n[docs](https://example.org)"), nbformat.v4.new_code_cell("train()", outputs=[*outputs])]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def display(text: str) -> Any:
    return nbformat.v4.new_output("display_data", {"text/plain": text, "text/html": f'<div class="forebay-line">{text}</div>'})


def test_a_notebook_is_shared_with_its_outputs_and_costs_listed_and_taken_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], client_of: Callable[[str], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "json.py").write_text("raise SystemExit('what lies beside a notebook is not imported')")
    write(tmp_path / "digits.ipynb", display(LINE))
    assert main(["share", "digits.ipynb", "--days", "7"]) == 0
    said = capsys.readouterr().out
    found = re.fullmatch(
        r"digits\.ipynb can be read until \d{4}-\d\d-\d\d \d\d:\d\d \w+ by members of acme who have this link:\n"
        r"/services/dashboards/shared/(\d+)\?key=([\w-]{43})\n`forebay unshare \1` takes it back\.\n",
        said,
    )
    assert found, said
    member = client_of("acme-member")
    page = member.shared_page(int(found[1]), key=found[2])
    assert "손실" in page and LINE in page and '<head><base target="_blank">' in page
    shared = member.shared_notebook(int(found[1]), key=found[2])
    assert shared.expires_at_ns - shared.shared_at_ns == 7 * 86_400 * 10**9
    assert main(["shares"]) == 0
    assert re.search(rf"\| {found[1]} +\| digits\.ipynb +\| acme-owner +\|", capsys.readouterr().out)
    assert main(["shares", "--everybody", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["digits.ipynb"]
    assert main(["unshare", found[1]]) == 0
    assert capsys.readouterr().out.endswith("its link opens nothing any more.\n")
    with pytest.raises(NotFound):
        member.shared_page(int(found[1]), key=found[2])
    assert main(["unshare", found[1]]) == 1
    assert f"There is no shared notebook {found[1]} among those you may take back." in capsys.readouterr().err
    assert main(["shares"]) == 0
    assert capsys.readouterr().out == "No notebook is shared; `forebay share` shares one.\n"


@pytest.mark.parametrize(
    ("name", "content", "options", "said"),
    [
        ("absent.ipynb", None, (), "absent.ipynb cannot be read: No such file or directory."),
        ("train.py", "print(1)", (), "train.py is no notebook; a notebook is a file that Jupyter writes, as digits.ipynb."),
        ("list.ipynb", "[]", (), "list.ipynb is no notebook"),
        ("odd.ipynb", '{"nbformat": 4, "cells": [{"cell_type": "what"}]}', (), "nbconvert, which JupyterLab brings, makes no page of"),
        ("long.ipynb", "x" * PAGE_BYTES_MAX, (), "MiB as a page, and at most 8 MiB are shared: clear outputs that are large"),
        ("late.ipynb", "x", ("--days", "91"), "days: Input should be less than or equal to 90"),
    ],
)
def test_what_cannot_be_shared_is_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: str | None, options: tuple[str, ...], said: str
) -> None:
    path = tmp_path / name
    if name in ("long.ipynb", "late.ipynb"):
        write(path, display(str(content)))
    elif content is not None:
        path.write_text(content)
    assert main(["share", str(path), *options]) == 1
    error = capsys.readouterr().err
    assert said in error and error.startswith("forebay: ") and error.count("\n") == 1, error


def test_without_a_service_nothing_can_be_shared(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_URL", "local")
    assert main(["shares"]) == 1
    assert "Notebooks are shared by a service: sign in with `forebay login`, or set FOREBAY_URL" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("environment", "link"),
    [
        ({}, "/services/dashboards/shared/3?key=k"),
        ({"JUPYTERHUB_BASE_URL": "/lab/"}, "/lab/services/dashboards/shared/3?key=k"),
        (
            {"JUPYTERHUB_PUBLIC_HUB_URL": "https://ai.example.org/lab/hub/", "JUPYTERHUB_BASE_URL": "/lab/"},
            "https://ai.example.org/lab/services/dashboards/shared/3?key=k",
        ),
    ],
)
def test_the_link_has_the_hubs_address_where_the_hub_knows_it(environment: dict[str, str], link: str) -> None:
    assert link_of({"id": 3, "key": "k"}, environment) == link
