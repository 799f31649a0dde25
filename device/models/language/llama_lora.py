"""A small Llama learns from a half of Python's help texts, and is fitted to the other half by LoRA.

All weights but those of LoRA's thin matrices stay then as they are.

Touvron et al., LLaMA: Open and Efficient Foundation Language Models, 2023. Hu et al., LoRA: Low-Rank Adaptation, 2021.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from text import VOCABULARY, windows
from torch import Tensor, nn
from torch.nn import functional
from training import Training

CONTEXT, WIDTH, HEADS, SHARED, LAYERS = 64, 192, 6, 2, 4
"""Heads share keys and values: there are fewer of these, `SHARED`."""
HEAD = WIDTH // HEADS
RANK, ALPHA = 8, 16


class LoRA(nn.Module):
    """A linear layer that stays as it is, and two thin ones beside it that learn; they add nothing at first."""

    def __init__(self, fixed: nn.Linear) -> None:
        super().__init__()
        self.fixed = fixed
        self.down, self.up = nn.Linear(fixed.in_features, RANK, bias=False), nn.Linear(RANK, fixed.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.fixed(x) + self.up(self.down(x)) * (ALPHA / RANK)


def turned(x: Tensor) -> Tensor:
    """Queries or keys, (batch, heads, length, HEAD), turned by angles that grow with their place: rotary embeddings."""
    speeds = 10_000 ** (-torch.arange(0, HEAD, 2, device=x.device) / HEAD)
    angles = torch.arange(x.shape[2], device=x.device)[:, None] * speeds
    first, second = x.chunk(2, -1)
    return torch.cat((first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()), -1)


class Block(nn.Module):
    """Attention whose heads share keys and values, and a gated feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.feed_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.query, self.answer = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.key, self.value = nn.Linear(WIDTH, SHARED * HEAD, bias=False), nn.Linear(WIDTH, SHARED * HEAD, bias=False)
        self.gate, self.up = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.attention_norm(x)
        q, k, v = (part.unflatten(2, (-1, HEAD)).transpose(1, 2) for part in (self.query(inner), self.key(inner), self.value(inner)))
        k, v = (part.repeat_interleave(HEADS // SHARED, 1) for part in (turned(k), v))
        seen = functional.scaled_dot_product_attention(turned(q), k, v, is_causal=True)
        x = x + self.answer(seen.transpose(1, 2).flatten(2))
        inner = self.feed_norm(x)
        return x + self.down(functional.silu(self.gate(inner)) * self.up(inner))


class Llama(nn.Module):
    """Says of each letter which one may follow."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, letters: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.letters(letters))))


def adapt(model: Llama) -> Llama:
    """From now on only what LoRA adds to queries and values learns."""
    model.requires_grad_(False)
    for block in model.blocks:
        block.query, block.value = LoRA(block.query), LoRA(block.value)
    return model


def train(model: Llama, training: Training, batches: Iterable[list[Tensor]], rate: float) -> None:
    optimizer = torch.optim.AdamW((weight for weight in model.parameters() if weight.requires_grad), lr=rate)
    for (letters,) in batches:
        loss = functional.cross_entropy(model(letters[:, :-1]).flatten(0, 1), letters[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        training.report(loss)


def main() -> None:
    training = Training(__doc__, steps=100, batch=16)
    model, half = Llama().to(training.device), training.steps // 2
    train(model, training, training.batches(windows(CONTEXT + 1, last="f"), steps=half), rate=2e-3)
    adapt(model).to(training.device)
    train(model, training, training.batches(windows(CONTEXT + 1, first="f"), steps=training.steps - half), rate=5e-3)
    training.finish()


if __name__ == "__main__":
    main()
