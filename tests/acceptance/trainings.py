"""Programs of notebooks: each trains until it is told to stop, and writes its losses. Its text is run in kernels."""

from __future__ import annotations

import itertools
import pathlib
import time
import traceback
from collections.abc import Callable, Iterator

import torch
from torch import nn

Steps = Iterator[torch.Tensor]

DEVICE = "cuda"
PAUSE_SECONDS = 0.05
REST_SECONDS = 2.5
"""Longer than what a pool waits before it takes a device back: there are more notebooks than devices."""
BURST_STEPS = 20


def trained(net: nn.Module, loss_of: Callable[[], torch.Tensor]) -> Steps:
    """Steps of a network; the loss of each."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    while True:
        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        yield loss


def perceptron() -> Steps:
    net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).to(DEVICE)

    def loss() -> torch.Tensor:
        x = torch.randn(24, 16, device=DEVICE)
        return nn.functional.cross_entropy(net(x), x[:, :4].argmax(1))

    return trained(net, loss)


def convolutions() -> Steps:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10))
    net.to(DEVICE)

    def loss() -> torch.Tensor:
        images, classes = torch.randn(8, 3, 16, 16), torch.randint(0, 10, (8,))
        return nn.functional.cross_entropy(net(images.to(DEVICE)), classes.to(DEVICE))

    return trained(net, loss)


class LanguageModel(nn.Module):
    """A small GPT."""

    def __init__(self, words: int = 101, width: int = 32, length: int = 32) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 2, 4 * width, dropout=0.1, activation="gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        hidden = self.words(tokens) + self.places(torch.arange(length, device=tokens.device))
        scores: torch.Tensor = self.head(self.layers(hidden, mask=mask, is_causal=True))
        return scores


def language_model() -> Steps:
    net = LanguageModel().to(DEVICE)

    def loss() -> torch.Tensor:
        tokens = torch.randint(0, 101, (2, 32), device=DEVICE)
        return nn.functional.cross_entropy(net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return trained(net, loss)


def reinforcement() -> Steps:
    """A policy of a walk: each step reads what it computed, and acts by it."""
    policy = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2)).to(DEVICE)

    def loss() -> torch.Tensor:
        place, logs, reward = 0, [], 0.0
        for moment in range(5):
            chances = torch.softmax(policy(torch.tensor([place, moment], dtype=torch.float32, device=DEVICE)), 0)
            action = int(torch.multinomial(chances, 1).item())
            logs.append(chances[action].log())
            place += 1 if action else -1
            reward += place
        return -torch.stack(logs).sum() * reward

    return trained(policy, loss)


def loader() -> Steps:
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.randn(64, 16), torch.randint(0, 4, (64,)))
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 4)).to(DEVICE)
    batches = itertools.chain.from_iterable(DataLoader(data, batch_size=16, shuffle=True) for _ in itertools.count())

    def loss() -> torch.Tensor:
        x, y = next(batches)
        return nn.functional.cross_entropy(net(x.to(DEVICE)), y.to(DEVICE))

    return trained(net, loss)


def large_upload(mebibytes: int = 500) -> Steps:
    data = torch.arange(mebibytes << 18, dtype=torch.int32).view(-1, 1024).to(DEVICE)
    net = nn.Linear(1024, 4).to(DEVICE)
    numbers = itertools.count()

    def loss() -> torch.Tensor:
        rows = data[next(numbers) % 1000 * 128 :: data.shape[0] // 8] % 1021
        result: torch.Tensor = net(rows.float() / 1021)
        return result.square().mean()

    return trained(net, loss)


PROGRAMS: dict[str, Callable[[], Steps]] = {
    "perceptron": perceptron,
    "convolutions": convolutions,
    "language_model": language_model,
    "reinforcement": reinforcement,
    "loader": loader,
    "large_upload": large_upload,
}


def train(program: str, name: str, steps: int | None = None) -> None:
    """Writes each step's loss: so many steps, or until a file of the same name with ``.enough`` is beside it. Writes what fails, too."""
    torch.manual_seed(7)
    out = pathlib.Path(name).absolute()
    try:
        with open(out, "w", buffering=1) as lines:
            for step, loss in enumerate(PROGRAMS[program](), start=1):
                print(float(loss.item()).hex(), file=lines)
                if step == steps or out.with_name(f"{out.name}.enough").exists():
                    break
                if steps is None:
                    time.sleep(REST_SECONDS if step % BURST_STEPS == 0 else PAUSE_SECONDS)
            print("done", file=lines)
    except BaseException:
        out.with_name(f"{out.name}.error").write_text(traceback.format_exc())
        raise
