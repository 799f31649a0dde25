"""Pictures of coloured shapes, drawn from a seed: sample data for the models of this folder."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

KINDS = ("disc", "square", "diamond", "ring", "cross")


class Scenes(NamedTuple):
    """Some pictures, and what is to be seen on them."""

    images: Tensor
    """(count, 3, size, size), values from about -1 to 1."""
    kinds: Tensor
    """(count, objects), indices of `KINDS`."""
    boxes: Tensor
    """(count, objects, 4), left, top, right and bottom in pixels."""
    masks: Tensor
    """(count, size, size), 0 for the background, else 1 + the index of what is in front."""


def draw(count: int, size: int, chance: torch.Generator, objects: int = 1) -> Scenes:
    """Shapes of any place, size and colour; of several the last is in front."""
    axis = torch.linspace(-1, 1, size)
    kinds = torch.randint(len(KINDS), (count, objects), generator=chance)
    centre = torch.rand(count, objects, 2, generator=chance) * 0.8 - 0.4
    radius = torch.rand(count, objects, 1, generator=chance) * 0.2 + 0.3
    images = torch.rand(count, 3, 1, 1, generator=chance) * 0.4 - 0.9 + 0.1 * torch.randn(count, 3, size, size, generator=chance)
    masks = torch.zeros(count, size, size, dtype=torch.long)
    for item in range(objects):
        across = ((axis - centre[:, item, :1]) / radius[:, item]).abs()[:, None, :].expand(count, size, size)
        down = ((axis - centre[:, item, 1:]) / radius[:, item]).abs()[:, :, None].expand(count, size, size)
        inside = _inside(across, down)[kinds[:, item], torch.arange(count)]
        colour = torch.rand(count, 3, 1, 1, generator=chance)
        images = torch.where(inside[:, None], colour, images)
        masks = torch.where(inside, 1 + kinds[:, item, None, None], masks)
    boxes = (torch.cat((centre - radius, centre + radius), 2) + 1) * (size - 1) / 2
    return Scenes(images, kinds, boxes.clamp(0, size - 1), masks)


def _inside(across: Tensor, down: Tensor) -> Tensor:
    """Where each kind of shape is, (kinds, count, size, size); distances from its centre are counted in its radius."""
    far, near, square = torch.maximum(across, down), torch.minimum(across, down), across**2 + down**2
    return torch.stack((square < 1, far < 0.9, across + down < 1, (square < 1) & (square > 0.3), (far < 1) & (near < 0.3)))
