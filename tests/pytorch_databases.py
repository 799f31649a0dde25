"""PyTorch's databases of operators, modules and optimizers, faster: import this before them.

For each list of samples they look for the test that asks, by ``inspect.stack()``, which looks for the sources of every caller among all
modules: three quarters of what a sweep over the operators took. What they find here is the same.
"""

from __future__ import annotations

import sys
import unittest
from collections.abc import Callable
from types import FrameType, MethodType
from typing import Any

from torch.testing._internal import common_utils
from torch.testing._internal.opinfo import core


def running_test() -> Callable[..., Any] | None:
    """The function of the ``unittest.TestCase`` that is among the callers; None where there is none."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        case = frame.f_locals.get("self") if "self" in frame.f_code.co_varnames else None
        if isinstance(case, unittest.TestCase):
            method: MethodType = getattr(case, case._testMethodName)
            return method.__func__
        frame = frame.f_back
    return None


for module in (common_utils, core):
    module.extract_test_fn = running_test
