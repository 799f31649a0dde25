"""ResNet-18 learns to tell five shapes apart.

He et al., Deep Residual Learning for Image Recognition, 2015.
"""

from __future__ import annotations

import torch
from shapes import KINDS, draw
from torch import Tensor, nn
from torch.nn import functional
from training import Training

IMAGES, SIZE = 512, 64


class Block(nn.Module):
    """Two convolutions, around which the input is added to their result."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.first_norm(self.first(x)))
        y = self.second_norm(self.second(y))
        return functional.relu(y + self.shortcut(x))


class ResNet18(nn.Module):
    """Four stages of two blocks; each stage halves the picture and doubles the channels."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        self.stages = nn.Sequential(
            *self._stage(64, 64, stride=1),
            *self._stage(64, 128, stride=2),
            *self._stage(128, 256, stride=2),
            *self._stage(256, 512, stride=2),
        )
        self.head = nn.Linear(512, classes)

    @staticmethod
    def _stage(inputs: int, outputs: int, stride: int) -> tuple[Block, Block]:
        return Block(inputs, outputs, stride), Block(outputs, outputs, stride=1)

    def forward(self, images: Tensor) -> Tensor:
        features = self.stages(self.stem(images))
        return self.head(features.mean((2, 3)))


def main() -> None:
    training = Training(__doc__, steps=50, batch=16)
    scenes = draw(IMAGES, SIZE, training.chance)
    model = ResNet18(len(KINDS)).to(training.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    for images, labels in training.batches(scenes.images, scenes.kinds[:, 0]):
        loss = functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        training.report(loss)
    training.finish()


if __name__ == "__main__":
    main()
