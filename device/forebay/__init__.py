"""One virtual device ``cuda:0`` on stock PyTorch, served by a shared pool of real ones.

Nothing needs to import this package: where the variable ``FOREBAY_URL`` is set, ``import torch`` activates it.
"""

from __future__ import annotations

from typing import Any


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext forebay``: the virtual device and ``%%gpu`` before the first cell that imports PyTorch."""
    import torch  # noqa: F401 activates the virtual device

    from forebay import magic

    magic.register(shell)
