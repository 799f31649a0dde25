"""PyTorch's device-generic databases, run on the virtual device as ``cuda``: ``FOREBAY_URL=local pytest tests/device_generic``.

The classes are made by ``torch.testing._internal.common_device_type``, as PyTorch makes its own tests of CUDA. Without ``FOREBAY_URL``
this process would have no device, so nothing is collected.
"""

from __future__ import annotations

import os
import warnings

collect_ignore_glob = [] if os.environ.get("FOREBAY_URL") else ["test_*.py"]

warnings.simplefilter("ignore")  # PyTorch's databases warn while they are imported
