"""The gallery's notebooks: opened from the launcher, and each of them run."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from kernel_client import kernel

pytestmark = [pytest.mark.slow]

GALLERY = Path(__file__).parents[2] / "lab" / "gallery"
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WAIT_MS = 120_000
SERIOUS = {"serious", "critical"}


def falls(text: str) -> bool:
    """All losses that are told."""
    found = [(float(first), float(last)) for first, last in re.findall(r"loss ([\d.]+) -> ([\d.]+)", text)]
    return bool(found) and all(last < first for first, last in found)


def is_right_mostly(text: str) -> bool:
    found = re.search(r"(\d+)% of the (?:digits|lines)", text)
    return found is not None and int(found[1]) > 70


def plays(text: str) -> bool:
    found = re.search(r"is ([\d.]+) from that of real digits; noise would be ([\d.]+)", text)
    return found is not None and float(found[1]) < float(found[2]) / 2


def balances_longer(text: str) -> bool:
    found = re.search(r"of at most 60 : ([\d ]+)", text)
    return found is not None and int(found[1].split()[-1]) > 1.5 * int(found[1].split()[0])


def loses_nothing(text: str) -> bool:
    found = re.search(r"peak (\d+) KiB in one, (\d+) KiB in eight", text)
    less = found is not None and int(found[2]) < int(found[1])
    return less and "out of memory" in text and "what was there is there: 1000.0" in text and text.count("alike: True") == 2


SAYS: dict[str, Callable[[str], bool]] = {
    "lora": lambda text: falls(text) and "the base is as it was: True" in text,
    "vision-transformer": is_right_mostly,
    "diffusion": lambda text: falls(text) and len(text.splitlines()[-1]) == 80,
    "gan": plays,
    "reinforcement-learning": balances_longer,
    "out-of-memory": loses_nothing,
    "profiling": lambda text: text.count("Profile of") == len(re.findall("^mean loss", text, re.MULTILINE)) == 2,
    "two-devices": lambda text: falls(text) and "'upper.0.weight': 'cuda:1'" in text,
    "mixed-precision": lambda text: "mixed torch.bfloat16" in text and "gradients scaled" in text,
    "many-devices": falls,
    "keras": lambda text: falls(text) and is_right_mostly(text) and "torch cuda:0" in text,
    "keras-sequences": lambda text: falls(text) and is_right_mostly(text) and "torch cuda:0" in text and "@" in text,
}
"""What tells that a notebook did what it is about."""
OFTEN = ("out-of-memory", "mixed-precision")


def test_each_is_looked_at_and_has_a_korean_title() -> None:
    korean = json.loads((GALLERY.parent / "src" / "gallery" / "korean.json").read_text(encoding="utf-8"))
    assert {path.stem for path in GALLERY.glob("*.md")} == SAYS.keys() == korean.keys()
    assert all(re.search("[가-힣]", text) for texts in korean.values() for text in texts)


@pytest.mark.parametrize("name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.full_sweep) for name in SAYS])
def test_each_runs_on_one_device_and_does_what_it_says(name: str, tmp_path: Path) -> None:
    ours = {variable: value for variable, value in os.environ.items() if not variable.startswith(("FOREBAY_", "JUPYTERHUB_"))}
    with kernel({**ours, "FOREBAY_URL": "local", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1", "LANG": "C.UTF-8"}) as running:
        told = ""
        running.run(f"import os; os.chdir({str(tmp_path)!r})")  # an example saves a model
        for code in FENCE.findall((GALLERY / f"{name}.md").read_text(encoding="utf-8")):
            shown = running.run(code)
            assert not shown.errors, (code, shown.errors)
            told += shown.streams.get("stdout", "") + "".join(shown.results)
    assert SAYS[name](told), told


@pytest.fixture
def page(browser: Any, server: Any) -> Any:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    page.goto(f"{server.url}/lab?token={server.token}&reset")
    yield page
    context.close()


def test_a_card_of_the_launcher_shows_all_and_a_copy_that_was_changed_is_left_as_it_is(page: Any, server: Any) -> None:
    page.locator(".jp-LauncherCard", has_text="Forebay examples").click()
    gallery = page.locator(".forebay-gallery")
    gallery.wait_for()
    titles = gallery.locator("li h3").all_inner_texts()
    assert sorted(titles) == sorted(path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ") for path in GALLERY.glob("*.md"))
    found = Axe().run(page, context=".forebay-gallery").response["violations"]
    assert [one["id"] for one in found if one["impact"] in SERIOUS] == []
    page.set_viewport_size({"width": 390, "height": 800})
    page.keyboard.press("Control+b")  # without the browser of files beside it
    assert gallery.evaluate("one => one.clientWidth - one.scrollWidth") == 0, "nothing sticks out on a telephone"
    page.set_viewport_size({"width": 1440, "height": 900})
    gallery.get_by_label("Open LoRA fine-tuning").click()
    page.locator(".jp-NotebookPanel:visible h1", has_text="LoRA fine-tuning").wait_for()
    path = server.home / "work" / "examples" / "lora.ipynb"
    made = json.loads(path.read_text(encoding="utf-8"))
    source = ["".join(cell["source"]).strip() for cell in made["cells"] if cell["cell_type"] == "code"]
    assert source == [code.strip() for code in FENCE.findall((GALLERY / "lora.md").read_text(encoding="utf-8"))]
    changed = path.with_name("gan.ipynb")
    changed.write_text(json.dumps({**made, "cells": [{"id": "a", "cell_type": "markdown", "metadata": {}, "source": "# Mine"}]}))
    page.get_by_role("tab", name="Forebay examples").click()
    gallery.get_by_label("Open A generative adversarial network").click()
    page.locator(".jp-NotebookPanel:visible h1", has_text="Mine").wait_for()
    page.locator(".lm-MenuBar-item", has_text="Help").click()
    page.locator(".lm-Menu-item", has_text="Forebay examples").wait_for()
