"""The documentation builds as a site, without a warning."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

NOWHERE = ("nowhere.md", "index.md#no-such-heading", "../no-such-file.py")
"""Each warning stops the build, since it is strict."""


def build(checkout: Path, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder), *options]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)


def test_every_page_is_on_the_site_and_every_link_and_heading_is_there(checkout: Path, tmp_path: Path) -> None:
    built = build(checkout, tmp_path)
    assert (built.returncode, built.stdout) == (0, "") and "WARNING" not in built.stderr, built.stderr
    for page in [*(checkout / "docs").rglob("*.md"), checkout / "ARCHITECTURE.md", checkout / "CONTRIBUTING.md"]:
        name = page.relative_to(checkout / "docs" if page.parent != checkout else checkout).with_suffix("")
        assert (tmp_path / (name.parent if name.name == "index" else name) / "index.html").is_file(), name
    assert 'href="../ARCHITECTURE/' in (tmp_path / "CONTRIBUTING" / "index.html").read_text()


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
