"""A small Vision Transformer learns to tell five shapes apart.

Dosovitskiy et al., An Image is Worth 16x16 Words, 2020.
"""

from __future__ import annotations

import torch
from shapes import KINDS, draw
from torch import Tensor, nn
from torch.nn import functional
from training import Training

IMAGES, SIZE, PATCH = 512, 64, 8
WIDTH, HEADS, LAYERS = 192, 3, 4


class VisionTransformer(nn.Module):
    """Patches of a picture as words of a sentence; a word of its own, in front, gathers what is to be said."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        patches = (SIZE // PATCH) ** 2
        self.embed = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.label = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.places = nn.Parameter(0.02 * torch.randn(1, 1 + patches, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, LAYERS, norm=nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.embed(images).flatten(2).transpose(1, 2)
        words = torch.cat((self.label.expand(len(images), -1, -1), patches), 1) + self.places
        return self.head(self.encoder(words)[:, 0])


def main() -> None:
    training = Training(__doc__, steps=100, batch=16)
    scenes = draw(IMAGES, SIZE, training.chance)
    model = VisionTransformer(len(KINDS)).to(training.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, training.steps)
    for images, labels in training.batches(scenes.images, scenes.kinds[:, 0]):
        loss = functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        training.report(loss)
    training.finish()


if __name__ == "__main__":
    main()
