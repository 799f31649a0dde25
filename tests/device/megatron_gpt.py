"""A GPT as Megatron-LM trained it in 2022, to be planned: ``megatron_gpt.py SIZE ROWS``, with attention by scores and with dropout.

The sizes are those of Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", arXiv 2205.05198, table 3, and
of Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", arXiv 2104.04473, table 1.
Its fused kernels for scale, mask and softmax, and for bias and GELU, are stood for by one operator each.
"""

import sys

import torch
from torch import nn
from torch.nn import functional

SIZES = {
    "small": (4, 256, 8),
    "7b": (36, 4096, 32),
    "18b": (40, 6144, 48),
    "22b": (48, 6144, 64),
    "146b": (80, 12288, 96),
    "175b": (96, 12288, 96),
    "530b": (105, 20480, 128),
    "1t": (128, 25600, 160),
}
"""Layers, width and heads."""
(LAYERS, WIDTH, HEADS), ROWS, TOKENS, WORDS = SIZES[sys.argv[1]], int(sys.argv[2]), 2048, 51200
DROPOUT = 0.1


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)
        self.projection = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def attend(self, hidden: torch.Tensor) -> torch.Tensor:
        rows = hidden.shape[0]
        parts = self.attention(hidden).view(rows, TOKENS, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        query, key, value = (part.reshape(rows * HEADS, TOKENS, WIDTH // HEADS) for part in parts)
        weights = functional.dropout(torch.softmax(torch.bmm(query, key.transpose(1, 2)), -1), DROPOUT)
        mixed = torch.bmm(weights, value).view(rows, HEADS, TOKENS, WIDTH // HEADS)
        return self.projection(mixed.transpose(1, 2).reshape(rows, TOKENS, WIDTH))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden + functional.dropout(self.attend(self.norms[0](hidden)), DROPOUT)
        return hidden + functional.dropout(self.down(functional.gelu(self.up(self.norms[1](hidden)))), DROPOUT)


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
    model = Model().to(torch.bfloat16)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
for _ in range(10):
    text = torch.randint(WORDS, (ROWS, TOKENS + 1)).to("cuda")
    loss = functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
