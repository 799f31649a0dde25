"""A DLRM tells whether somebody will like something: embeddings of users and items, and how well they go together.

Naumov et al., Deep Learning Recommendation Model for Personalization and Recommendation Systems, 2019.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional
from training import Training

SEEN, USERS, ITEMS, TAGS, NUMBERS = 20_000, 2000, 5000, 50, 6
TAGS_OF_ITEM, TASTES = 3, 4
WIDTH = 32


def interactions(chance: torch.Generator) -> tuple[Tensor, ...]:
    """Numbers, users, items, tags of the items, and whether they were liked: by hidden tastes of users and items."""
    users, items = torch.randint(USERS, (SEEN,), generator=chance), torch.randint(ITEMS, (SEEN,), generator=chance)
    tags = torch.randint(TAGS, (ITEMS, TAGS_OF_ITEM), generator=chance)[items]
    numbers = torch.randn(SEEN, NUMBERS, generator=chance)
    taste = torch.randn(USERS, TASTES, generator=chance)[users]
    kind = torch.randn(TAGS, TASTES, generator=chance)[tags].mean(1)
    return numbers, users, items, tags, ((taste * kind).sum(1) + numbers[:, 0] > 0).float()


def layers(*widths: int) -> nn.Sequential:
    """Linear layers, with a ReLU after each."""
    return nn.Sequential(*(part for inputs, outputs in pairwise(widths) for part in (nn.Linear(inputs, outputs), nn.ReLU())))


class Dlrm(nn.Module):
    """All features as vectors of one width; a network judges how well each goes with each."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(USERS, WIDTH), nn.Embedding(ITEMS, WIDTH)
        self.tags = nn.EmbeddingBag(TAGS, WIDTH, mode="mean")
        self.numbers = layers(NUMBERS, 64, WIDTH)
        features = 4
        self.register_buffer("pairs", torch.triu_indices(features, features, 1), persistent=False)
        self.judge = nn.Sequential(layers(WIDTH + features * (features - 1) // 2, 128, 64), nn.Linear(64, 1))

    def forward(self, numbers: Tensor, users: Tensor, items: Tensor, tags: Tensor) -> Tensor:
        told = self.numbers(numbers)
        features = torch.stack((told, self.users(users), self.items(items), self.tags(tags)), 1)
        products = features @ features.transpose(1, 2)
        first, second = self.pairs
        return self.judge(torch.cat((told, products[:, first, second]), 1))[:, 0]


def main() -> None:
    training = Training(__doc__, steps=200, batch=256)
    data = interactions(training.chance)
    model = Dlrm().to(training.device)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
    for numbers, users, items, tags, liked in training.batches(*data):
        loss = functional.binary_cross_entropy_with_logits(model(numbers, users, items, tags), liked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        training.report(loss)
    training.finish()


if __name__ == "__main__":
    main()
