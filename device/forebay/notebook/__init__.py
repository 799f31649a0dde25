"""What a notebook's kernel shows of its devices: lines below cells, magics, and the comm to the JupyterLab extension.

``%load_ext forebay.notebook`` brings it before PyTorch is imported; importing PyTorch brings it too, where FOREBAY_URL is set.
"""

from __future__ import annotations

from typing import Any

from forebay.notebook.presenter import Presenter

presenter: Presenter | None = None
"""The presenter of this process's shell."""


def attend(shell: Any) -> Presenter:
    """The presenter of a shell, made the first time."""
    global presenter
    if presenter is None:
        presenter = Presenter(shell)
        presenter.begin()
    return presenter


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext forebay.notebook``; PyTorch is not imported for it."""
    attend(shell)
