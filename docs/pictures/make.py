"""Makes the pictures of the documentation anew: starts a local installation on a state of its own, uses it in a browser, and stops it.

Needs what ``make setup`` installs, and Chromium on PATH. The browser is driven through its DevTools protocol.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from film import Film
from websockets.sync.client import connect

PICTURES = Path(__file__).resolve().parent
CHECKOUT = PICTURES.parents[1]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PORT = "18600"
WIDTH, HEIGHT = 1180, 760
WAIT_SECONDS_MAX = 360
"""As long as a notebook may take on a host that does other things, too."""
POLL_SECONDS = 0.2
SETTLE_SECONDS = 1.5
"""For what a page still draws after it has its content."""
IDLE = "document.querySelector('#jp-main-statusbar')?.innerText.includes('| Idle')"
"""A kernel is there: the indicator of a notebook says so before, too."""
COMPUTES = "document.querySelector('.forebay-status-button[data-state=computing]') !== null"
COPY = """fetch('{server}/api/contents', {{
    method: 'POST',
    headers: {{'X-XSRFToken': document.cookie.match(/_xsrf=([^;]+)/)[1]}},
    body: JSON.stringify({{copy_from: '{name}'}}),
}}).then(answer => {{ document.body.dataset.copied = answer.status }}); true"""
FOLLOW = "[...document.querySelectorAll('.jp-OutputArea-child')].at(-1)?.scrollIntoView({block: 'end', behavior: 'instant'})"
POINTER = """addEventListener('mousemove', moved => {
    const made = () => document.body.appendChild(Object.assign(document.createElement('div'), {id: 'pointer'}));
    const dot = document.querySelector('#pointer') ?? made();
    dot.style.cssText = `position: fixed; left: ${moved.clientX - 9}px; top: ${moved.clientY - 9}px; width: 18px; height: 18px;
        border-radius: 50%; background: rgb(255 120 0 / 60%); pointer-events: none; z-index: 100000`;
}, true)"""
"""A dot where the mouse is: pictures of a page do not have it."""
CELLS_RUN = "[...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')].every(prompt => /\\[\\d+\\]/.test(prompt.textContent))"


class Page:
    """One tab of the browser."""

    def __init__(self, address: str, context: str | None = None) -> None:
        self._link = connect(address, max_size=None, proxy=None)
        self._calls = 0
        self._session: str | None = None
        options = {"browserContextId": context or self._call("Target.createBrowserContext")["browserContextId"]}
        self.context = options["browserContextId"]
        target = self._call("Target.createTarget", url="about:blank", **options)["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._call("Emulation.setDeviceMetricsOverride", width=WIDTH, height=HEIGHT, deviceScaleFactor=1, mobile=False)
        self._call("Page.enable")

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._calls += 1
        self._send(self._calls, method, parameters)
        while (answer := json.loads(self._link.recv(WAIT_SECONDS_MAX))).get("id") != self._calls:
            if answer.get("method") == "Page.javascriptDialogOpening":  # whether to leave a notebook with changes: else nothing goes on
                self._send(0, "Page.handleJavaScriptDialog", {"accept": True})
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _send(self, number: int, method: str, parameters: dict[str, Any]) -> None:
        request = {"id": number, "method": method, "params": parameters}
        self._link.send(json.dumps(request | ({"sessionId": self._session} if self._session else {})))

    def seem(self, width: int, height: int, dark: bool) -> None:
        """Shows the page as on such a screen, and to people who like it dark, or not."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def value(self, script: str) -> Any:
        """What a script in the page says; None while the page changes."""
        return self._call("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def wait(self, condition: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while self.value(condition) is not True:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.value('location.href')} does not get to: {condition}")
            time.sleep(POLL_SECONDS)

    def open(self, url: str, condition: str) -> None:
        """Goes there, as the tab in front: one behind draws nothing that waits for a frame, such as menus."""
        self._call("Page.bringToFront")
        self._call("Page.navigate", url=url)
        self.wait(condition)

    def click(self, selector: str) -> None:
        """Presses the mouse on the middle of an element, as a person does."""
        element = f"document.querySelector({json.dumps(selector)})"
        self.wait(f"{element} !== null")
        self.value(f"{element}.scrollIntoView({{block: 'nearest', behavior: 'instant'}})")
        x, y = self.value(f"(box => [box.x + box.width / 2, box.y + box.height / 2])({element}.getBoundingClientRect())")
        for kind, button in (("mouseMoved", "none"), ("mousePressed", "left"), ("mouseReleased", "left")):
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, clickCount=int(button == "left"))

    def shot(self) -> bytes:
        """What it shows now, as PNG."""
        return base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"])

    def picture(self, name: str) -> None:
        time.sleep(SETTLE_SECONDS)
        self.value("document.querySelector('#pointer')?.remove()")
        (PICTURES / name).write_bytes(self.shot())
        print(name, flush=True)

    def point(self) -> None:
        """Shows where the mouse is, in each page that is opened from now on."""
        self._call("Page.addScriptToEvaluateOnNewDocument", source=POINTER)

    def fill_in(self, cloud: str, name: str, password: str) -> None:
        """Fills in the form that people sign in with."""
        self.open(f"{cloud}/hub/login?next=%2Fhub%2Fhome", "document.querySelector('#password_input') !== null")
        for field, text in (("username", name), ("password", password)):
            self.value(f"document.querySelector('#{field}_input').value = {json.dumps(text)}; true")

    def sign_in(self, cloud: str, name: str, password: str) -> None:
        self.fill_in(cloud, name, password)
        self.click("#login_submit")
        self.wait("location.pathname === '/hub/home' && document.readyState === 'complete'")

    def run_notebook(self, lab: str, notebook: str, before: Callable[[], None] = lambda: None) -> None:
        """Opens a notebook, and runs all its cells from the menu; ``before`` is called when the notebook is open, and when the menu is."""
        self.open(f"{lab}/tree/{notebook}", IDLE)
        time.sleep(SETTLE_SECONDS)
        before()
        self.click(".lm-MenuBar-item:nth-child(4)")
        before()
        self.click(".lm-Menu-item[data-command='runmenu:run-all']")


