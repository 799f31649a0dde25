"""A small GPT-2 learns to write like Python's help texts, letter by letter.

Radford et al., Language Models are Unsupervised Multitask Learners, 2019.
"""

from __future__ import annotations

import torch
from text import VOCABULARY, decode, encode, windows
from torch import Tensor, nn
from torch.nn import functional
from training import Training

CONTEXT, WIDTH, HEADS, LAYERS = 128, 192, 6, 4
WRITTEN = 120


class Block(nn.Module):
    """Attention to what came before, then a layer for each letter; both are added to what there was."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.feed_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.ask, self.answer = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(approximate="tanh"), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = self.ask(self.attention_norm(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.answer(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.feed(self.feed_norm(x))


class Gpt2(nn.Module):
    """Says of each letter which one may follow."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.apply(self._initialize)

    @staticmethod
    def _initialize(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)

    def forward(self, letters: Tensor) -> Tensor:
        places = torch.arange(letters.shape[1], device=letters.device)
        x = self.blocks(self.letters(letters) + self.places(places))
        return self.norm(x) @ self.letters.weight.T


@torch.no_grad()
def write(model: Gpt2, start: str, device: torch.device) -> str:
    """Goes on with a text."""
    written = encode(start)[None].to(device)
    for _ in range(WRITTEN):
        chances = (model(written[:, -CONTEXT:])[:, -1] / 0.7).softmax(-1)
        written = torch.cat((written, torch.multinomial(chances, 1)), 1)
    return decode(written[0])


def main() -> None:
    training = Training(__doc__, steps=100, batch=8)
    model = Gpt2().to(training.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    for (letters,) in training.batches(windows(CONTEXT + 1)):
        loss = functional.cross_entropy(model(letters[:, :-1]).flatten(0, 1), letters[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        training.report(loss)
    training.finish()
    if not training.quiet:
        print(write(model, "The statement ", training.device))


if __name__ == "__main__":
    main()
