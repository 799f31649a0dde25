"""A training that takes 72 MiB: prints the loss of each step.

``large_training.py DEVICE [ADDRESS TICKET]``: for a virtual device the two say how a worker is reached.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from operator_sweep import attach

if __name__ == "__main__" and len(sys.argv) > 2:
    attach(sys.argv[2], sys.argv[3])

import torch
from torch import nn

SIDE = 512
LAYERS = 12
"""Of 1 MiB each; four times that with gradients and the optimizer's states, and half as much again while it steps."""
STEPS = 6


def losses(device: str) -> list[float]:
    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(SIDE, SIDE, bias=False), nn.Tanh())]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = torch.randn(16, SIDE).to(device), torch.randn(16, SIDE).to(device)
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        found.append(loss.item())
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("\n".join(str(loss) for loss in losses(sys.argv[1])))
