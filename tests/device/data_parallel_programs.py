"""Programs whose batches come anew in each iteration: trainings, and random ones.

``data_parallel_programs.py train ROWS ADDRESS TICKET MODEL…`` prints the losses and the squares of the parameters' norms of each
model as JSON; ``adam``, ``momentum`` and ``fused`` the same of other optimizers, with the profile; ``profile ROWS ADDRESS TICKET
MODEL…`` the profile of each training, and its text; ``states ROWS ADDRESS TICKET`` the masks of dropouts, what draws on rows leave,
and what batch norms of all kinds leave; ``random COUNT ADDRESS TICKET`` holds so many random programs against the CPU, and prints
the seeds of those that differ as JSON; ``updates`` the same of programs that update lists of weights and states as optimizers do.
"""

from __future__ import annotations

import functools
import itertools
import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from operator_sweep import attach

if __name__ == "__main__":
    attach(sys.argv[3], sys.argv[4])

import torch
from forebay.profile import Profiler
from forebay.toolkit.profiling import report
from torch import nn
from torch.nn import functional

STEPS = 10
ROWS = 16
WORDS = 61
WIDTH = 48


class Attention(nn.Module):
    """A small transformer over words; its mask is given anew in each call."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(WORDS, WIDTH), nn.Parameter(0.02 * torch.randn(12, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=dropout, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.head(self.layers(self.embedding(words) + self.position))
        return hidden.flatten(0, 1)


def convolutions(*norm: nn.Module) -> nn.Module:
    first = (nn.Conv2d(3, 8, 3, padding=1), *norm, nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*first, nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, WORDS))


def perceptron(*more: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 512), nn.Tanh(), *more, nn.Linear(512, WORDS))


def layers(count: int) -> nn.Module:
    """Of 4 MiB each."""
    middle = (part for _ in range(count) for part in (nn.Linear(1024, 1024), nn.GELU()))
    return nn.Sequential(nn.Linear(32, 1024), *middle, nn.Linear(1024, WORDS))


def images() -> nn.Module:
    """Activations of 4 MiB each, of 32 rows."""
    parts = ((nn.Conv2d(channels, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(True)) for channels in (3, 32, 32, 32, 32))
    return nn.Sequential(*itertools.chain(*parts), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, WORDS))


def autoencoder() -> nn.Module:
    """Two layers of 3 MiB, and smaller ones."""
    sizes = (784, 1024, 64, 1024, 784)
    parts = (part for wide, next_wide in itertools.pairwise(sizes) for part in (nn.Linear(wide, next_wide), nn.ReLU()))
    return nn.Sequential(*parts, nn.Linear(784, WORDS))


class Tables(nn.Module):
    """Tables of 10 and 6 MiB: with its states and what Adam makes of them, the larger one fits on none of four devices."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(count, 64) for count in (40_000, 24_000))
        self.out = nn.Linear(128, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        chosen = words.flatten() * 393
        return self.out(torch.cat([table(chosen) for table in self.tables], 1))


def one_large_layer() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 1500), nn.ReLU(), nn.Linear(1500, 1500), nn.ReLU(), nn.Linear(1500, WORDS))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "perceptron": (perceptron, (32,)),
    "dropout": (lambda: perceptron(nn.Dropout(0.3)), (32,)),
    "convolutions": (lambda: convolutions(nn.GroupNorm(2, 8)), (3, 12, 12)),
    "batch norm": (lambda: convolutions(nn.BatchNorm2d(8)), (3, 12, 12)),
    "attention": (lambda: Attention(0.0), (12,)),
    "attention with dropout": (lambda: Attention(0.1), (12,)),
}
"""How each is made, and the sizes of one row of its batch."""
LARGE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "images": (images, (3, 32, 32)),
    "autoencoder": (autoencoder, (784,)),
    "tables": (Tables, (12,)),
    "one large layer": (one_large_layer, (64,)),
    **{f"{count} layers": (functools.partial(layers, count), (32,)) for count in (8, 15)},
}
"""As the models, for tests of memory."""


def batch(generator: torch.Generator, row: tuple[int, ...], rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    if row == (12,):
        words = torch.randint(0, WORDS, (2, rows, *row), generator=generator)
        return words[0], words[1].flatten()
    return torch.randn(rows, *row, generator=generator), torch.randint(0, WORDS, (rows,), generator=generator)


Optimizer = Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]


def decayed(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)


