"""Higher-order operators under ``torch.compile``: checkpoints, nested regions and control flow train as they do without it.

``make test`` tries each region, source of random numbers and option at least once; ``--full-sweep`` tries all combinations.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from forebay.errors import NotOnVirtualDevice
from torch import nn
from torch._higher_order_ops import hints_wrap, invoke_quant
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.cond import cond
from torch._higher_order_ops.map import map as mapped
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch._higher_order_ops.wrap import wrap
from torch.nn.attention.flex_attention import flex_attention
from torch.testing import assert_close
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

Part = Callable[[torch.Tensor], torch.Tensor]
"""A part of a program: of a tensor of ones, its result is half of its gradient wherever both have one mask."""

RANDOM: dict[str, Part] = {
    "dropout": lambda t: nn.functional.dropout(t, 0.5) * t,
    "bernoulli": lambda t: torch.bernoulli(torch.full_like(t, 0.5)) * t * t,
    "rand_like": lambda t: (torch.rand_like(t) > 0.5) * t * t,
    "randn_like": lambda t: torch.randn_like(t) * t * t,
    "in place": lambda t: torch.empty_like(t).bernoulli_(0.5).mul_(2.0) * t.mul(1.0).mul_(t),
}


def keep_products(context: Any, operator: Any, *arguments: Any, **keywords: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator is torch.ops.aten.mul.Tensor else CheckpointPolicy.PREFER_RECOMPUTE


def keep_nothing(context: Any, operator: Any, *arguments: Any, **keywords: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_RECOMPUTE


def selective(part: Part, policy: Callable[..., CheckpointPolicy]) -> Part:
    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    return lambda x: checkpoint(part, x, use_reentrant=False, context_fn=contexts)


def without_reentry(part: Part) -> Part:
    return lambda x: checkpoint(part, x, use_reentrant=False)


def as_function(part: Part) -> Part:
    class Masked(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, t: torch.Tensor) -> torch.Tensor:
            factor = part(torch.ones_like(t))
            ctx.save_for_backward(factor, t)
            return factor * t * t

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            factor, t = ctx.saved_tensors
            return gradient * factor * 2 * t

    return Masked.apply  # type: ignore[no-any-return]


REGIONS: dict[str, Callable[[Part], Part]] = {
    "checkpoint": without_reentry,
    "checkpoint that enters again": lambda part: lambda x: checkpoint(part, x, use_reentrant=True),
    "checkpoint that forgets the state": lambda part: lambda x: checkpoint(part, x, use_reentrant=False, preserve_rng_state=False),
    "checkpoint in a checkpoint": lambda part: without_reentry(without_reentry(part)),
    "checkpoint that keeps products": lambda part: selective(part, keep_products),
    "checkpoint that keeps nothing": lambda part: selective(part, keep_nothing),
    "checkpoint of a function": lambda part: without_reentry(as_function(part)),
    "nested region": torch.compiler.nested_compile_region,
    "checkpoint in a nested region": lambda part: torch.compiler.nested_compile_region(without_reentry(part)),
    "function": as_function,
    "scan": lambda part: lambda x: scan(lambda carry, row: (carry + 1.0, part(row)), x[0] * 0, x)[1],
    "wrap": lambda part: lambda x: wrap(part, x),
    "vmap": lambda part: torch.vmap(part, randomness="different"),
}
COMPUTED_AGAIN: dict[str, Callable[[Part], Part]] = {
    "cond": lambda part: lambda x: cond(x.sum() > 0, part, lambda t: t * 2, (x,)),
    "map_impl": lambda part: lambda x: mapped(part, x),
    "while_loop": lambda part: lambda x: while_loop(
        lambda i, t: i < 1, lambda i, t: (i + 1, part(t)), (torch.zeros((), dtype=torch.long, device=x.device), x)
    )[1],
    "invoke_quant": lambda part: lambda x: invoke_quant(part, x),
}
"""Regions whose backward pass computes the forward pass again with other random numbers, natively too."""

OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "fullgraph": {"fullgraph": True},
    "dynamic": {"dynamic": True},
    "reduce-overhead": {"mode": "reduce-overhead"},
    "max-autotune": {"mode": "max-autotune"},
    "cudagraphs": {"backend": "cudagraphs"},
    "aot_eager": {"backend": "aot_eager"},
    "eager": {"backend": "eager"},
}


@pytest.fixture(autouse=True)
def nothing_compiled_before() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def combinations(*lists: dict[str, Any], turns: int = 0) -> list[Any]:
    """All, of which so many are for every run; without a number as many as have each entry in them."""
    quick = {tuple(list(entries)[turn % len(entries)] for entries in lists) for turn in range(turns or max(map(len, lists)))}
    return [
        pytest.param(*names, marks=[] if names in quick else [pytest.mark.full_sweep], id=", ".join(names))
        for names in itertools.product(*lists)
    ]


@pytest.mark.parametrize(("region", "source", "option"), combinations(REGIONS, RANDOM, OPTIONS))
def test_the_backward_pass_of_a_compiled_region_has_the_random_numbers_of_the_forward_pass(region: str, source: str, option: str) -> None:
    if (region, source, option) == ("vmap", "dropout", "dynamic"):
        pytest.skip("PyTorch itself cannot map dropout over sizes that are left open")
    compiled = torch.compile(REGIONS[region](RANDOM[source]), **OPTIONS[option])
    before: torch.Tensor | None = None
    for _ in range(3):
        x = torch.ones(16, 16, device="cuda", requires_grad=True)
        y = compiled(x)
        y.sum().backward()
        assert x.grad is not None
        assert torch.equal(x.grad, 2 * y), "another mask in the backward pass"
        assert before is None or not torch.equal(before, y), "each step draws other numbers"
        before = y.detach().clone()


@pytest.mark.parametrize(("region", "source", "option"), combinations(COMPUTED_AGAIN, RANDOM, OPTIONS))
def test_a_region_that_would_draw_other_numbers_in_its_backward_pass_is_refused(region: str, source: str, option: str) -> None:
    compiled = torch.compile(COMPUTED_AGAIN[region](RANDOM[source]), **OPTIONS[option])
    x = torch.ones(8, 8, device="cuda")
    with pytest.raises(NotOnVirtualDevice, match=re.escape(f"{region} with random numbers and gradients") + ".*draw the numbers before it"):
        compiled(x.requires_grad_())
    if region != "invoke_quant":  # which PyTorch's own backends take for training alone
        assert compiled(x.detach()).shape == x.shape, "without gradients there is nothing to be wrong"


@pytest.mark.parametrize("option", ["default", "cudagraphs", "aot_eager", "eager"])
def test_a_region_without_a_derivative_is_refused_where_gradients_are_wanted(option: str) -> None:
    """By some of PyTorch's own backends it trains nothing, and no error says so."""

    def hinted(x: torch.Tensor) -> torch.Tensor:
        return hints_wrap.hints_wrapper(torch.sin, (x,), {}, hints={"hint": True})  # type: ignore[no-any-return]

    compiled, x = torch.compile(hinted, **OPTIONS[option]), torch.ones(4, device="cuda")
    with pytest.raises(NotOnVirtualDevice, match=r"hints_wrapper with gradients .* no derivative"):
        compiled(x.requires_grad_())
    assert_close(compiled(x.detach()), x.detach().sin())


