"""What an operator does to the books while things break: each errand is sent under one key until it is answered."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from simulation.money.billing_process import OPERATOR, BillingProcess


@dataclass
class Errand:
    """A change of the books; ``answer`` is what billing said, once it said something."""

    method: str
    target: str
    body: dict[str, Any]
    key: str
    answer: Any = None
    status: int | None = None

    def run(self, billing: BillingProcess) -> bool:
        """Whether it needs no other try."""
        headers = {"Authorization": f"token {OPERATOR}", "Idempotency-Key": self.key, "Content-Type": "application/json"}
        response = billing.call(self.method, self.target, self.body, headers)
        if response is None or response.status >= 500:
            return False
        self.status, self.answer = response.status, json.loads(response.body)
        return True


@dataclass
class Errands:
    """All of them, in order; what was refused did nothing."""

    waiting: list[Errand] = field(default_factory=list)
    done: list[Errand] = field(default_factory=list)

    def add(self, method: str, target: str, body: dict[str, Any]) -> None:
        self.waiting.append(Errand(method, target, body, f"errand-{len(self.waiting) + len(self.done)}"))

    def run(self, billing: BillingProcess, loses: Callable[[], bool]) -> None:
        """Until one is not answered, or ``loses`` says that its answer was lost on the way."""
        while self.waiting and self.waiting[0].run(billing) and not loses():
            self.done.append(self.waiting.pop(0))

    def taken(self, pattern: str) -> list[Errand]:
        """Those whose whole target the pattern matches and that were taken."""
        return [e for e in self.done if e.status == 200 and re.fullmatch(pattern, e.target)]

    def answers(self, target: str) -> list[dict[str, Any]]:
        """Of those that were taken."""
        return [e.answer for e in self.done if e.target.startswith(target) and e.status == 200 and e.answer is not None]
