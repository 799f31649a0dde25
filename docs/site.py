"""Makes the two pages that lie beside ``docs``, and the services' OpenAPI documents, a part of the documentation's site.

A hook of MkDocs, named in mkdocs.yml.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from forebay_billing.http import routes as billing
from forebay_pool.http import routes as pool
from forebay_service.openapi import describe
from mkdocs.structure.files import File, Files

OUTSIDE = ("ARCHITECTURE.md", "CONTRIBUTING.md")
DOCUMENTS = {"pool": pool, "billing": billing}
CHECKOUT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"\[([^\]]*)\]\((?![a-z]+:)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages at the top, where links find them that leave ``docs`` by one step, and the documents beside their viewer's page."""
    for name in OUTSIDE:
        files.append(File(name, str(CHECKOUT), config.site_dir, config.use_directory_urls))
    for name, service in DOCUMENTS.items():
        document = describe(service.ROUTES, f"/services/{name}/", service.INFO)
        files.append(File.generated(config, f"reference/openapi/{name}.json", content=json.dumps(document)))
    return files


def on_page_markdown(markdown: str, page: Any, **_given: Any) -> str:
    """Links as they are on the site: what lies in ``docs`` has lost its folder, and files of the code are named without a link."""
    name = page.file.src_uri

    def moved(found: re.Match[str]) -> str:
        text, path, anchor = found[1], found[2], found[3] or ""
        target = (CHECKOUT / path if name in OUTSIDE else CHECKOUT / "docs" / name.rpartition("/")[0] / path).resolve()
        if target.is_relative_to(CHECKOUT / "docs"):
            return f"[{text}]({path.removeprefix('docs/')}{anchor})" if name in OUTSIDE else found[0]
        if target.parent == CHECKOUT and target.name in OUTSIDE:
            return f"[{text}]({'../' * name.count('/')}{target.name}{anchor})"
        return text if target.exists() else found[0]

    return _LINK.sub(moved, markdown)
