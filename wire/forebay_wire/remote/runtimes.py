"""What a session has done on its device."""

from __future__ import annotations

from typing import Literal, get_args

Runtime = Literal["torch", "xla", "exec"]
"""Calls of PyTorch; programs of JAX and TensorFlow as well; or one process in place of both."""
RUNTIMES: tuple[Runtime, ...] = get_args(Runtime)
