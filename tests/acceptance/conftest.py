"""The whole service, started as a user starts it, and people who use it over HTTP with a browser's means: cookies and forms."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect

CHECKOUT = Path(__file__).resolve().parents[2]
UP = CHECKOUT / "deploy" / "local" / "up.py"
PORTS = 7
START_TIMEOUT_SECONDS = 120
STOP_TIMEOUT_SECONDS = 90
SERVER_TIMEOUT_SECONDS = 60
CELL_TIMEOUT_SECONDS = 240
BILL_TIMEOUT_SECONDS = 10
POLL_SECONDS = 0.1


THROUGH = """
folder=$1 child=$2 cover=$3; shift 3
mount -t tmpfs -o mode=755 tmpfs "$cover"
mkdir "$cover/$child"
mount --rbind "$folder/$child" "$cover/$child"
mount --move "$cover" "$folder"
exec "$@"
"""
"""Lays a folder that lets everybody pass over one that does not, with what is needed of it."""


@dataclass
class Person:
    """Somebody with a browser."""

    name: str
    web: httpx.Client
    kernels: list[Kernel] = field(default_factory=list)

    def sign_in(self, password: str) -> httpx.Response:
        page = self.web.get("/hub/login")
        form = {"username": self.name, "password": password, "_xsrf": self.xsrf("/hub/")}
        return self.web.post("/hub/login", data=form, headers=_from(page))

    def xsrf(self, path: str) -> str:
        """The token of the cookie of that path; hub and server each have one."""
        found = [cookie.value or "" for cookie in self.web.cookies.jar if cookie.name == "_xsrf" and cookie.path == path]
        assert found, f"no token for {path} among {[(cookie.name, cookie.path) for cookie in self.web.cookies.jar]}"
        return found[0]

    def spawn(self, flavor: str) -> httpx.Response:
        """Sends the spawn page's form; the answer is the page that follows."""
        page = self.web.get("/hub/spawn")
        if 'value="' + flavor + '"' not in page.text:
            pytest.fail(f"the spawn page does not offer {flavor}:\n{page.text}")
        return self.web.post(f"/hub/spawn?_xsrf={self.xsrf('/hub/')}", data={"flavor": flavor}, headers=_from(page))

    def open_lab(self) -> httpx.Response:
        """Waits for the server, and opens JupyterLab."""
        deadline = time.monotonic() + SERVER_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            page = self.web.get(f"/user/{self.name}/lab")
            if page.status_code == httpx.codes.OK and page.url.path == f"/user/{self.name}/lab":
                return page
            time.sleep(POLL_SECONDS)
        pytest.fail(f"{self.name} has no server after {SERVER_TIMEOUT_SECONDS} s: {page.status_code} {page.url}\n{page.text[-2000:]}")

    def hub_api(self, method: str, path: str, body: object = None) -> httpx.Response:
        headers = {"X-XSRFToken": self.xsrf("/hub/"), "Referer": str(self.web.base_url.join("/hub/home"))}
        return self.web.request(method, f"/hub/api/{path}", json=body, headers=headers)

    def new_token(self) -> str:
        """A token with all that this person may do."""
        response = self.hub_api("POST", f"users/{self.name}/tokens", {"note": "acceptance"}).raise_for_status()
        token = response.json()["token"]
        assert isinstance(token, str)
        return token

    def stop_server(self) -> None:
        self.hub_api("DELETE", f"users/{self.name}/server").raise_for_status()


def _from(page: httpx.Response) -> dict[str, str]:
    return {"Referer": str(page.url), "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Site": "same-origin"}


