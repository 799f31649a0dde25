"""What the user's names stand for: the shell's, else those of the program that is run."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import Any

import torch

from forebay import _C
from forebay.spans import running_shell

Storage = tuple[int, int]
"""The device, and the number among its storages."""


def named() -> list[tuple[str, object]]:
    """What the user's names stand for."""
    shell = running_shell()
    namespace = shell.user_ns if shell is not None else vars(sys.modules["__main__"])
    return [(name, value) for name, value in namespace.items() if not name.startswith("_")]


def generators() -> Iterator[torch.Generator]:
    yield from map(_C.default_generator, range(_C.device_count()))
    for _, value in named():
        if type(value) is torch.Generator and value.device.type == "cuda":
            yield value


def storages() -> Iterator[tuple[str, Storage]]:
    """Where names of tensors lead, those of modules' parameters and buffers and of optimizers' states, and places in lists and dicts."""
    for name, value in named():
        for path, tensor in _tensors(name, value):
            number = _C.storage_number(tensor)
            if number:
                yield path, (tensor.get_device(), number)


def _tensors(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    kind = type(value)  # what isinstance asks of an object may run its code
    items: Iterator[tuple[str, Any]] = iter(())
    if issubclass(kind, torch.Tensor):
        items = iter([(name, value)])
    elif issubclass(kind, torch.nn.Module):
        named = itertools.chain(value.named_parameters(), value.named_buffers())
        items = ((f"{name}.{path}", tensor) for path, tensor in named)
    elif issubclass(kind, torch.optim.Optimizer):
        states = enumerate(value.state.values())
        items = ((f"{name}.state[{place}][{key!r}]", item) for place, state in states for key, item in state.items())
    elif kind in (list, tuple):
        items = ((f"{name}[{place}]", item) for place, item in enumerate(value))
    elif kind is dict:
        items = ((f"{name}[{key!r}]", item) for key, item in value.items())
    return ((path, tensor) for path, tensor in items if issubclass(type(tensor), torch.Tensor))
