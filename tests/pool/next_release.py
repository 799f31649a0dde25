"""The pool as a release after this one would be, for tests of upgrades: ``python next_release.py OLDEST …``.

Its links have the next version; ``OLDEST`` is the oldest that it speaks. Messages that it sends have fields that no peer of today knows,
in each of its parts. All else is today's pool.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from forebay_wire import messages

PROTOCOL = messages.PROTOCOL + 1


def _widen(part: Any, model: Any) -> Any:
    """Adds fields wherever the message has a part with fields of its own."""
    if isinstance(model, tuple) and isinstance(part, list):
        return [_widen(one, of) for one, of in zip(part, model, strict=True)]
    if not isinstance(model, messages.Message) or not isinstance(part, dict):
        return part
    told = {name: _widen(value, getattr(model, name, None)) for name, value in part.items()}
    return {"of_a_later_release": {"type": "granted", "n": [1, None]}, **told, "also": 1}


def become(oldest: int) -> None:
    """Makes this process speak as the next release."""
    messages.PROTOCOL, messages.PROTOCOL_OLDEST = PROTOCOL, oldest
    for model in list(vars(messages).values()):
        if isinstance(model, type) and issubclass(model, messages.Message) and "encode" in vars(model):
            _wrap(model)


def _wrap(model: Any) -> None:
    today = model.encode

    def encode(self: Any, *arguments: Any, **named: Any) -> str:
        return json.dumps(_widen(json.loads(today(self, *arguments, **named)), self))

    model.encode = encode


if __name__ == "__main__":
    become(int(sys.argv.pop(1)))
    from forebay_pool.__main__ import main

    sys.exit(main())