def momentum(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    """It has one state, and needs no memory for the time of its step."""
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def adam(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3, eps=1e-3)  # or the rounding of small gradients would count


def fused(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    """As adam, without temporaries."""
    return torch.optim.AdamW(parameters, lr=1e-3, eps=1e-3, fused=True)


OPTIMIZERS: dict[str, Optimizer] = {"adam": adam, "momentum": momentum, "fused": fused}


def train(name: str, rows: int, optimizers: Optimizer = decayed) -> tuple[list[float], list[float]]:
    """Losses of all steps, the last of which has fewer rows, and of an evaluation after them; and the squares of the parameters' norms."""
    make, row = (MODELS | LARGE)[name]
    torch.manual_seed(0)
    model, generator = make().to("cuda"), torch.Generator().manual_seed(1)
    optimizer = optimizers(model.parameters())
    losses = []
    for step in range(STEPS):
        x, y = batch(generator, row, rows if step < STEPS - 1 else rows - 5)
        x, y = x.to("cuda"), y.to("cuda")
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y, label_smoothing=0.1)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        x, y = batch(generator, row, rows)
        losses.append(functional.cross_entropy(model.eval()(x.to("cuda")), y.to("cuda")).item())
    return losses, [parameter.detach().square().sum().item() for parameter in model.parameters()]


def tight(name: str, rows: int) -> tuple[list[float], int]:
    """Losses of some steps that are alike, and the most memory that they took."""
    make, row = LARGE[name]
    torch.manual_seed(0)
    model, generator = make().to("cuda"), torch.Generator().manual_seed(1)
    optimizer = adam(model.parameters())
    losses = []
    for _ in range(5):
        x, y = (part.to("cuda") for part in batch(generator, row, rows))
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, torch.cuda.max_memory_allocated()


def profiled(name: str, rows: int, optimizers: Optimizer = decayed) -> dict[str, object]:
    """Of a training, as ``forebay profile`` has it."""
    profiler = Profiler()
    profiler.start()
    losses, squares = train(name, rows, optimizers)
    profile, failure = profiler.stop()
    if failure is not None:
        raise failure
    return {"profile": profile.as_json(), "text": report.text(profile, 100), "losses": losses, "squares": squares}


def masks(rows: int) -> list[list[float]]:
    """By several chances to drop, and what draws in place leave in rows."""
    torch.manual_seed(3)
    found = []
    for p in (0.0, 0.3, 1.0, 0.5, 0.3, 0.3, 0.0):
        x = torch.ones(rows, 5, 3).to("cuda")
        dropped = functional.dropout(x, p)
        turned = functional.dropout(x.transpose(1, 2), p)
        noise, truths = (x + 1).normal_(0.5, 2.0), (x + 1).bernoulli_(0.4)
        found += [value.flatten().cpu().tolist() for value in (dropped, turned, noise, truths)]
    return found


NORMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], torch.dtype]] = {
    "of one dimension": (lambda: nn.BatchNorm1d(6), (6,), torch.float32),
    "of two": (lambda: nn.BatchNorm2d(6), (6, 4, 3), torch.float32),
    "of three": (lambda: nn.BatchNorm3d(6), (6, 2, 3, 2), torch.float64),
    "by the mean of all": (lambda: nn.BatchNorm1d(6, momentum=None), (6, 5), torch.float32),
    "without running statistics": (lambda: nn.BatchNorm1d(6, track_running_stats=False), (6,), torch.float64),
    "without weights": (lambda: nn.BatchNorm2d(6, affine=False), (6, 4, 3), torch.float32),
    "channels last": (lambda: nn.BatchNorm2d(6).to(memory_format=torch.channels_last), (6, 4, 3), torch.float32),
    "under autocast": (lambda: nn.Sequential(nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6)), (6, 4, 3), torch.float32),
}