def test_control_flow_outside_of_torch_compile_is_refused_alike() -> None:
    with pytest.raises(NotOnVirtualDevice, match="cond with random numbers"):
        cond(torch.tensor(True, device="cuda"), RANDOM["dropout"], torch.sin, (torch.ones(4, device="cuda", requires_grad=True),))


def test_attention_in_a_branch_is_not_taken_for_random() -> None:
    def attend(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.0)

    compiled = torch.compile(lambda x: cond(x.sum() > -1e9, attend, torch.sin, (x,)))
    x = torch.randn(1, 2, 8, 4, device="cuda", requires_grad=True)
    assert_close(torch.autograd.grad(compiled(x).sum(), x), torch.autograd.grad(attend(x).sum(), x))


def change_in_place(x: torch.Tensor) -> torch.Tensor:
    y = x * 1.0
    y.mul_(2)
    y[:, :3].add_(1)
    return (y * y).sin()


Smooth = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
NESTED = torch.compiler.nested_compile_region(lambda x, w: torch.tanh(x @ w) * x)
NESTED_IN_PLACE = torch.compiler.nested_compile_region(change_in_place)


class Sine(torch.autograd.Function):
    """Its derivative is one and a half of the true one, so that one which is found in another way is noticed."""

    @staticmethod
    def forward(ctx: Any, t: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(t)
        return t.sin()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (t,) = ctx.saved_tensors
        return gradient * t.cos() * 1.5


def heads(t: torch.Tensor) -> torch.Tensor:
    return t.view(1, 2, 8, 16)


SMOOTH: dict[str, tuple[Smooth, Smooth]] = {
    "checkpoint": (
        lambda x, w: checkpoint(lambda a, b: torch.tanh(a @ b) * a, x, w, use_reentrant=False),
        lambda x, w: torch.tanh(x @ w) * x,
    ),
    "checkpoint in place": (lambda x, w: without_reentry(change_in_place)(x) @ w, lambda x, w: change_in_place(x) @ w),
    "checkpoint of a function": (lambda x, w: checkpoint(Sine.apply, x @ w, use_reentrant=False), lambda x, w: Sine.apply(x @ w)),
    "checkpoint in vmap": (
        lambda x, w: torch.vmap(lambda row: checkpoint(lambda a: torch.tanh(a @ w) * a, row, use_reentrant=False))(x),
        lambda x, w: torch.tanh(x @ w) * x,
    ),
    "nested region": (lambda x, w: NESTED(NESTED(x, w), w), lambda x, w: torch.tanh((y := torch.tanh(x @ w) * x) @ w) * y),
    "nested region in place": (lambda x, w: NESTED_IN_PLACE(x) @ w, lambda x, w: change_in_place(x) @ w),
    "cond": (
        lambda x, w: cond(x.sum() > 0, lambda a, b: torch.tanh(a @ b) * a, lambda a, b: (a * b).sin(), (x, w)),
        lambda x, w: torch.tanh(x @ w) * x if x.sum() > 0 else (x * w).sin(),
    ),
    "scan": (
        lambda x, w: scan(lambda carry, row: (torch.tanh(carry @ w) + row, (carry * row).sin()), x[0] * 1.0, x)[1],
        lambda x, w: torch.stack(scanned(x, w)),
    ),
    "while_loop": (
        lambda x, w: while_loop(
            lambda i, t: i < 3, lambda i, t: (i + 1, torch.tanh(t @ w) + t), (torch.zeros((), dtype=torch.long, device=x.device), x)
        )[1],
        lambda x, w: functools.reduce(lambda t, _: torch.tanh(t @ w) + t, range(3), x),
    ),
    "map": (lambda x, w: mapped(lambda row, b: torch.tanh(row @ b) * row, x, w), lambda x, w: torch.tanh(x @ w) * x),
    "associative_scan": (
        lambda x, w: associative_scan(lambda a, b: a + b, (x @ w).sin(), 0, combine_mode="generic"),
        lambda x, w: (x @ w).sin().cumsum(0),
    ),
    "flex_attention": (
        lambda x, w: flex_attention(heads(x @ w), heads(x), heads(w * 1.0)),
        lambda x, w: nn.functional.scaled_dot_product_attention(heads(x @ w), heads(x), heads(w * 1.0)),
    ),
    "invoke_quant": (lambda x, w: invoke_quant(lambda a, b: torch.tanh(a @ b) * a, x, w), lambda x, w: torch.tanh(x @ w) * x),
    "function": (lambda x, w: Sine.apply(x @ w), lambda x, w: Sine.apply(x @ w)),
    "gradient": (
        lambda x, w: torch.func.grad(lambda t: (torch.tanh(t @ w) * t).sum())(x) * w,
        lambda x, w: torch.func.grad(lambda t: (torch.tanh(t @ w) * t).sum())(x) * w,
    ),
}
"""A program with a region, and one that computes the same without."""


def scanned(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    carry, rows = x[0] * 1.0, []
    for row in x:
        rows.append((carry * row).sin())
        carry = torch.tanh(carry @ w) + row
    return rows


@pytest.mark.parametrize(("program", "option"), combinations(SMOOTH, OPTIONS))
def test_a_compiled_region_has_the_results_and_gradients_of_the_program_without_it(program: str, option: str) -> None:
    region, plain = SMOOTH[program]
    compiled = torch.compile(region, **OPTIONS[option])
    generator = torch.Generator().manual_seed(5)
    x, w = torch.randn(2, 16, 16, dtype=torch.float64, generator=generator)

    def trained(device: str, function: Smooth) -> list[torch.Tensor]:
        given = [x.clone().to(device).requires_grad_(), (w * 0.3).to(device).requires_grad_()]
        result = function(*given)
        (result * torch.arange(result.numel(), dtype=result.dtype, device=device).view(result.shape).cos()).sum().backward()
        return [value.cpu() for value in (result.detach(), *(one.grad for one in given if one.grad is not None))]

    expected = trained("cpu", plain)
    for _ in range(2):
        assert_close(trained("cuda", compiled), expected, rtol=1e-8, atol=1e-8)


class Block(nn.Module):
    """Buffers that change, random numbers and changes in place, within one checkpoint."""

    steps: torch.Tensor

    def __init__(self, policy: Callable[..., CheckpointPolicy] | None) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = nn.BatchNorm1d(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.register_buffer("steps", torch.zeros((), dtype=torch.float64))
        self.checkpointed = without_reentry(self.body) if policy is None else selective(self.body, policy)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        self.steps.add_(1)
        hidden = nn.functional.dropout(torch.tanh(self.wide(self.norm(x))), 0.3, self.training)
        hidden = (hidden * torch.rand_like(hidden)).mul_(1.5)
        return nn.functional.dropout(self.narrow(hidden), 0.2, self.training) + x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.checkpointed(x)


POLICIES: dict[str, Any] = {"all": None, "products": keep_products, "nothing": keep_nothing}


@pytest.mark.parametrize(("policy", "option"), combinations(POLICIES, OPTIONS, turns=3))
def test_gradients_through_compiled_checkpoints_are_those_of_finite_differences(policy: str, option: str) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(Block(POLICIES[policy]), Block(POLICIES[policy])).double().cuda()
    compiled = torch.compile(model, **OPTIONS[option])
    x, weights = torch.randn(2, 6, 8, dtype=torch.float64, device="cuda")

    def loss() -> torch.Tensor:
        torch.manual_seed(11)  # from here on the same numbers: a checkpoint draws them from the program's generator
        return (compiled(x) * weights).sum()

    for _ in range(2):
        model.zero_grad()
        loss().backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            with torch.no_grad():
                way = torch.randn(parameter.shape, dtype=parameter.dtype, generator=torch.Generator().manual_seed(2)).cuda()
                ends = []
                for step in (1e-6, -1e-6):
                    parameter.add_(way, alpha=step)
                    ends.append(loss())
                    parameter.sub_(way, alpha=step)
            assert_close((parameter.grad * way).sum(), (ends[0] - ends[1]) / 2e-6, rtol=1e-4, atol=1e-6)
    first = model[0]
    assert isinstance(first, Block) and first.norm.num_batches_tracked is not None
    assert first.steps.item() == first.norm.num_batches_tracked.item() == 2 * (1 + 2 * 12), "once a forward pass, and not again backwards"


def test_two_forward_passes_before_the_backward_passes_keep_their_numbers_apart() -> None:
    compiled = torch.compile(without_reentry(RANDOM["dropout"]))
    first, second = (torch.ones(16, 16, device="cuda", requires_grad=True) for _ in range(2))
    results = compiled(first), compiled(second)
    for x, y in zip((first, second), results, strict=True):
        y.sum().backward()
        assert x.grad is not None and torch.equal(x.grad, 2 * y)
    assert not torch.equal(*results)


def test_a_compiled_checkpoint_computes_again_what_it_does_not_keep() -> None:
    """The memory that a checkpoint is for: kept are the inputs of its regions alone."""

    def held(wrapped: Callable[[Part], Part]) -> int:
        torch._dynamo.reset()
        layers = [wrapped(lambda t: nn.functional.dropout(t.sin().cos().exp().tanh(), 0.1)) for _ in range(4)]
        compiled = torch.compile(lambda x: functools.reduce(lambda value, layer: layer(value), layers, x))
        x = torch.ones(256, 256, device="cuda", requires_grad=True)
        before = torch.cuda.memory_allocated()
        y = compiled(x)
        kept = torch.cuda.memory_allocated() - before
        y.sum().backward()
        return kept

    assert held(without_reentry) < 0.5 * held(lambda part: part)


def test_a_compiled_gpt_with_checkpoints_has_the_gradients_of_the_plain_one(gpt: Callable[..., Any], text: torch.Tensor) -> None:
    def gradients(compiled: bool, checkpoints: bool) -> list[torch.Tensor]:
        model = gpt(0.3).cuda().train()
        if checkpoints:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        forward = torch.compile(model) if compiled else model
        torch.manual_seed(7)
        forward(input_ids=text.cuda(), labels=text.cuda(), use_cache=False).loss.backward()
        return [parameter.grad.cpu() for parameter in model.parameters()]

    assert_close(gradients(True, True), gradients(False, False), rtol=1e-4, atol=1e-5)