class Kernel:
    """A notebook's kernel, driven through Jupyter Server's REST and WebSocket interfaces."""

    def __init__(self, person: Person, notebook: str) -> None:
        self._root = f"/user/{person.name}/"
        self._web = person.web
        self._headers = {"X-XSRFToken": person.xsrf(self._root)}
        self.notebook = self._web.get(f"{self._root}api/contents/{notebook}").raise_for_status().json()["content"]
        body = {"path": notebook, "name": notebook, "type": "notebook", "kernel": {"name": self.notebook["metadata"]["kernelspec"]["name"]}}
        session = self._web.post(f"{self._root}api/sessions", json=body, headers=self._headers).raise_for_status().json()
        self._id = session["kernel"]["id"]
        person.kernels.append(self)
        self.reconnect()

    def reconnect(self) -> None:
        """Opens the channels, anew where a proxy has closed them, as a browser does."""
        address = self._web.base_url.join(f"{self._root}api/kernels/{self._id}/channels?session_id={uuid.uuid4().hex}")
        cookies = "; ".join(f"{cookie.name}={cookie.value}" for cookie in self._web.cookies.jar if self._root.startswith(cookie.path))
        self._channels: ClientConnection = connect(
            str(address).replace("http", "ws", 1), additional_headers={"Cookie": cookies}, max_size=None, close_timeout=2, proxy=None
        )

    @property
    def state(self) -> str:
        """What the server says of the kernel: ``busy`` while a cell runs."""
        return str(self._web.get(f"{self._root}api/kernels/{self._id}").raise_for_status().json()["execution_state"])

    def start(self, source: str) -> None:
        """Executes a cell, and waits for nothing that it does."""
        self._ask(source)

    @property
    def cells(self) -> list[str]:
        """The sources of the notebook's code cells."""
        return [cell["source"] for cell in self.notebook["cells"] if cell["cell_type"] == "code"]

    def run(self, source: str) -> str:
        """Executes a cell; what it printed. Fails the test where it raises."""
        printed, errors = self.execute(source)
        if errors:
            pytest.fail("\n".join([source, printed, *errors]))
        return printed

    def execute(self, source: str) -> tuple[str, list[str]]:
        """Executes a cell; what it printed, and "Name: sentence" of each error that ended it."""
        return self._outcome(self._ask(source))

    def _ask(self, source: str) -> str:
        request = uuid.uuid4().hex
        header = {"msg_id": request, "msg_type": "execute_request", "username": "", "session": request, "version": "5.3", "date": ""}
        content = {"code": source, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
        message = {"channel": "shell", "header": header, "parent_header": {}, "metadata": {}, "content": content, "buffers": []}
        self._channels.send(json.dumps(message))
        return request

    def _outcome(self, request: str) -> tuple[str, list[str]]:
        printed, errors, replied, idle = [], [], False, False
        deadline = time.monotonic() + CELL_TIMEOUT_SECONDS
        while not (replied and idle):
            message = json.loads(self._channels.recv(timeout=max(0.0, deadline - time.monotonic())))
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                printed.append(content["text"])
            elif kind == "error":
                errors.append(f"{content['ename']}: {content['evalue']}")
            replied |= kind == "execute_reply"
            idle |= kind == "status" and content["execution_state"] == "idle"
        return "".join(printed), errors

    def disconnect(self) -> None:
        """Leaves the kernel running, as closing the browser does."""
        self._channels.close()

    def close(self) -> None:
        """Shuts the kernel down, as closing a notebook does."""
        self.disconnect()
        self._web.delete(f"{self._root}api/kernels/{self._id}", headers=self._headers).raise_for_status()


@dataclass
class Cloud:
    """A running installation."""

    url: str
    state: Path
    process: subprocess.Popen[str]
    printed: str
    people: list[Person] = field(default_factory=list)

    @property
    def logins(self) -> dict[str, str]:
        logins: dict[str, str] = json.loads((self.state / "logins.json").read_text())
        return logins

    @property
    def log(self) -> str:
        return (self.state / "log" / "hub.log").read_text()

    def visitor(self, name: str) -> Person:
        """Somebody who has not signed in."""
        person = Person(name, httpx.Client(base_url=self.url, follow_redirects=True, timeout=60))
        self.people.append(person)
        return person

    def person(self, name: str) -> Person:
        """Somebody who has signed in."""
        person = self.visitor(name)
        assert person.sign_in(self.logins[name]).status_code == httpx.codes.OK
        return person

    def service(self, path: str, token: str, **parameters: str) -> httpx.Response:
        """Asks a service through the public address."""
        return httpx.get(f"{self.url}/services/{path}", headers={"Authorization": f"token {token}"}, params=parameters, timeout=30)

    def leave(self) -> None:
        """Everybody closes the browser."""
        for person in self.people:
            for kernel in person.kernels:
                kernel.disconnect()  # one that has told more than was read would not hear that its server ends
            person.web.close()

    def stop(self) -> int:
        """Ctrl-C; the exit status."""
        self.leave()
        self.process.send_signal(signal.SIGINT)
        status = self.process.wait(STOP_TIMEOUT_SECONDS)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return status


def free_ports() -> int:
    """The first of seven neighbouring ports that nobody listens on."""
    for base in range(20_000 + os.getpid() % 10_000, 60_000, PORTS):
        sockets = [socket.socket() for _ in range(PORTS)]
        try:
            for offset, each in enumerate(sockets):
                each.bind(("127.0.0.1", base + offset))
            return base
        except OSError:
            continue
        finally:
            for each in sockets:
                each.close()
    pytest.fail("no seven neighbouring ports are free")


def start(state: Path, port: int, prefix: Sequence[str]) -> Cloud:
    """Starts an installation with an empty home folder, and waits until it says that it is up. The prefix begins the command line."""
    home = state.with_name("home")
    home.mkdir(exist_ok=True)
    environment = {**os.environ, "FOREBAY_STATE": str(state), "FOREBAY_PORT": str(port), "FOREBAY_ADDRESS": "127.0.0.1", "HOME": str(home)}
    command = [*prefix, sys.executable, str(UP)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if process.stdout is None:
        raise RuntimeError("no pipe")
    printed = ""
    for line in process.stdout:
        printed += line
        if line.startswith("Ctrl-C"):
            return Cloud(f"http://127.0.0.1:{port}", state, process, printed)
    process.stdout.close()
    process.wait()
    pytest.fail(f"it did not start:\n{printed}")


@dataclass(frozen=True)
class Passable:
    """Where an installation that is started as root can run its processes under other uids."""

    folder: Path
    prefix: list[str]
    """What the command line of its start begins with."""


def through(folder: Path) -> list[str]:
    """Begins a command line that sees the tests' interpreter where other users can reach it, if this machine keeps it from them."""
    sys.path.insert(0, str(UP.parent))
    accounts = importlib.import_module("accounts")
    sys.path.remove(str(UP.parent))
    closed = accounts.closed_folder((accounts.PYTHON, folder))
    if closed is None:
        return []
    inside = next((parent for parent in Path(sys.executable).resolve().parents if parent.parent == closed), None)
    if inside is None:
        pytest.skip(f"{closed} keeps other users from this checkout, so nothing in it can run under their uids")
    cover = folder / "cover"
    cover.mkdir()
    return ["unshare", "--mount", "sh", "-euc", THROUGH, "sh", str(closed), inside.name, str(cover)]


@pytest.fixture(scope="module")
def passable() -> Iterator[Passable]:
    """For the tests of a module; pytest's own folders let nobody but root pass."""
    folder = Path(tempfile.mkdtemp(prefix="forebay-"))
    folder.chmod(0o755)
    yield Passable(folder, through(folder) if os.getuid() == 0 else [])
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def starter() -> Iterator[Callable[..., Cloud]]:
    """Starts installations, and stops those that a test has left running."""
    running: list[Cloud] = []

    def go(state: Path, prefix: Sequence[str] = ()) -> Cloud:
        running.append(start(state, free_ports(), prefix))
        return running[-1]

    yield go
    for cloud in running:
        cloud.leave()
        if cloud.process.poll() is None:
            cloud.stop()
        elif cloud.process.stdout is not None:
            cloud.process.stdout.close()


@pytest.fixture
def free_port() -> Callable[[], int]:
    """Finds the first of seven neighbouring ports."""
    return free_ports


@pytest.fixture(scope="session")
def cloud(tmp_path_factory: pytest.TempPathFactory, starter: Callable[[Path], Cloud]) -> Cloud:
    """One installation for the tests that only use it."""
    return starter(tmp_path_factory.mktemp("cloud") / "state")


@pytest.fixture(scope="session")
def member(cloud: Cloud) -> Iterator[Person]:
    """acme-member, signed in, with a server of flavor dev.4gb."""
    person = cloud.person("acme-member")
    person.spawn("dev.4gb")
    person.open_lab()
    yield person
    person.stop_server()


@pytest.fixture
def open_notebook() -> Iterator[Callable[[Person, str], Kernel]]:
    """Opens notebooks, and closes their kernels."""
    kernels: list[Kernel] = []

    def go(person: Person, notebook: str) -> Kernel:
        kernels.append(Kernel(person, notebook))
        return kernels[-1]

    yield go
    for kernel in kernels:
        kernel.close()


@pytest.fixture(scope="session")
def eventually() -> Callable[[Callable[[], Any]], Any]:
    """Asks again until the answer is true; usage travels from worker to bill within a second."""

    def ask(question: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + BILL_TIMEOUT_SECONDS
        while not (answer := question()) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return answer

    return ask


@pytest.fixture(scope="session")
def text_of() -> Callable[[httpx.Response], str]:
    """Reads a page without its tags."""
    return lambda page: re.sub(r"<[^>]+>", " ", page.text)


@pytest.fixture(scope="session")
def kernel_type() -> type[Kernel]:
    """For fixtures that keep a kernel longer than a test."""
    return Kernel


@pytest.fixture(scope="session")
def person_type() -> type[Person]:
    """For tests with an installation of another kind."""
    return Person
