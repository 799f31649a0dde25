"""What the documentation points at is there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from forebay.toolkit.command import parser

FOLDERS = (
    "wire", "device", "jax", "tf", "worker", "service", "pool", "billing", "hub", "spawner", "dashboards", "admin", "lab",
    "deploy", "tests", "bench", "docs", "examples", "models",
)  # fmt: skip
PRODUCT = ("wire/forebay_wire", "device/csrc", "device/forebay", "worker/csrc", "pool/forebay_pool", "spawner/forebay_spawner")
MADE = ("bench/results", "lab/node_modules")
PICTURE_BYTES_MAX = {".png": 300 * 1024, ".webp": 1024 * 1024}


def anchors(page: str) -> set[str]:
    """The fragments that headings get, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_leads_to_a_file_and_a_heading(manual: Any, checkout: Path) -> None:
    broken = []
    for name, text in manual.pages.items():
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"https?:|mailto:", target):
                continue
            path, _, fragment = target.partition("#")
            file = (checkout / name).parent / path if path else checkout / name
            headings = anchors(file.read_text(encoding="utf-8")) if fragment and file.is_file() else {fragment}
            if not file.exists() or fragment not in headings:
                broken.append(f"{name}: {target}")
    assert not broken


def test_every_path_in_backticks_is_in_the_checkout(manual: Any, checkout: Path) -> None:
    missing = []
    for name, text in manual.pages.items():
        for path in re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w./*-]+)`", text):
            if not path.startswith(MADE) and not list(checkout.glob(path.rstrip("/"))):
                missing.append(f"{name}: {path}")
    assert not missing


def test_every_page_of_docs_can_be_reached_from_the_index(manual: Any, checkout: Path) -> None:
    seen, todo = set(), {"docs/index.md"}
    while todo:
        name = todo.pop()
        seen.add(name)
        targets = {target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+\.md[^)\s]*)\)", manual.pages[name])}
        reached = {((checkout / name).parent / target).resolve() for target in targets if "://" not in target}
        todo |= {str(path.relative_to(checkout)) for path in reached if path.exists()} - seen
    assert {name for name in manual.pages if name.startswith("docs/")} <= seen


def test_pictures_are_small_and_each_is_shown(manual: Any, checkout: Path) -> None:
    pictures = sorted(path for kind in PICTURE_BYTES_MAX for path in (checkout / "docs" / "pictures").glob(f"*{kind}"))
    shown = "\n".join(manual.pages.values())
    assert {picture.suffix for picture in pictures} == PICTURE_BYTES_MAX.keys()
    assert not [picture.name for picture in pictures if picture.stat().st_size > PICTURE_BYTES_MAX[picture.suffix]]
    assert not [picture.name for picture in pictures if f"pictures/{picture.name})" not in shown]


def test_every_make_target_that_is_named_exists(manual: Any, checkout: Path) -> None:
    makefile = (checkout / "Makefile").read_text(encoding="utf-8")
    rooms = re.findall(r"^ROOMS := (.*)$", makefile, re.MULTILINE)[0].split()
    targets = {*re.findall(r"^([\w-]+):.*## ", makefile, re.MULTILINE), *(f"test-{room}" for room in (*rooms, "pure"))}
    named = {target for text in manual.pages.values() for target in re.findall(r"(?:`|^)make ([\w-]+)", text, re.MULTILINE)}
    assert named and named <= targets


def test_every_forebay_command_line_that_is_shown_is_accepted(manual: Any) -> None:
    """Placeholders and options in brackets aside."""
    shown = {line for text in manual.pages.values() for line in re.findall(r"(?:`|^)(?:\.venv/bin/)?forebay ([^`\n]+)", text, re.MULTILINE)}
    lines = {re.sub(r"\[[^\]]*\]|…", "", line).replace("\\|", "|") for line in shown if line.split()[0].islower() or line.startswith("--")}
    assert lines
    accepted = parser()
    for line in lines:
        words = shlex.split(line)
        if "--help" in words or words in (["run"], ["exec"], ["flavor"], ["device"], ["admin"]):
            continue
        try:
            accepted.parse_args(words)
        except SystemExit as stopped:
            assert stopped.code == 0, line


def test_every_error_that_the_page_of_troubles_quotes_is_one_that_the_code_says(manual: Any, checkout: Path) -> None:
    """Each part between the dots of a quoted sentence stands in the source as it is, string literals joined."""
    files = [path for folder in PRODUCT for kind in ("*.py", "*.cpp", "*.h", "en.json") for path in (checkout / folder).rglob(kind)]
    source = re.sub(r'"\s*\n\s*f?"', "", "\n".join(path.read_text(encoding="utf-8") for path in files))
    rows = [line for line in manual.pages["docs/users/troubleshooting.md"].splitlines() if line.startswith("| `")]
    quoted = [part.strip() for row in rows for quote in re.findall(r"`([^`]+)`", row.split("|")[1]) for part in quote.split("…")]
    assert quoted
    assert not [part for part in quoted if part not in source]
