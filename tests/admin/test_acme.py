"""``acme`` of the answers: the proxy that ``forebay admin init`` sets up asks an authority for a certificate of the host's name."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from forebay.toolkit.command import main
from forebay_admin.certificates import signing
from forebay_admin.host.answers import Answers, InitError
from forebay_admin.host.files import files
from forebay_admin.host.layout import Layout

NAME = "gpu.example.org"
ROUTE = """
[http.routers.hub]
rule = "PathPrefix(`/`)"
entryPoints = ["https"]
service = "hub"
[[http.services.hub.loadBalancer.servers]]
url = "http://127.0.0.1:9"
"""
ASKED_SECONDS_MAX = 30


@pytest.fixture
def authority(tmp_path: Path) -> Iterator[tuple[str, threading.Event, list[str]]]:
    """As much of an authority as is asked first: its directory, and what comes after that, which it refuses."""
    asked, paths = threading.Event(), []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            paths.append(f"{self.command} {self.path}")
            here = f"https://127.0.0.1:{self.server.server_port}"  # type: ignore[attr-defined]
            directory = {name: f"{here}/{name}" for name in ("newNonce", "newAccount", "newOrder", "revokeCert", "keyChange")}
            body = json.dumps(directory).encode() if self.path == "/directory" else b"{}"
            self.send_response(200 if self.path in ("/directory", "/newNonce") else 400)
            self.send_header("Replay-Nonce", "bm9uY2U")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
            if self.path == "/newAccount":
                asked.set()

        do_GET = do_HEAD = do_POST = answer

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        own = signing.new_authority("tests")
        pair = signing.new_server("127.0.0.1", own)
        (tmp_path / "ca.crt").write_bytes(own.certificate)
        (tmp_path / "server.pem").write_bytes(pair.certificate + pair.key)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tmp_path / "server.pem")
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"https://127.0.0.1:{server.server_port}/directory", asked, paths
        server.shutdown()
        thread.join()


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        return int(holder.getsockname()[1])


def laid(root: Path, answers: str) -> Path:
    """The proxy's settings."""
    root.mkdir()
    (root / "answers.toml").write_text(f'name = "{NAME}"\ndevices = "cpu"\n{answers}')
    assert main(["admin", "init", "--answers", str(root / "answers.toml"), "--root", str(root)]) == 0
    return root / "etc" / "forebay" / "proxy.toml"


def test_the_proxy_asks_the_authority_for_an_account_of_that_mail(
    tmp_path: Path, authority: tuple[str, threading.Event, list[str]], free_port: int
) -> None:
    """Traefik itself, with what is written; only its port is another."""
    url, asked, paths = authority
    written = laid(tmp_path / "host", f'acme = "ops@example.org"\nacme_server = "{url}"\n')
    routes = tmp_path / "host" / "var" / "lib" / "forebay" / "routes"
    routes.mkdir(parents=True)
    (routes / "routes.toml").write_text(ROUTE)
    here = re.sub(r'":443"', f'"127.0.0.1:{free_port}"', written.read_text(), count=1)
    here = re.sub(r'"127\.0\.0\.1:8802"', '"127.0.0.1:0"', here)
    (tmp_path / "proxy.toml").write_text(here)
    traefik = shutil.which("traefik", path=Path(sys.executable).parent)
    assert traefik is not None
    with (tmp_path / "log").open("wb") as log:
        trusts = {**os.environ, "LEGO_CA_CERTIFICATES": str(tmp_path / "ca.crt")}
        process = subprocess.Popen([traefik, "--configfile", str(tmp_path / "proxy.toml")], stdout=log, stderr=log, env=trusts)
    try:
        assert asked.wait(ASKED_SECONDS_MAX), (tmp_path / "log").read_text()
    finally:
        process.terminate()
        process.wait()
    assert paths[0] == "GET /directory"


def test_names_mail_and_storage_are_where_traefik_looks(tmp_path: Path) -> None:
    written = tomllib.loads(laid(tmp_path / "host", 'acme = "ops@example.org"\n').read_text())
    tls = written["entryPoints"]["https"]["http"]["tls"]
    assert (tls["certResolver"], tls["domains"], tls["options"]) == ("acme", [{"main": NAME}], "default")
    own = written["certificatesResolvers"]["acme"]["acme"]
    assert (own["email"], own["caServer"]) == ("ops@example.org", "https://acme-v02.api.letsencrypt.org/directory")
    assert own["storage"].startswith(written["providers"]["file"]["directory"]) and "tlsChallenge" in own


def test_without_it_nobody_is_asked(tmp_path: Path) -> None:
    written = laid(tmp_path / "host", "").read_text()
    assert "acme" not in written.lower() and "certResolver" not in written


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"acme": "ops"}, "is no address of mail"),
        ({"acme": "ops@example.org", "port": 8443}, "asks at port 443, and port is 8443"),
        ({"acme": "ops@example.org", "name": "gpu"}, "is no public name"),
        ({"acme": "ops@example.org", "name": "10.0.0.7"}, "is no public name"),
        ({"acme": "ops@example.org", "certificate": "a", "key": "b"}, "do not go together"),
        ({"acme": "ops@example.org", "acme_server": "http://acme.example.org"}, "is no address of an authority"),
    ],
)
def test_what_no_authority_would_take_is_refused(wrong: dict[str, str], sentence: str) -> None:
    with pytest.raises(InitError, match=sentence):
        Answers(**{"name": NAME, **wrong})  # type: ignore[arg-type] # texts and a number


def test_the_certificate_of_the_host_s_own_authority_stays_until_there_is_the_other(tmp_path: Path) -> None:
    names = {file.path.name for file in files(Answers(NAME, acme="ops@example.org", devices="cpu"), Layout(tmp_path))}
    assert {"ca.crt", "server.crt", "server.key"} <= names
