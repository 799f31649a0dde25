"""State machines of which one part is broken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from forebay_pool.machine import state_machine
from forebay_pool.machine.base.step import Step
from forebay_pool.machine.leasing import scheduler
from forebay_pool.machine.state_machine import StateMachine


def machine_with(part: type) -> Callable[..., StateMachine]:
    """What makes state machines with one part that is broken: a subclass of the part, or of the whole."""
    if issubclass(part, StateMachine):
        return part
    (whole,) = part.__bases__
    wires = scheduler if hasattr(scheduler, whole.__name__) and whole is not Step else state_machine

    def make(*settings: Any) -> StateMachine:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(wires, whole.__name__, part)
            return StateMachine(*settings)

    return make
