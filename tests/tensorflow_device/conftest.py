"""TensorFlow in a process that has the virtual device, served by an embedded pool and a real worker: ``make test-tensorflow``, which needs
``make setup-tensorflow`` once."""

from __future__ import annotations

import os
from importlib.metadata import packages_distributions

import pytest

MISSING = {"tensorflow", "forebay_tensorflow"} - packages_distributions().keys()
NEED_BOTH = ["test_operators.py", "test_operator_search.py", "test_programs.py", "test_host_notes.py"]
collect_ignore_glob = NEED_BOTH if MISSING or not os.environ.get("FOREBAY_URL") else []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What the frameworks use that is old is none of ours."""
    for item in items:
        if "tensorflow_device" in item.path.parts:
            for category in ("UserWarning", "DeprecationWarning", "FutureWarning"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{category}"))
