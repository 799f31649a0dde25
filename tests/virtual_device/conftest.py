"""These tests run in a process that has the virtual device, served by an embedded pool and a real worker.

``FOREBAY_URL=local pytest tests/virtual_device`` (``make test`` does it); without the variable they are not collected,
because a process that took the CUDA key keeps it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

collect_ignore_glob = [] if os.environ.get("FOREBAY_URL") else ["test_*.py"]


@pytest.fixture(autouse=True)
def no_failure_left_behind() -> Iterator[None]:
    """Each test starts with a seed of its own and ends with its work done."""
    import torch

    torch.manual_seed(20)
    yield
    torch.cuda.synchronize()
