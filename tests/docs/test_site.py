"""The documentation builds as a site, without a warning."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "dashboards"))

from browsing import chromium

NOWHERE = ("nowhere.md", "index.md#no-such-heading", "../no-such-file.py")
"""Each warning stops the build, since it is strict."""


def build(checkout: Path, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder), *options]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site's folder."""
    folder = tmp_path_factory.mktemp("site")
    built = build(checkout, folder)
    assert (built.returncode, built.stdout) == (0, "") and "WARNING" not in built.stderr, built.stderr
    return folder


def test_every_page_is_on_the_site_and_every_link_and_heading_is_there(checkout: Path, site: Path) -> None:
    for page in [*(checkout / "docs").rglob("*.md"), checkout / "ARCHITECTURE.md", checkout / "CONTRIBUTING.md"]:
        name = page.relative_to(checkout / "docs" if page.parent != checkout else checkout).with_suffix("")
        assert (site / (name.parent if name.name == "index" else name) / "index.html").is_file(), name
    assert 'href="../ARCHITECTURE/' in (site / "CONTRIBUTING" / "index.html").read_text()


def test_the_openapi_documents_are_on_the_site_and_its_viewer_asks_nobody_else(site: Path) -> None:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *arguments: object) -> None:
            """Says nothing."""

    documents = {name: json.loads((site / "reference" / "openapi" / f"{name}.json").read_text()) for name in ("pool", "billing")}
    asked: list[str] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server, chromium() as browser:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        try:
            page = browser.new_page()
            page.on("request", lambda request: asked.append(request.url))
            page.goto(f"http://127.0.0.1:{server.server_port}/reference/openapi/")
            for frame, document in zip(page.locator("iframe.swagger-ui-iframe").all(), documents.values(), strict=True):
                shown = frame.content_frame
                shown.locator(".info .title", has_text=document["info"]["title"]).wait_for()
                tags = [tag["name"] for tag in document["tags"]]
                assert shown.locator(".opblock-tag").evaluate_all("tags => tags.map(tag => tag.dataset.tag)") == tags
        finally:
            server.shutdown()
    local = (f"http://127.0.0.1:{server.server_port}/", "data:", "blob:")
    assert asked and not [url for url in asked if not url.startswith(local)]


def test_a_link_that_leads_nowhere_stops_the_build(checkout: Path, tmp_path: Path) -> None:
    for name in ("docs", "mkdocs.yml", "ARCHITECTURE.md", "CONTRIBUTING.md"):
        (tmp_path / name).symlink_to(checkout / name)
    (tmp_path / "docs").unlink()
    (tmp_path / "docs").mkdir()
    for path in (checkout / "docs").iterdir():
        (tmp_path / "docs" / path.name).symlink_to(path)
    (tmp_path / "docs" / "index.md").unlink()
    links = " ".join(f"[x]({target})" for target in NOWHERE)
    (tmp_path / "docs" / "index.md").write_text((checkout / "docs" / "index.md").read_text() + f"\n{links}\n")
    built = build(tmp_path, tmp_path / "site")
    warnings = [line for line in built.stderr.splitlines() if line.startswith("WARNING")]
    assert built.returncode != 0 and len(warnings) == len(NOWHERE), built.stderr
    assert all(any(target.rpartition("#")[2] in line for line in warnings) for target in NOWHERE), warnings