def normed(name: str, rows: int) -> list[float]:
    """Results, gradients and states of some steps, one of which has a row a device; the mean of the input is far from zero. Of the
    parameters' gradients the largest element, and each by it: terms of bfloat16 cancel in the small ones, on each processor otherwise."""
    make, row, dtype = NORMS[name]
    torch.manual_seed(5)
    norm, generator, found = make().to("cuda", dtype), torch.Generator().manual_seed(6), []
    for count in (rows, rows, rows, rows, 4, 4, 4, 4, rows - 5, rows):
        x = torch.randn(count, *row, generator=generator, dtype=dtype) * 2 + 7
        if "last" in name:
            x = x.to(memory_format=torch.channels_last)
        x = x.to("cuda").requires_grad_()
        with torch.autocast("cuda", torch.bfloat16, enabled="autocast" in name):
            y = norm(x)
        (y.float() * x.detach().cos()).sum().backward()
        assert x.grad is not None
        found += [*y.detach().flatten()[:6].tolist(), *x.grad.flatten()[-6:].tolist()]
    gradients = [parameter.grad.flatten() for parameter in norm.parameters() if parameter.grad is not None]
    largest = torch.cat(gradients).abs().max() if gradients else torch.ones(())
    for value in (largest.flatten(), *(gradient / largest for gradient in gradients), *(buffer.flatten() for buffer in norm.buffers())):
        found += value.double().tolist()
    return found


