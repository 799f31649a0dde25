"""Draws from everything random that PyTorch has on a device, and prints a digest of each.

``random_draws.py ADDRESS TICKET [STATE] [--resume]``: the two say how a worker is reached.

With STATE the run stops in the middle and leaves what it needs to go on in that file; with ``--resume`` too, it goes on from there.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from operator_sweep import attach

if __name__ == "__main__":
    attach(sys.argv[1], sys.argv[2])

import torch
from torch.nn import functional

SIDE = 64


def draws(x: torch.Tensor, own: torch.Generator) -> dict[str, Callable[[], torch.Tensor]]:
    """Name → draw. ``x`` is a square of ones."""
    image, token = x.view(1, SIDE, 8, 8), torch.ones(2, 3, 16, device=x.device)
    in_place = {"exponential_": (), "geometric_": (0.3,), "cauchy_": (), "log_normal_": (), "random_": (), "normal_": (), "uniform_": ()}
    many: dict[str, Callable[[], torch.Tensor]] = {
        name: lambda name=name, given=given: getattr(x.clone(), name)(*given)  # type: ignore[misc]
        for name, given in in_place.items()
    }
    query = torch.ones(1, 2, 8, 4, device=x.device)
    return many | {
        "dropout": lambda: functional.dropout(x),
        "Dropout2d": lambda: functional.dropout2d(image),
        "alpha_dropout": lambda: functional.alpha_dropout(x, training=True),
        "feature_alpha_dropout": lambda: functional.feature_alpha_dropout(image, training=True),
        "native_dropout": lambda: torch.native_dropout(x, 0.5, True)[0],
        "rrelu": lambda: functional.rrelu(-x, training=True),
        "gumbel_softmax": lambda: functional.gumbel_softmax(x),
        "attention": lambda: functional.scaled_dot_product_attention(query, query, query, dropout_p=0.5),
        "MultiheadAttention": lambda: torch.nn.MultiheadAttention(16, 2, dropout=0.5, device=x.device)(token, token, token)[1] == 0,
        "LSTM": lambda: torch.nn.LSTM(16, 4, 2, dropout=0.5, device=x.device)(token)[0].detach(),
        "randperm": lambda: torch.randperm(100_003, device=x.device),
        "multinomial": lambda: torch.multinomial(x, 5),
        "multinomial with replacement": lambda: torch.multinomial(x, 5, replacement=True),
        "bernoulli_": lambda: x.clone().bernoulli_(0.3),
        "bernoulli": lambda: torch.bernoulli(x * 0.5),
        "normal of tensors": lambda: torch.normal(x, x),
        "normal of numbers": lambda: torch.normal(0.0, 1.0, (300,), device=x.device),
        "random_ of a range": lambda: torch.empty(9999, device=x.device, dtype=torch.long).random_(0, 2**40),
        "rand": lambda: torch.rand(1_000_003, device=x.device),
        "randn": lambda: torch.randn(1_000_003, device=x.device),
        "randn of halves": lambda: torch.randn(101, dtype=torch.half, device=x.device),
        "rand_like": lambda: torch.rand_like(x),
        "randn_like": lambda: torch.randn_like(x),
        "randint": lambda: torch.randint(0, 9, (99,), device=x.device),
        "randint_like": lambda: torch.randint_like(x, 9),
        "poisson": lambda: torch.poisson(x * 4),
        "binomial": lambda: torch.binomial(x * 10, x * 0.5),
        "Gamma": lambda: torch.distributions.Gamma(x, x).sample(),
        "Dirichlet": lambda: torch.distributions.Dirichlet(x).sample(),
        "Categorical": lambda: torch.distributions.Categorical(logits=x).sample(),
        "trunc_normal_": lambda: torch.nn.init.trunc_normal_(torch.empty(99, device=x.device)),
        "rand of an own generator": lambda: torch.rand(99, device=x.device, generator=own),
        "randperm of an own generator": lambda: torch.randperm(99, device=x.device, generator=own),
    }


def digest(tensor: torch.Tensor) -> str:
    """Of its bytes."""
    return hashlib.sha256(tensor.cpu().contiguous().numpy().tobytes()).hexdigest()[:16]


def main(state: str | None, resume: bool) -> None:
    """Draws twice, so that a stop in between has something to go on with."""
    torch.manual_seed(7)
    own = torch.Generator("cuda").manual_seed(5)
    x = torch.ones(SIDE, SIDE, device="cuda")
    if not resume:
        for name, draw in draws(x, own).items():
            print("first", name, digest(draw()))
    if state is not None and not resume:
        torch.save({"device": torch.cuda.get_rng_state_all(), "own": own.get_state()}, state)
        return
    if state is not None:
        kept = torch.load(state)
        torch.cuda.set_rng_state_all(kept["device"])
        own.set_state(kept["own"])
    for name, draw in draws(x, own).items():
        print("second", name, digest(draw()))


if __name__ == "__main__":
    main(sys.argv[3] if len(sys.argv) > 3 else None, "--resume" in sys.argv)
