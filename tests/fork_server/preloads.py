"""What the servers import before they fork, by role. Nothing here may start a thread, or take PyTorch's CUDA key."""

from __future__ import annotations

import importlib
from collections.abc import Callable


def programs() -> None:
    """PyTorch with what its optimizers load when the first one is made, and all that a virtual device needs but its extension."""
    for module in ("torch", "torch._dynamo", "forebay.activation", "forebay.service.embedded", "forebay.session", "websockets.sync.client"):
        importlib.import_module(module)


def databases() -> None:
    """As programs, and PyTorch's databases of operators, modules and optimizers: 2.3 s for each sweep over them."""
    programs()
    importlib.import_module("pytorch_databases")
    for name in ("methods_invocations", "modules", "optimizers"):
        importlib.import_module(f"torch.testing._internal.common_{name}")


def services() -> None:
    """The pool, the executor of workers without PyTorch's Python, and what workers that compute nothing need."""
    from forebay_worker import pytorch

    pytorch.load_executor("cpu")
    ours = ("forebay_worker.__main__", "forebay_worker.link", "forebay_pool.__main__")
    for module in (*ours, "websockets.asyncio.client", "websockets.sync.client"):
        importlib.import_module(module)


def collectives() -> None:
    """As services, and PyTorch's Python, by which workers open gloo."""
    services()
    importlib.import_module("torch.distributed")


def standin() -> None:
    """The executor of workers on the stand-in for a GPU, which ``import torch`` finds on PYTHONPATH."""
    from forebay_worker import pytorch

    pytorch.load_executor("standin")
    for module in ("forebay_worker.__main__", "forebay_worker.link"):
        importlib.import_module(module)


def billing() -> None:
    """Apart from the other services: their metrics are the process's."""
    importlib.import_module("forebay_billing.__main__")


def dashboards() -> None:
    """As billing."""
    importlib.import_module("forebay_dashboards.__main__")


ROLES = (programs, databases, services, collectives, standin, billing, dashboards)
PRELOADS: dict[str, Callable[[], None]] = {function.__name__: function for function in ROLES}