Value = torch.Tensor
UNARY: list[Callable[[Value], Value]] = [
    torch.relu,
    torch.tanh,
    lambda x: x.t().contiguous().t(),
    lambda x: torch.softmax(x, 1),
    lambda x: torch.softmax(x, 0),
    lambda x: x - x.mean(0),
    lambda x: x - x.mean(1, keepdim=True),
    lambda x: x / x.abs().max(),
    lambda x: x.cumsum(0) / ROWS,
    lambda x: x.flip(0),
    lambda x: x.view(ROWS // 2, 2, -1).transpose(0, 1).reshape(ROWS, -1),
    lambda x: torch.cat((x[:, 4:], x[:, :4]), 1),
    lambda x: torch.cat((x[8:], x[:8])),
    lambda x: x.clone().add_(x.sum()),
    lambda x: x.clone().relu_(),
    lambda x: functional.layer_norm(x, x.shape[1:]),
    lambda x: x[x[:, 0].argsort()],
    lambda x: torch.where(x > 0, x, x[:1]),
    lambda x: x * torch.arange(ROWS, device=x.device)[:, None] / ROWS,
    lambda x: x.repeat(2, 1)[::2],
    lambda x: functional.batch_norm(x, None, None, training=True),
]
BINARY: list[Callable[[Value, Value], Value]] = [
    torch.add,
    torch.mul,
    lambda x, w: x @ w[: x.shape[1], : x.shape[1]],
    lambda x, w: x @ (x.t() @ x)[:, :8].repeat(1, 2) / ROWS if x.shape[1] == 16 else x,
    lambda x, w: functional.linear(x, w[:8, : x.shape[1]]).repeat(1, 2),
]
WEIGHTS = 3


def run(seed: int, device: str) -> list[torch.Tensor]:
    """The results of a random program of three values that a batch, and lasting weights, which it changes, are the beginning of."""
    chance, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    steps = [(chance.randrange(3), chance.randrange(3), chance.choice([*UNARY, *BINARY])) for _ in range(chance.randint(3, 9))]
    weights = [torch.randn(ROWS, 16, generator=generator).to(device).requires_grad_() for _ in range(WEIGHTS)]
    results = []
    for _ in range(6):
        x = torch.randn(ROWS, 16, generator=generator).to(device)
        values = [x, x * weights[0], weights[1]]
        for target, other, step in steps:
            values[target] = step(values[target]) if step in UNARY else step(values[target], values[other])  # type: ignore[call-arg, arg-type]
        loss = functional.mse_loss(values[0], values[1]) + 0.1 * values[2].sum() / ROWS + values[1].square().mean()
        gradients = torch.autograd.grad(loss, weights, allow_unused=True)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                if gradient is not None:
                    weight.sub_(0.01 * gradient.clamp(-1, 1))
        results += [loss.detach().cpu(), *(value.detach().cpu().clone() for value in values)]  # a value may be a weight, which changes
    return [*results, *(weight.detach().cpu() for weight in weights)]


class Updates:
    """Weights that a batch is multiplied by, their gradients, and states, in lists that optimizers' operators change; by chance."""

    def __init__(self, seed: int, device: str) -> None:
        self.chance, self.generator, self.device = random.Random(seed), torch.Generator().manual_seed(seed), device
        self.sizes = [1024 * self.chance.choice((1, 4, 8, 16)) for _ in range(self.chance.randint(3, 6))]
        self.weights = [torch.randn(16, size, generator=self.generator).to(device) for size in self.sizes]
        self.states = [torch.zeros_like(weight) for weight in self.weights]
        self.averages = [weight.clone() for weight in self.weights]
        self.seen: list[torch.Tensor] = []

    def some(self, values: list[torch.Tensor]) -> list[torch.Tensor]:
        """All in most cases."""
        return values if self.chance.random() < 0.7 else values[self.chance.randrange(len(values)) :]

    def clip(self, gradients: list[torch.Tensor]) -> None:
        norm = torch.stack(torch._foreach_norm(gradients)).norm()
        torch._foreach_mul_(gradients, torch.clamp(1 / (norm + 1e-6), max=1.0))
        self.seen.append(norm)

    def adapt(self, gradients: list[torch.Tensor]) -> None:
        torch._foreach_lerp_(self.states, gradients, 0.3)
        roots = torch._foreach_sqrt(torch._foreach_abs(self.states))
        torch._foreach_add_(roots, 1.0)
        torch._foreach_addcdiv_(self.weights, self.states, roots, value=-0.1)

    def momentum(self, gradients: list[torch.Tensor]) -> None:
        torch._foreach_mul_(self.states, 0.9)
        torch._foreach_mul_(self.some(self.states), 1.1)
        torch._foreach_add_(self.states, gradients, alpha=0.1)
        torch._foreach_add_(self.weights, self.states, alpha=-0.1)

    def average(self, _: list[torch.Tensor]) -> None:
        for average, weight in zip(self.averages, self.weights, strict=True):
            average.lerp_(weight, 0.1)

    def one(self, gradients: list[torch.Tensor]) -> None:
        index = self.chance.randrange(len(gradients))
        self.weights[index].sub_(0.05 * gradients[index])
        self.states[index].zero_()

    def read(self, _: list[torch.Tensor]) -> None:
        value = self.chance.choice([*self.weights, *self.states, *self.averages])
        self.seen += [value.sum(), value[:2].cpu().clone()]

    def renew(self, _: list[torch.Tensor]) -> None:
        self.states = [state + 0.5 for state in self.states]

    def fail(self, _: list[torch.Tensor]) -> None:
        """Nothing that was there is lost."""
        torch._foreach_mul_(self.states, 0.5)
        try:
            self.weights[0].index_select(0, torch.tensor([99]).to(self.device)).sum().item()
        except (IndexError, RuntimeError):
            return
        raise AssertionError("an index that leads nowhere was taken")

    def step(self) -> None:
        x = torch.randn(ROWS, 16, generator=self.generator).to(self.device)
        results = [torch.tanh(x @ weight) for weight in self.weights]
        gradients = [x.t() @ result / ROWS for result in results]
        kinds = (self.clip, self.adapt, self.momentum, self.average, self.one, self.read, self.renew, self.fail)
        for change in self.chance.choices(kinds, k=self.chance.randint(2, 5)):
            change(gradients)
        self.seen.append(results[0].square().mean())


def updated(seed: int, device: str) -> list[torch.Tensor]:
    updates = Updates(seed, device)
    for _ in range(7):
        updates.step()
    return [value.cpu() for value in (*updates.seen, *updates.weights, *updates.states, *updates.averages)]


def differs(seed: int, run: Callable[[int, str], list[torch.Tensor]]) -> bool:
    ours, theirs = run(seed, "cuda"), run(seed, "cpu")
    return not all(torch.allclose(one, other, rtol=1e-3, atol=1e-3, equal_nan=True) for one, other in zip(ours, theirs, strict=True))


if __name__ == "__main__":
    torch.set_num_threads(1)
    count = int(sys.argv[2])
    if sys.argv[1] == "train":
        print(json.dumps({name: train(name, count) for name in sys.argv[5:]}))
    elif sys.argv[1] in OPTIMIZERS:
        print(json.dumps({name: profiled(name, count, OPTIMIZERS[sys.argv[1]]) for name in sys.argv[5:]}))
    elif sys.argv[1] == "tight":
        print(json.dumps({name: tight(name, count) for name in sys.argv[5:]}))
    elif sys.argv[1] == "profile":
        print(json.dumps({name: profiled(name, count) for name in sys.argv[5:]}))
    elif sys.argv[1] == "states":
        print(json.dumps({"masks": masks(count), "norms": {name: normed(name, count) for name in NORMS}}))
    else:
        print(json.dumps([seed for seed in range(count) if differs(seed, updated if sys.argv[1] == "updates" else run)]))
