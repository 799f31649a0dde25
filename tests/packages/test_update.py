"""``forebay update`` in an environment with a release's wheels, against an index page and a pool's answer served over TLS."""

from __future__ import annotations

import json
import re
import shutil
import ssl
import subprocess
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from forebay_admin.certificates import signing
from forebay_wire.messages import PROTOCOL
from installing import link

NEXT = "0.2.0"
CHANGES = "# Forebay 0.2.0\n\n- It is newer.\n"


def next_release(dist: Path, folder: Path) -> None:
    """The same wheels under the next version, as an index page has them beside those of today."""
    folder.mkdir()
    for wheel in [*dist.glob("forebay-*.whl"), *dist.glob("forebay_wire-*.whl")]:
        shutil.copy(wheel, folder)
        with zipfile.ZipFile(wheel) as today, zipfile.ZipFile(folder / wheel.name.replace("-0.1.0-", f"-{NEXT}-"), "w") as archive:
            for name in today.namelist():
                text = today.read(name)
                if name.endswith(".dist-info/METADATA"):
                    text = re.sub(rb"^(Version: |Requires-Dist: forebay.*==)0\.1\.0", rb"\g<1>" + NEXT.encode(), text, flags=re.MULTILINE)
                archive.writestr(re.sub(r"-0\.1\.0\.(dist-info|data)/", rf"-{NEXT}.\1/", name), text)
    (folder / "CHANGES.md").write_text(CHANGES)


class Cloud:
    """What a person reaches: the page of wheels, and what the pool says of them."""

    def __init__(self, folder: Path, authority: Path) -> None:
        self.answer: dict[str, Any] | None = {"version": NEXT, "protocol": PROTOCOL, "index": None}
        cloud = self

        class Handler(SimpleHTTPRequestHandler):
            def __init__(self, *words: Any) -> None:
                super().__init__(*words, directory=str(folder))

            def do_GET(self) -> None:
                if not self.path.startswith("/services/pool/"):
                    super().do_GET()
                elif self.path == "/services/pool/api/release" and cloud.answer is not None:
                    body = json.dumps(cloud.answer).encode()
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                else:
                    self.send_error(404)

            def log_message(self, *_words: Any) -> None: ...

        made = signing.new_authority("localhost")
        server = signing.new_server("localhost", made)
        authority.write_bytes(made.certificate)
        pair = authority.with_name("server.pem")
        pair.write_bytes(server.certificate + server.key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair)
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"https://localhost:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def cloud(tmp_path: Path, dist: Path, wheels: ModuleType) -> Iterator[Cloud]:
    next_release(dist, tmp_path / "page")
    wheels.write_index(tmp_path / "page")
    made = Cloud(tmp_path / "page", tmp_path / "ca.crt")
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.mark.full_sweep  # the light half is test_exchange.py
def test_an_environment_follows_the_operators_release_and_goes_back(
    cloud: Cloud, dist: Path, tmp_path: Path, environment: Callable[..., Any]
) -> None:
    mine = environment()
    link(mine.folder, ["pip"])
    mine.install(dist, "forebay")
    variables = {"PIP_NO_INDEX": "1", "FOREBAY_URL": f"{cloud.url}/services/pool/", "FOREBAY_TOKEN": "t"}
    variables["SSL_CERT_FILE"] = str(tmp_path / "ca.crt")
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # of this machine; pip would heed them first
        mine.variables.pop(name, None)

    def forebay(*words: str) -> subprocess.CompletedProcess[str]:
        return mine.run("forebay", *words, **variables)

    unknown = forebay("update")
    assert unknown.returncode == 1 and "the pool names none (its setting wheels_url); give one with --index" in unknown.stderr
    page = f"{cloud.url}/index.html"
    cloud.answer = {"version": NEXT, "protocol": PROTOCOL + 1, "index": page}
    refused = forebay("update")
    assert refused.returncode == 1, refused.stdout
    assert f"forebay 0.2.0 speaks protocol {PROTOCOL}, and the pool at {cloud.url}/services/pool/ {PROTOCOL + 1}" in refused.stderr
    cloud.answer = None  # a pool of a release before it told this
    checked = forebay("update", "--index", page, "--check")
    assert checked.returncode == 0, checked.stderr
    lines = f"forebay 0.1.0 -> 0.2.0\n  forebay 0.1.0 -> 0.2.0\n  forebay-wire 0.1.0 -> 0.2.0\n{CHANGES}Nothing was changed.\n"
    assert checked.stdout == f"{mine.folder}: {lines}"
    assert forebay("--version").stdout.startswith("forebay 0.1.0 ")
    cloud.answer = {"version": NEXT, "protocol": PROTOCOL, "index": page}
    updated = forebay("update")
    assert updated.returncode == 0 and "Updated." in updated.stdout, updated.stderr
    assert forebay("--version").stdout.startswith("forebay 0.2.0 ")
    assert forebay("update").stdout == f"{mine.folder} has forebay 0.2.0, and {page} has nothing newer.\n"
    back = forebay("update", "--rollback")
    assert back.returncode == 0 and f"{mine.folder} has forebay 0.1.0 again." in back.stdout, back.stderr
    assert forebay("--version").stdout.startswith("forebay 0.1.0 ")
    again = forebay("update", "--rollback")
    assert again.returncode == 1 and again.stderr == f"forebay: There is nothing to go back to in {mine.folder}.\n"


def test_an_environment_that_cannot_be_written_to_is_told(dist: Path, tmp_path: Path, environment: Callable[..., Any]) -> None:
    mine = environment()
    mine.install(dist, "forebay")
    script = f"mount --bind {mine.folder} {mine.folder} && mount -o remount,bind,ro {mine.folder} && exec {mine.folder}/bin/forebay update"
    words = ["unshare", "--map-root-user", "--mount", "sh", "-c", script]
    variables = {**mine.variables, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=variables)
    if "unshare" in done.stderr:
        pytest.skip("this machine gives no namespaces")
    assert done.returncode == 1
    assert done.stderr == f"forebay: {mine.folder} cannot be written to; ask whoever installed it, or make an environment of your own.\n"