@contextmanager
def cloud(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """A local installation with a state of its own: its address and logins."""
    environment = {**os.environ, "FOREBAY_STATE": str(folder / "var"), "FOREBAY_PORT": PORT, "FOREBAY_ADDRESS": "127.0.0.1"}
    command = [sys.executable, str(CHECKOUT / "deploy" / "local" / "up.py")]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout is None or not any(line.startswith("Ctrl-C") for line in process.stdout):
            raise RuntimeError("the installation did not start")
        yield f"http://127.0.0.1:{PORT}", json.loads((folder / "var" / "logins.json").read_text(encoding="utf-8"))
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate()


@contextmanager
def browser(folder: Path) -> Iterator[str]:
    """A browser without a window: the address of its DevTools."""
    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if program is None:
        raise RuntimeError(f"none of {', '.join(BROWSERS)} is on PATH")
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-port=0", f"--user-data-dir={folder}")
    process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        told = folder / "DevToolsActivePort"
        while not told.exists() or told.read_text().count("\n") < 1:
            if process.poll() is not None:
                raise RuntimeError(f"{program} ended with status {process.returncode}")
            time.sleep(POLL_SECONDS)
        port, path = told.read_text().split()
        yield f"ws://127.0.0.1:{port}{path}"
    finally:
        process.terminate()
        process.wait()


def take(address: str, cloud: str, logins: dict[str, str]) -> None:
    """Goes where a user goes, then where an operator looks while the user computes."""
    film, member, operator = Film(), Page(address), Page(address)
    take_session(film, member, cloud, logins["acme-member"])
    lab = f"{cloud}/user/acme-member/lab"
    usage, second = Page(address, member.context), Page(address, member.context)
    usage.open(f"{cloud}/services/dashboards/usage", "document.body.innerText.includes('digits.ipynb')")
    time.sleep(SETTLE_SECONDS)
    film.hold(usage.shot, 3.0)
    film.write(PICTURES / "session.webp")
    second.run_notebook(lab, "words.ipynb")
    usage.wait("document.querySelector('section[aria-labelledby=now]').innerText.includes('words.ipynb')")
    usage.picture("usage.png")
    take_notebooks(address, member, second, f"{cloud}/user/acme-member")
    operator.sign_in(cloud, "operator", logins["operator"])
    operator.open(f"{cloud}/services/dashboards/operator/nodes", "document.body.innerText.includes('acme-member')")
    operator.picture("operator.png")
    operator.open(f"{cloud}/services/dashboards/operator", "document.body.innerText.includes('held by a lease')")
    operator.picture("console.png")
    operator.open(f"{cloud}/services/dashboards/operator/flavors", "document.body.innerText.includes('dev.4gb')")
    operator.picture("flavors.png")


def take_session(film: Film, member: Page, cloud: str, password: str) -> None:
    """From the sign-in to what the notebook's cells cost; spawn form and notebook on the way."""
    member.point()
    member.fill_in(cloud, "acme-member", password)
    film.hold(member.shot, 1.0)
    member.click("#login_submit")
    member.wait("location.pathname === '/hub/home' && document.readyState === 'complete'")
    member.open(f"{cloud}/hub/spawn", "document.querySelector('input[name=flavor]') !== null")
    member.picture("spawn.png")
    film.hold(member.shot, 2.0)
    member.click("form [type=submit]")
    lab = f"{cloud}/user/acme-member/lab"
    film.until(member.shot, lambda: bool(member.value(f"location.href.startsWith('{lab}')")), WAIT_SECONDS_MAX)
    member.run_notebook(lab, "digits.ipynb", before=lambda: film.hold(member.shot, 1.0))
    film.until(member.shot, lambda: bool(member.value(f"{FOLLOW}; {CELLS_RUN}")), WAIT_SECONDS_MAX)
    member.value(FOLLOW)
    member.picture("notebook.png")
    film.hold(member.shot, 3.0)


def take_notebooks(address: str, member: Page, second: Page, server: str) -> None:
    """The status bar and the panel while a notebook computes, then a third notebook that waits for one of the two devices."""
    second.wait(COMPUTES)
    second.click(".forebay-status-button")
    second.wait("document.querySelector('.forebay-flavor') !== null")
    second.picture("panel.png")
    second.value(COPY.format(server=server, name="words.ipynb"))
    second.wait("document.body.dataset.copied === '201'")
    third = Page(address, member.context)
    third.run_notebook(f"{server}/lab", "words-Copy1.ipynb")
    third.wait(COMPUTES)
    member.run_notebook(f"{server}/lab", "digits.ipynb")
    member.wait("document.querySelector('.forebay-waiting') !== null")
    member.picture("queued.png")


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as name, cloud(Path(name)) as (url, logins), browser(Path(name) / "browser") as address:
        take(address, url, logins)
    return 0


if __name__ == "__main__":
    sys.exit(main())
