"""A worker whose second device has less memory than it is told, from time to time, at moments of chance.

``jolted_forebay_worker.py SEED …``, and the options of a worker that listens on a Unix socket.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import torch
from forebay_worker import __main__ as worker
from forebay_worker.groups import gang

AWAY_SECONDS, THERE_SECONDS = (0.05, 0.3), (0.02, 0.1)
STEP_BYTES, STEPS_MAX = 64 << 10, 512


def jolt(seed: int) -> None:
    """Takes all the room there is but some, and gives it back, again and again."""
    chance = random.Random(seed)
    while True:
        time.sleep(chance.uniform(*AWAY_SECONDS))
        taken = []
        try:
            while len(taken) < STEPS_MAX:
                taken.append(torch.empty(STEP_BYTES, dtype=torch.uint8))
        except RuntimeError:
            del taken[len(taken) - chance.randrange(len(taken) // 2 + 1) :]
        time.sleep(chance.uniform(*THERE_SECONDS))
        taken.clear()


def main() -> int:
    seed = sys.argv.pop(1)
    address = Path(sys.argv[sys.argv.index("--standalone") + 1].removeprefix("unix:"))
    if address.name == "device.1.sock":
        threading.Thread(target=jolt, args=(int(seed),), daemon=True).start()
    elif not address.name.startswith("device."):
        python = address.with_name("python")
        python.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} {Path(__file__).resolve()} {seed} "$@"\n')
        python.chmod(0o755)
        gang.sys = SimpleNamespace(executable=str(python))  # type: ignore[assignment]
    return worker.main()


if __name__ == "__main__":
    sys.exit(main())
