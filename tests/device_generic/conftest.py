"""PyTorch's device-generic databases, run on the virtual device as ``cuda``: ``FOREBAY_URL=local pytest tests/device_generic``.

The classes are made by ``torch.testing._internal.common_device_type``, as PyTorch makes its own tests of CUDA. Without ``FOREBAY_URL``
this process would have no device, so nothing is collected.
"""

from __future__ import annotations

import os
import re
import warnings

import pytest

collect_ignore_glob = [] if os.environ.get("FOREBAY_URL") else ["test_*.py"]

OTHER_DTYPES = re.compile(r"_(float64|bfloat16|int64|bool|complex64)$")
COSTLY = re.compile(r"_nn_(LinearCrossEntropyLoss|Transformer)_")
"""Take seconds of a processor for each of their samples."""

warnings.simplefilter("ignore")  # PyTorch's databases warn while they are imported


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """PyTorch names the dtype in the name of the test."""
    for item in items:
        if OTHER_DTYPES.search(item.name) or COSTLY.search(item.name):
            item.add_marker("full_sweep")
