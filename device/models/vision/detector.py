"""A small anchor-free detector finds several shapes in a picture, and draws a box around each.

Each cell of a coarse grid says whether an object's centre lies in it, of which kind it is, and how large.
Zhou et al., Objects as Points, 2019.
"""

from __future__ import annotations

import torch
from shapes import KINDS, draw
from torch import Tensor, nn
from torch.nn import functional
from training import Training

IMAGES, SIZE, OBJECTS = 512, 64, 3
CELL = 8
"""Pixels of a cell, along a side."""
FOCUS = 2
"""How much less what is easy counts; Lin et al., Focal Loss for Dense Object Detection, 2017."""


def layer(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


class Detector(nn.Module):
    """A backbone that halves the picture three times, and two heads."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.backbone = nn.Sequential(layer(3, 32, 2), layer(32, 64, 2), layer(64, 64), layer(64, 128, 2), layer(128, 128))
        self.centres = nn.Sequential(layer(128, 64), nn.Conv2d(64, classes, 1))
        self.edges = nn.Sequential(layer(128, 64), nn.Conv2d(64, 4, 1), nn.Softplus())
        nn.init.constant_(self.centres[-1].bias, -4.0)  # most cells have no centre in them

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of each kind, (batch, kinds, rows, columns), and how far a box goes from its cell's middle, in cells, (batch, 4, …)."""
        features = self.backbone(images)
        return self.centres(features), self.edges(features)


def targets(kinds: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """What the heads should say; of edges NaN where no centre is."""
    count, cells = len(kinds), SIZE // CELL
    centres, edges = torch.zeros(count, len(KINDS), cells, cells), torch.full((count, 4, cells, cells), torch.nan)
    low, high = boxes[..., :2], boxes[..., 2:]
    place = ((low + high) / 2 / CELL).long()
    middle = (place + 0.5) * CELL
    image = torch.arange(count)
    for item in range(kinds.shape[1]):
        column, row = place[:, item].unbind(1)
        centres[image, kinds[:, item], row, column] = 1
        distances = torch.cat((middle[:, item] - low[:, item], high[:, item] - middle[:, item]), 1) / CELL
        edges[image, :, row, column] = distances.clamp(min=0)
    return centres, edges


def loss_of(found: tuple[Tensor, Tensor], centres: Tensor, edges: Tensor) -> Tensor:
    """Focal loss of all cells, and the distance of edges in cells that have a centre, both for an object."""
    logits, distances = found
    entropy = functional.binary_cross_entropy_with_logits(logits, centres, reduction="none")
    missed = (centres - logits.sigmoid()).abs()
    wrong = (missed**FOCUS * entropy).sum()
    known = ~edges.isnan()
    far = torch.where(known, (distances - edges.nan_to_num()).abs(), 0).sum()
    return (wrong + 0.25 * far) / centres.sum()


def main() -> None:
    training = Training(__doc__, steps=100, batch=16)
    scenes = draw(IMAGES, SIZE, training.chance, OBJECTS)
    model = Detector(len(KINDS)).to(training.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for images, centres, edges in training.batches(scenes.images, *targets(scenes.kinds, scenes.boxes)):
        loss = loss_of(model(images), centres, edges)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        training.report(loss)
    training.finish()


if __name__ == "__main__":
    main()
