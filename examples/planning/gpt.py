"""Trains a GPT in plain PyTorch, to be planned: ``gpt.py 7b 512``, a size and the rows of a batch. Weights are made on cuda:0."""

import sys

import torch
from torch import nn
from torch.nn import functional

SIZES = {
    "7b": (32, 4096, 32),
    "20b": (44, 6144, 64),
    "65b": (80, 8192, 64),
    "175b": (96, 12288, 96),
    "221b": (96, 13824, 108),
}
"""Layers, width and heads."""
(LAYERS, WIDTH, HEADS), ROWS, TOKENS, WORDS = SIZES[sys.argv[1]], int(sys.argv[2]), 2048, 51200


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)
        self.projection = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        rows, tokens, _ = hidden.shape
        parts = self.attention(self.norms[0](hidden)).view(rows, tokens, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
        hidden = hidden + self.projection(mixed.transpose(1, 2).reshape(rows, tokens, WIDTH))
        return hidden + self.down(functional.gelu(self.up(self.norms[1](hidden))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.layers(self.words(tokens) + self.places.weight)))


with torch.device("cuda"):
    model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(10):
    text = torch.randint(WORDS, (ROWS, TOKENS + 1)).to("cuda")
    with torch.autocast("cuda", torch.bfloat16):
        scores = model(text[:, :-1])
    loss = functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
