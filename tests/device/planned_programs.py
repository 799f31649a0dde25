"""Trainings that plans are made for: ``planned_programs.py NAME ROWS``. Weights are made on cuda:0, batches on the host."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn import functional

WORDS, WIDTH, LAYERS, TOKENS = 512, 64, 6, 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        rows = hidden.shape[0]
        parts = self.attention(self.norm(hidden)).view(rows, TOKENS, 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
        hidden = hidden + mixed.transpose(1, 2).reshape(rows, TOKENS, WIDTH)
        return hidden + self.down(functional.gelu(self.up(hidden)))


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.words(words))).flatten(0, 1)


class Transformer(nn.Module):
    """With a projection after attention, as most have."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.Sequential(*(Projected() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.words(words)))).flatten(0, 1)


class Projected(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.attention, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        rows = hidden.shape[0]
        parts = self.attention(self.norms[0](hidden)).view(rows, TOKENS, 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
        hidden = hidden + self.projection(mixed.transpose(1, 2).reshape(rows, TOKENS, WIDTH))
        return hidden + self.down(functional.gelu(self.up(self.norms[1](hidden))))


class Grouped(nn.Module):
    """Two heads of queries for each of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.keys = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.projection = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        query = self.query(hidden).unflatten(-1, (4, WIDTH // 4)).transpose(1, 2)
        key, value = self.keys(hidden).unflatten(-1, (2, 2, WIDTH // 4)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return hidden + self.projection(mixed.transpose(1, 2).flatten(2))


def grouped() -> nn.Module:
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), *(Grouped() for _ in range(LAYERS)), nn.Linear(WIDTH, WORDS), nn.Flatten(0, 1))


def layers() -> nn.Module:
    """As PyTorch has them: heads come from a copy of what the fused product makes, with rows in the middle."""
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True)
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.TransformerEncoder(layer, LAYERS), nn.Linear(WIDTH, WORDS), nn.Flatten(0, 1))


def images() -> nn.Module:
    layers = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 10))


def perceptron() -> nn.Module:
    layers = [layer for _ in range(8) for layer in (nn.Linear(128, 128), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(128, 10))


def words(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(WORDS, (rows, TOKENS)), torch.randint(WORDS, (rows * TOKENS,))


def numbers(*row: int) -> Callable[[int], tuple[torch.Tensor, torch.Tensor]]:
    return lambda rows: (torch.randn(rows, *row), torch.randint(10, (rows,)))


PROGRAMS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[torch.Tensor, torch.Tensor]]]] = {
    "language": (Language, words),
    "transformer": (Transformer, words),
    "layers": (layers, words),
    "grouped": (grouped, words),
    "images": (images, numbers(3, 16, 16)),
    "perceptron": (perceptron, numbers(128)),
}
MICRO_BATCHES = 4


def batches(name: str, rows: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for _ in range(40):
        x, y = PROGRAMS[name][1](rows)
        yield x.to("cuda"), y.to("cuda")


def train(name: str, rows: int, manner: str) -> None:
    """Plainly, with parts of a batch accumulated, with gradients that stay, or in bfloat16. At its end it says what the device holds."""
    with torch.device("cuda"):
        model = PROGRAMS[name][0]()
    optimizer = torch.optim.AdamW(model.parameters())
    for number, (x, y) in enumerate(batches(name, rows)):
        with torch.autocast("cuda", torch.bfloat16, enabled=manner == "autocast"):
            loss = functional.cross_entropy(model(x), y)
        loss.backward()
        if manner == "accumulated" and number % MICRO_BATCHES != MICRO_BATCHES - 1:
            continue
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=manner != "kept")
        print(number, loss.item())
    del loss, x, y
    print("held", torch.cuda.memory_allocated())


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "plain")
