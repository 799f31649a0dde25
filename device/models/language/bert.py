"""A small BERT learns to fill gaps in Python's help texts.

Devlin et al., BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding, 2018.
"""

from __future__ import annotations

import torch
from text import VOCABULARY, windows
from torch import Tensor, nn
from torch.nn import functional
from training import Training

LENGTH, WIDTH, HEADS, LAYERS = 64, 192, 6, 4
GAP, GAPS = 0, 0.15
"""The letter that stands for a gap, and how many letters become one."""
IGNORED = -100
"""As PyTorch's losses have it."""


class Bert(nn.Module):
    """Says of each place of a text which letter stands there, from what is around it."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.transform = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, letters: Tensor) -> Tensor:
        places = torch.arange(letters.shape[1], device=letters.device)
        x = self.norm(self.letters(letters) + self.places(places))
        return self.head(self.transform(self.encoder(x)))


def with_gaps(letters: Tensor, chance: torch.Generator) -> tuple[Tensor, Tensor]:
    """The text with gaps, and what was in them."""
    gaps = torch.rand(letters.shape, generator=chance) < GAPS
    gaps[:, 0] = True  # each text has one
    return letters.masked_fill(gaps, GAP), letters.masked_fill(~gaps, IGNORED)


def main() -> None:
    training = Training(__doc__, steps=100, batch=16)
    model = Bert().to(training.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-3, total_steps=training.steps + 1)
    for text, wanted in training.batches(*with_gaps(windows(LENGTH), training.chance)):
        loss = functional.cross_entropy(model(text).flatten(0, 1), wanted.flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        training.report(loss)
    training.finish()


if __name__ == "__main__":
    main()
