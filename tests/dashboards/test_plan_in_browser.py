"""The page that ``forebay plan --html`` writes, on a telephone and on a wide screen, in light and dark."""

from __future__ import annotations

import subprocess
import sys

import pytest
from browsing import grave_faults
from playwright.sync_api import Browser

TRAINING = """
import torch
model = torch.nn.Linear(512, 512).to("cuda")
optimizer = torch.optim.AdamW(model.parameters())
while True:
    loss = model(torch.randn(16, 512).to("cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page's address."""
    folder = tmp_path_factory.mktemp("plan")
    (folder / "train.py").write_text(TRAINING)
    command = [sys.executable, "-m", "forebay", "plan", "--devices", "16", "--html", str(folder / "plan.html"), str(folder / "train.py")]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return (folder / "plan.html").as_uri()


@pytest.mark.full_sweep
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_a_plans_page_fits_its_window_and_tells_sizes_in_units_that_fit_them(chrome: Browser, plan: str, width: int, scheme: str) -> None:
    context = chrome.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(plan)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert grave_faults(page) == []
    told = page.locator("h2:has-text('Memory') ~ table").first.inner_text()
    assert "weights\t1.00 MiB" in told and "GiB" in told.splitlines()[-1]
    context.close()
