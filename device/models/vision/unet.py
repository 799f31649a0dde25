"""A U-Net learns to which shape, or to the background, each pixel belongs.

Ronneberger et al., U-Net: Convolutional Networks for Biomedical Image Segmentation, 2015.
"""

from __future__ import annotations

import torch
from shapes import KINDS, draw
from torch import Tensor, nn
from torch.nn import functional
from training import Training

IMAGES, SIZE, OBJECTS = 256, 64, 3
WIDTHS = (16, 32, 64, 128)
"""Channels of each level, from that of the whole picture down."""


def twice(inputs: int, outputs: int) -> nn.Sequential:
    """Two convolutions with their norms."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


class UNet(nn.Module):
    """Down to a small picture with many channels and up again; each level up gets what the level down has seen."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.down = nn.ModuleList(twice(inputs, outputs) for inputs, outputs in zip((3, *WIDTHS), WIDTHS, strict=False))
        pairs = list(zip(WIDTHS[:0:-1], WIDTHS[-2::-1], strict=True))
        self.enlarge = nn.ModuleList(nn.ConvTranspose2d(inputs, outputs, 2, stride=2) for inputs, outputs in pairs)
        self.up = nn.ModuleList(twice(2 * outputs, outputs) for _, outputs in pairs)
        self.head = nn.Conv2d(WIDTHS[0], classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        x, seen = self.down[0](images), []
        for block in self.down[1:]:
            seen.append(x)
            x = block(functional.max_pool2d(x, 2))
        for enlarge, block in zip(self.enlarge, self.up, strict=True):
            x = block(torch.cat((seen.pop(), enlarge(x)), 1))
        return self.head(x)


def main() -> None:
    training = Training(__doc__, steps=50, batch=8)
    scenes = draw(IMAGES, SIZE, training.chance, OBJECTS)
    model = UNet(1 + len(KINDS)).to(training.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for images, masks in training.batches(scenes.images, scenes.masks):
        loss = functional.cross_entropy(model(images), masks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        training.report(loss)
    training.finish()


if __name__ == "__main__":
    main()
