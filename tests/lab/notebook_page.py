"""A notebook in a browser, used as a person does."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from dashboards_installation import eventually
from lab_installation import Jupyter

WAIT_MS = 120_000
STATUS = """pattern => {
    const button = document.querySelector('.forebay-status-button');
    if (!new RegExp(pattern).test(button?.innerText)) return null;
    const boxes = [...button.children].map(part => part.getBoundingClientRect()).filter(box => box.width);
    return {text: button.innerText, label: button.ariaLabel, places: boxes.map(box => [box.x - boxes[0].x, box.y])};
}"""
GATED = "while not os.path.exists('gate'): (x @ x).sum().item()"
"""A cell that computes until the test lets it end."""
PRESS_AGAIN_SECONDS = 5.0
"""A key that is pressed before the kernel has settled is lost."""


class NotebookPage:
    """``kind`` is ``lab`` or ``notebook``."""

    def __init__(self, browser: Any, server: Jupyter, kind: str, notebook: str, **options: Any) -> None:
        self.kind, self._server, self._notebook = kind, server, notebook
        self._browser, self._options = browser, options
        self._new_page()
        path = "lab/tree" if kind == "lab" else "notebooks"
        self._address = f"{server.url}/{path}/{notebook}?token={server.token}"
        self.open()

    def _new_page(self) -> None:
        self.context = self._browser.new_context(viewport={"width": 1440, "height": 900}, **self._options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT_MS)

    def open(self) -> None:
        """Opens the page, and waits for the kernel."""
        self.page.goto(self._address)
        self.await_kernel()

    def come_back(self) -> None:
        """Closes the tab as somebody does who shuts a computer, and opens the notebook in another browser, whether or not a cell runs."""
        self.context.close()
        self._new_page()
        self.page.goto(self._address)
        self.cell(0).wait_for()

    def prompt(self, number: int) -> str:
        """What stands beside a cell: ``[*]:`` while it runs, then its count."""
        return str(self.cell(number).locator(".jp-InputPrompt").inner_text())

    def await_output(self, number: int, text: str) -> None:
        """Until this stands below a cell."""
        self.cell(number).locator(".jp-Cell-outputArea", has_text=text).wait_for()

    def await_kernel(self) -> None:
        """Until there is one, and it is idle: its indicator says "idle" before there is one, too."""
        deadline = time.monotonic() + WAIT_MS / 1000
        while not self._has_kernel():
            assert time.monotonic() < deadline, f"{self._notebook} gets no kernel"
            self.page.wait_for_timeout(50)
        self.page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]:visible")

    def _has_kernel(self) -> bool:
        """Whether the page is connected to the notebook's kernel, and that is idle, as the server says."""
        kernels = [session["kernel"] for session in self._sessions()]
        return any(kernel["connections"] and kernel["execution_state"] == "idle" for kernel in kernels)

    def _sessions(self) -> list[dict[str, Any]]:
        """The notebook's sessions, as the server knows them; no page need be open."""
        answer = httpx.get(f"{self._server.url}/api/sessions", headers=self._headers).json()
        return [session for session in answer if session["path"] == self._notebook]

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"token {self._server.token}"}

    def await_idle_kernel(self) -> None:
        """Until the kernel has done all that it was asked; no page need be open."""
        eventually(lambda: self._sessions()[0]["kernel"]["execution_state"] == "idle")

    def end_kernel(self) -> None:
        """Ends the kernel, whatever it does."""
        for session in self._sessions():
            httpx.delete(f"{self._server.url}/api/sessions/{session['id']}", headers=self._headers).raise_for_status()

    def close(self) -> None:
        self.context.close()

    def cell(self, number: int) -> Any:
        return self.page.locator(".jp-NotebookPanel:visible .jp-CodeCell").nth(number)

    def start(self, number: int) -> None:
        """Begins to run a cell; the first is number 0."""
        prompt = self.cell(number).locator(".jp-InputPrompt")
        before, pressed = prompt.inner_text(), 0.0
        while prompt.inner_text() == before:
            if time.monotonic() - pressed > PRESS_AGAIN_SECONDS:
                self._press(number)
                pressed = time.monotonic()
            self.page.wait_for_timeout(20)

    def run(self, number: int) -> str:
        """Runs a cell to its end; what stands below it."""
        prompt = self.cell(number).locator(".jp-InputPrompt")
        before, pressed, deadline = prompt.inner_text(), 0.0, time.monotonic() + WAIT_MS / 1000
        while (text := prompt.inner_text()) == before or not re.match(r"\[\d+\]", text):
            assert time.monotonic() < deadline, f"cell {number} shows {text}"
            if "*" not in text and time.monotonic() - pressed > PRESS_AGAIN_SECONDS:
                self._press(number)
                pressed = time.monotonic()
            self.page.wait_for_timeout(50)
        return self.output(number)

    def shut_gate(self) -> None:
        """A GATED cell that is started computes on until its gate is opened."""
        (self._server.home / "work" / "gate").unlink(missing_ok=True)

    def open_gate(self) -> None:
        (self._server.home / "work" / "gate").touch()

    @contextmanager
    def computing(self, number: int) -> Iterator[None]:
        """A GATED cell computes meanwhile; in the end it is over."""
        self.shut_gate()
        self.start(number)
        self.await_status("computing")
        yield
        self.open_gate()
        self.ended(number)

    def _press(self, number: int) -> None:
        dialogs = self.page.locator(".jp-Dialog:visible").all_inner_texts()
        assert not dialogs, f"cell {number} lies behind {dialogs}"
        self.cell(number).locator(".cm-content").click()
        self.page.keyboard.press("Control+Enter")

    def ended(self, number: int) -> str:
        """Waits until a cell has ended; what stands below it."""
        self.cell(number).locator(".jp-InputPrompt", has_text=re.compile(r"\[\d+\]")).wait_for()
        return self.output(number)

    def output(self, number: int) -> str:
        found = self.cell(number).locator(".jp-Cell-outputArea")
        return str(found.inner_text()) if found.count() else ""

    def stop(self) -> None:
        """Presses the stop button."""
        self.page.locator("[data-command='notebook:interrupt-kernel'], [data-jp-item-name='interrupt'] jp-button").first.click()

    def restart(self) -> None:
        """Restarts the kernel by the keyboard, and confirms it."""
        self.cell(0).locator(".jp-InputPrompt").click()
        self.page.keyboard.press("0")
        self.page.keyboard.press("0")
        self.page.locator(".jp-Dialog button.jp-mod-accept").click()

    def save(self) -> None:
        self.page.keyboard.press("Control+s")

    @property
    def question(self) -> Any:
        """Where a cell asks for input."""
        return self.page.locator(".jp-Stdin-input:visible")

    def status(self) -> str:
        return str(self.page.locator(".forebay-status-button").inner_text()).replace("\n", " ")

    def status_once(self, pattern: str) -> dict[str, Any]:
        """Text, label, and the places of the status item's parts from the first on, all in the moment in which its text is so."""
        found: dict[str, Any] = self.page.wait_for_function(STATUS, arg=pattern).json_value()
        return found

    def await_status(self, text: str) -> str:
        """The status item, once it says this."""
        self.page.locator(".forebay-status-button", has_text=text).wait_for()
        return self.status()

    @property
    def panel(self) -> Any:
        return self.page.locator("#forebay-panel")

    def open_panel(self) -> None:
        if not self.panel.is_visible():
            self.page.locator(".forebay-status-button").click()
        self.panel.locator(".forebay-flavor").first.wait_for()
