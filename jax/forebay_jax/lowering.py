"""How programs are lowered for a virtual device that a processor stands behind: as for a processor.

JAX lowers some operations to calls of libraries that only one kind of device has: linear algebra for the platform ``cuda`` to cuSOLVER.
What stands behind the device is known once there is a lease, which a program that is lowered is about to need.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

Rule = Callable[..., Any]


def follow_device(platform: str, is_processor: Callable[[], bool]) -> None:
    """Has the platform's rules ask, each time, what stands behind the device."""
    from jax._src.interpreters import mlir

    own, host = mlir._platform_specific_lowerings[platform], mlir._platform_specific_lowerings["cpu"]
    for primitive in {*own, *host}:
        here = own.get(primitive) or mlir._lowerings.get(primitive)
        there = host.get(primitive) or mlir._lowerings.get(primitive)
        if here is None and there is not None:
            own[primitive] = there
        elif here is not None and there is not None:
            inline = here.inline and there.inline
            own[primitive] = dataclasses.replace(here, rule=_either(there.rule, here.rule, is_processor), inline=inline)


def _either(there: Rule, here: Rule, is_processor: Callable[[], bool]) -> Rule:
    def lower(*arguments: Any, **settings: Any) -> Any:
        return (there if is_processor() else here)(*arguments, **settings)

    return lower
