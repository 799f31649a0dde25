"""An FT-Transformer tells from the columns of a table whether somebody will buy.

Gorishniy et al., Revisiting Deep Learning Models for Tabular Data, 2021.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from training import Training

ROWS, NUMBERS, CATEGORIES = 8192, 8, (4, 12, 30)
"""Rows of the table, columns with numbers, and how many categories each of the other columns has."""
WIDTH, HEADS, LAYERS = 64, 8, 3


def table(chance: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers, categories, and what is to be told: by a rule with some chance in it."""
    numbers = torch.randn(ROWS, NUMBERS, generator=chance)
    categories = torch.stack([torch.randint(count, (ROWS,), generator=chance) for count in CATEGORIES], 1)
    liked = torch.randn(CATEGORIES[2], generator=chance)[categories[:, 2]]
    score = numbers[:, 0] * numbers[:, 1] + (numbers[:, 2] > 0.5) * 2 + liked * (categories[:, 0] > 1)
    return numbers, categories, (score + 0.3 * torch.randn(ROWS, generator=chance) > 0.7).float()


class FtTransformer(nn.Module):
    """Each column of a row becomes a word of a sentence; a word of its own, in front, gathers what is to be said."""

    def __init__(self) -> None:
        super().__init__()
        self.weights, self.biases = nn.Parameter(torch.randn(NUMBERS, WIDTH) / WIDTH**0.5), nn.Parameter(torch.zeros(NUMBERS, WIDTH))
        self.categories = nn.ModuleList(nn.Embedding(count, WIDTH) for count in CATEGORIES)
        self.answer = nn.Parameter(torch.zeros(1, 1, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        words = [
            self.answer.expand(len(numbers), -1, -1),
            numbers[:, :, None] * self.weights + self.biases,
            *(embed(column)[:, None] for embed, column in zip(self.categories, categories.unbind(1), strict=True)),
        ]
        return self.head(self.encoder(torch.cat(words, 1))[:, 0])[:, 0]


def main() -> None:
    training = Training(__doc__, steps=100, batch=128)
    model = FtTransformer()
    data = table(training.chance)
    model.to(training.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-5)
    for numbers, categories, bought in training.batches(*data):
        loss = functional.binary_cross_entropy_with_logits(model(numbers, categories), bought)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        training.report(loss)
    training.finish()


if __name__ == "__main__":
    main()
