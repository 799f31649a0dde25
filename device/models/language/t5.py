"""A small T5 reads text without vowels, and writes it with them.

Raffel et al., Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer, 2019.
"""

from __future__ import annotations

import torch
from text import VOCABULARY, decode, encode, windows
from torch import Tensor, nn
from torch.nn import functional
from training import Training

LENGTH, WIDTH, HEADS, LAYERS = 48, 128, 4, 2
NEAR = 16
"""Letters that are farther apart than this are all alike far for attention."""
START = 0
"""What the decoder is given before the first letter, and what fills a text up."""


class Attention(nn.Module):
    """Attention without a scale, which the initial weights make up for."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.value, self.answer = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        nn.init.normal_(self.query.weight, std=(WIDTH * WIDTH / HEADS) ** -0.5)

    def forward(self, x: Tensor, other: Tensor, bias: Tensor | None = None) -> Tensor:
        q, k, v = (part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in (self.query(x), self.key(other), self.value(other)))
        seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
        return self.answer(seen.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Attention to itself, in a decoder also to what the encoder made, and a feed-forward layer."""

    def __init__(self, decodes: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(3))
        self.own, self.cross = Attention(), Attention() if decodes else None
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH, bias=False))

    def forward(self, x: Tensor, bias: Tensor, read: Tensor | None = None) -> Tensor:
        inner = self.norms[0](x)
        x = x + self.own(inner, inner, bias)
        if self.cross is not None and read is not None:
            x = x + self.cross(self.norms[1](x), read)
        return x + self.feed(self.norms[2](x))


class Stack(nn.Module):
    """An encoder, or a decoder, which sees nothing that comes later; both know places by their distances alone."""

    def __init__(self, decodes: bool) -> None:
        super().__init__()
        self.decodes = decodes
        self.distances = nn.Embedding(2 * NEAR + 1, HEADS)
        self.layers = nn.ModuleList(Layer(decodes) for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)

    def forward(self, x: Tensor, read: Tensor | None = None) -> Tensor:
        place = torch.arange(x.shape[1], device=x.device)
        distance = place[None, :] - place[:, None]
        bias = self.distances(distance.clamp(-NEAR, NEAR) + NEAR).permute(2, 0, 1)[None]
        if self.decodes:
            bias = bias.masked_fill(distance > 0, -torch.inf)
        for layer in self.layers:
            x = layer(x, bias, read)
        return self.norm(x)


class T5(nn.Module):
    """One embedding for what is read, what is written, and what is said."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(VOCABULARY, WIDTH)
        self.encoder, self.decoder = Stack(decodes=False), Stack(decodes=True)

    def forward(self, read: Tensor, written: Tensor) -> Tensor:
        found = self.decoder(self.letters(written), self.encoder(self.letters(read)))
        return found * WIDTH**-0.5 @ self.letters.weight.T


def without_vowels(texts: Tensor) -> Tensor:
    """The texts without their vowels, filled up with `START`."""
    short = (decode(text).translate(dict.fromkeys(map(ord, "aeiouAEIOU"))) for text in texts)
    return torch.stack([functional.pad(encode(text), (0, LENGTH - len(text)), value=START) for text in short])


def main() -> None:
    training = Training(__doc__, steps=100, batch=16)
    texts = windows(LENGTH, last="d")
    model = T5().to(training.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for read, wanted in training.batches(without_vowels(texts), texts):
        written = functional.pad(wanted[:, :-1], (1, 0), value=START)
        loss = functional.cross_entropy(model(read, written).flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        training.report(loss)
    training.finish()


if __name__ == "__main__":
    main()
