"""``ADDRESS TICKET NAME``: trains recurrent layers of that name on the device; prints, as JSON, losses and what became of the weights.

Numbers are printed by their bits. ``most_bytes``: of the program's tensors, without what layers keep for their derivatives.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from operator_sweep import attach

if __name__ == "__main__":
    attach(sys.argv[1], sys.argv[2])

import torch
from torch import nn

STEPS = 3
NETWORKS = {
    "long": (lambda: nn.LSTM(32, 32, 5, bidirectional=True), (24, 16, 32)),
    "wide": (lambda: nn.LSTM(256, 256), (4, 2, 256)),
    "gated": (lambda: nn.GRU(32, 32, 5, bidirectional=True), (24, 16, 32)),
}
"""Layers, and their input's sizes. What long ones keep is many times their tensors; what oneDNN packs for a wide one, twice its weights."""


def main(name: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    make, sizes = NETWORKS[name]
    layers = make().to("cuda")
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        x = torch.randn(sizes) if step else torch.zeros(sizes)
        optimizer.zero_grad()
        loss = layers(x.to("cuda"))[0].square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    weights = [[number.hex() for number in (weight.sum().item(), weight.square().sum().item())] for weight in layers.cpu().parameters()]
    print(json.dumps({"losses": losses, "weights": weights, "most_bytes": torch.cuda.max_memory_allocated()}))


if __name__ == "__main__":
    main(sys.argv[3])
