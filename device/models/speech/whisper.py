"""A small Whisper writes down what it hears: words of made-up sounds, as a log-mel spectrogram.

Radford et al., Robust Speech Recognition via Large-Scale Weak Supervision, 2022.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from training import Training

SPOKEN = 1024
MELS, LETTERS, FRAMES = 80, 4, 16
"""Bands of the spectrogram; letters of a word; frames of the spectrogram that a letter takes."""
ALPHABET = 10
START = ALPHABET
"""What the decoder is given before the first letter."""
WIDTH, HEADS, LAYERS = 128, 4, 2


def speak(count: int, chance: torch.Generator) -> tuple[Tensor, Tensor]:
    """Words, (count, LETTERS), and how they sound, (count, MELS, LETTERS * FRAMES): each letter is two tones, louder in its middle."""
    words = torch.randint(ALPHABET, (count, LETTERS), generator=chance)
    low, high = 10 + 6 * (words % 5), 50 + 12 * (words // 5)
    bands = torch.arange(MELS)[None, None, :]
    tones = sum(torch.exp(-((bands - tone[..., None]) ** 2) / 8) for tone in (low, high))
    loudness = torch.hann_window(FRAMES, periodic=False)
    sound = (tones[..., None] * loudness).transpose(1, 2).flatten(2)
    heard = sound + 0.1 * torch.rand(sound.shape, generator=chance)
    return words, 2 + (heard + 1e-3).log10()


def sinusoids(length: int) -> Tensor:
    """Places as waves of many lengths, (length, WIDTH)."""
    speeds = torch.exp(-math.log(10_000) * torch.arange(WIDTH // 2) / (WIDTH // 2 - 1))
    angles = torch.arange(length)[:, None] * speeds
    return torch.cat((angles.sin(), angles.cos()), 1)


class Whisper(nn.Module):
    """Two convolutions and an encoder hear, a decoder writes letter by letter."""

    def __init__(self) -> None:
        super().__init__()
        shape = {"dim_feedforward": 4 * WIDTH, "dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
        self.hear = nn.Conv1d(MELS, WIDTH, 3, padding=1)
        self.shorten = nn.Conv1d(WIDTH, WIDTH, 3, stride=2, padding=1)
        self.register_buffer("heard_places", sinusoids(LETTERS * FRAMES // 2), persistent=False)
        encoder_layer, decoder_layer = nn.TransformerEncoderLayer(WIDTH, HEADS, **shape), nn.TransformerDecoderLayer(WIDTH, HEADS, **shape)
        self.encoder = nn.TransformerEncoder(encoder_layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.letters, self.places = nn.Embedding(ALPHABET + 1, WIDTH), nn.Parameter(0.02 * torch.randn(LETTERS, WIDTH))
        nn.init.normal_(self.letters.weight, std=WIDTH**-0.5)
        self.decoder = nn.TransformerDecoder(decoder_layer, LAYERS, nn.LayerNorm(WIDTH))
        self.register_buffer("later", torch.ones(LETTERS, LETTERS).triu(1).bool(), persistent=False)

    def forward(self, sound: Tensor, written: Tensor) -> Tensor:
        heard = functional.gelu(self.shorten(functional.gelu(self.hear(sound))))
        heard = self.encoder(heard.transpose(1, 2) + self.heard_places)
        found = self.decoder(self.letters(written) + self.places, heard, tgt_mask=self.later)
        return found @ self.letters.weight.T


def main() -> None:
    training = Training(__doc__, steps=150, batch=32)
    words, sounds = speak(SPOKEN, training.chance)
    model = Whisper().to(training.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for sound, wanted in training.batches(sounds, words):
        written = functional.pad(wanted[:, :-1], (1, 0), value=START)
        loss = functional.cross_entropy(model(sound, written).flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        training.report(loss)
    training.finish()


if __name__ == "__main__":
    main()
