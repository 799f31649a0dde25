"""JAX in a process that has the virtual device, served by an embedded pool and a real worker: ``FOREBAY_URL=local pytest tests/jax``."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if os.environ.get("FOREBAY_URL") and find_spec("jax") else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What the frameworks use that is old is none of ours."""
    for item in items:
        if "jax" in item.path.parts:
            for category in ("UserWarning", "DeprecationWarning", "FutureWarning"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{category}"))
