"""``KILLS SEED STEPS [deterministic|resting]``: a training that a library may serve, while its workers are killed at moments of chance.

Makes ``STEPS`` steps, or where that is 0 so many as it takes until all kills came. Prints a line of JSON: losses, a hash of the weights,
kills, images that were kept, and by which tiers the step was carried out in the end. With ``resting`` it then rests until its input ends.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time

import torch
from forebay import _C
from killed_training import Killer
from torch import nn

DEVICE = "cuda:0"
STEPS_MIN = 1200
"""Where its workers are killed: after a thousand a library is proved again."""
CALLS_MIN = 20
"""Of a segment that may have a library."""
PAUSES_EVERY = 150
PAUSE_SECONDS = 0.1
"""In the middle of a step: longer than a worker waits for the rest of one that is timed."""


def main(kills: int, seed: int, steps: int, way: str) -> None:
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(way == "deterministic")
    layers = (nn.Linear(64, 256), nn.LayerNorm(256), nn.GELU(), nn.Dropout(0.2), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 10))
    net = nn.Sequential(*layers).to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    killer = Killer(kills, seed, writing=False)
    losses, number = [], 0
    while number < steps or (not steps and not (killer.done and number >= STEPS_MIN)):
        x, y = torch.randn(128, 64).to(DEVICE), torch.randint(0, 10, (128,)).to(DEVICE)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        if number % PAUSES_EVERY == PAUSES_EVERY // 2:
            time.sleep(PAUSE_SECONDS)
        loss.backward()
        optimizer.step()
        if number % 3 == 0:
            losses.append(loss.item())
            killer.steps = number  # that a worker has made
        number += 1
    weights = b"".join(one.detach().cpu().numpy().tobytes() for one in net.state_dict().values())
    tiers = sorted({one["tier"] for one in _C.segments() if one["calls"] > CALLS_MIN and one["times"] > number // 4})
    told = {"losses": losses, "weights": hashlib.sha256(weights).hexdigest(), "steps": number, "kills": killer.kills}
    print(json.dumps(told | {"images": _C.statistics()["images"], "tiers": tiers}), flush=True)
    if way == "resting":
        sys.stdin.read()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), "".join(sys.argv[4:]))
