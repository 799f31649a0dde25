"""A step of a program is one segment, whatever the program looks like, and comes again as one.

Layers, micro-batches and time steps within it are not its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import wraps

import pytest
import torch
from forebay import _C
from torch import nn

Step = Callable[[], torch.Tensor]
"""Runs one step, and returns something of it, on the device."""


def comings() -> Counter[tuple[int, int]]:
    """How often each segment came so far, by its identity and calls."""
    torch.cuda.synchronize()
    return Counter({(segment["identity"], segment["calls"]): segment["times"] for segment in _C.segments()})


def came(run: Callable[[], object]) -> Counter[tuple[int, int]]:
    before = comings()
    run()
    return comings() - before


def calls_of(run: Callable[[], object]) -> int:
    torch.cuda.synchronize()
    before = _C.statistics()["commands"]
    run()
    return _C.statistics()["commands"] - before


def counted(check: Callable[..., None]) -> Callable[..., None]:
    """A check that is made once more where client and worker dropped all steps meanwhile, as they do when their tree of them is full."""

    @wraps(check)
    def again(*arguments: object) -> None:
        before = comings()
        try:
            check(*arguments)
        except AssertionError:
            if not before.keys() - comings().keys():
                raise
            check(*arguments)

    return again


@counted
def check_one_segment_from_the_third_time_on(step: Step) -> None:
    """Of a step whose result is read."""
    for _ in range(2):
        step().item()
    calls = calls_of(lambda: step().item())
    segments = [came(lambda: step().item()) for _ in range(2)]
    for found in segments:
        assert [(times, size) for (_, size), times in found.items()] == [(1, calls)]
    assert segments[0] == segments[1]


@counted
def check_known_by_its_loop(step: Step, rounds: int, calls: int | None = None) -> None:
    """Of a step whose result nobody reads: of ``rounds`` more all but the first and the last few are one segment of ``calls`` calls."""

    def loop(count: int) -> None:
        for _ in range(count):
            step()

    step()
    calls = calls or calls_of(step)
    loop(4 + 5000 // calls)
    found = came(lambda: loop(rounds))
    (_, size), times = max(found.items(), key=lambda item: item[0][1] * item[1])
    assert size == calls
    assert times >= rounds - 3


def blocks(layers: int) -> nn.Module:
    """Residual blocks of perceptrons."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(nn.functional.gelu(self.up(self.norm(x))))

    return nn.Sequential(*[Block() for _ in range(layers)], nn.Linear(8, 4))


def attention_blocks(layers: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    return nn.Sequential(encoder, nn.Flatten(), nn.Linear(8 * 6, 4))


def training(net: nn.Module, foreach: bool = True, clip: bool = False, autocast: bool = False, micro_batches: int = 1) -> Step:
    """A step of AdamW on one batch that stays on the device."""
    torch.manual_seed(0)
    net = net.cuda()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, foreach=foreach)
    x = torch.randn(4, 6, 8).cuda() if any(isinstance(part, nn.Flatten) for part in net.modules()) else torch.randn(4, 8).cuda()
    y = torch.randint(0, 4, (4,)).cuda()

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        for _ in range(micro_batches):
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return step


@pytest.mark.parametrize("layers", [44, 96])
@pytest.mark.parametrize("options", [{}, {"foreach": False}, {"clip": True}, {"autocast": True}], ids=str)
def test_a_step_of_many_equal_layers_is_one_segment(layers: int, options: dict[str, bool]) -> None:
    check_one_segment_from_the_third_time_on(training(blocks(layers), **options))


@pytest.mark.parametrize("layers", [44, 96])
def test_a_step_of_many_transformer_blocks_is_one_segment(layers: int) -> None:
    check_one_segment_from_the_third_time_on(training(attention_blocks(layers)))


@pytest.mark.parametrize("layers", [4, 44])
def test_a_step_whose_loss_nobody_reads_is_one_segment(layers: int) -> None:
    check_known_by_its_loop(training(blocks(layers)), 20)


@pytest.mark.parametrize("foreach", [True, False])
def test_four_micro_batches_and_their_update_are_one_segment(foreach: bool) -> None:
    check_one_segment_from_the_third_time_on(training(blocks(24), foreach, micro_batches=4))


def test_micro_batches_of_a_loop_that_nobody_reads_are_one_segment_with_their_update() -> None:
    check_known_by_its_loop(training(blocks(12), micro_batches=4), 20)


def test_two_networks_that_train_by_turns_are_one_segment() -> None:
    generator, judge = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8)).cuda(), blocks(2).cuda()
    optimizers = [torch.optim.AdamW(net.parameters(), lr=1e-3) for net in (generator, judge)]
    noise, real = torch.randn(4, 4).cuda(), torch.randn(4, 8).cuda()

    def step() -> torch.Tensor:
        fake = generator(noise)
        optimizers[1].zero_grad()
        (judge(fake.detach()).mean() - judge(real).mean()).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        loss = -judge(fake).mean()
        loss.backward()
        optimizers[0].step()
        return loss.detach()

    check_one_segment_from_the_third_time_on(step)
    check_known_by_its_loop(step, 30)


def test_a_recurrent_network_over_many_time_steps_is_one_segment() -> None:
    cell, head = nn.RNNCell(4, 4).cuda(), nn.Linear(4, 1).cuda()
    optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=1e-2)
    series = torch.randn(400, 2, 4).cuda()

    def step() -> torch.Tensor:
        state = torch.zeros(2, 4, device="cuda")
        for now in series:
            state = cell(now, state)
        loss = head(state).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    check_one_segment_from_the_third_time_on(step)


def test_a_network_that_makes_one_token_a_step_is_one_segment_a_token() -> None:
    net, table = blocks(12).cuda(), nn.Embedding(4, 8).cuda()
    token = torch.zeros(1, dtype=torch.int64, device="cuda")

    @torch.no_grad()
    def step() -> torch.Tensor:
        token.copy_(net(table(token)).argmax(-1))
        return token

    check_one_segment_from_the_third_time_on(step)
    check_known_by_its_loop(step, 40)


@counted
def test_steps_are_segments_again_after_an_evaluation() -> None:
    net = blocks(6)
    step = training(net)
    x = torch.randn(4, 8).cuda()

    def evaluate() -> float:
        with torch.no_grad():
            return sum(net(x).sum() for _ in range(5)).item()  # type: ignore[union-attr]

    def epoch() -> None:
        for _ in range(10):
            step()
        evaluate()

    step()
    calls = calls_of(step)
    for _ in range(5):
        epoch()
    found = came(epoch)
    assert sum(times * size for (_, size), times in found.items()) == calls_of(epoch)
    assert came(epoch) == found, "an epoch comes as the one before"
    check_known_by_its_loop(step, 20, calls)
    assert came(epoch) == came(epoch)


@counted
def test_batches_that_are_there_already_come_in_their_order_and_are_one_segment_each() -> None:
    net = blocks(6).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    batches = [(torch.randn(4, 8).cuda(), torch.randint(0, 4, (4,)).cuda()) for _ in range(300)]
    losses = []

    def step(index: int) -> None:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(batches[index][0]), batches[index][1])
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())

    step(0)
    calls = calls_of(lambda: step(1))
    found = came(lambda: [step(index) for index in range(300)])
    assert max(times for (_, size), times in found.items() if size == calls) > 150


def test_gpt_2_is_one_segment_a_step() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    net = transformers.GPT2LMHeadModel(config).cuda().train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    tokens = torch.randint(0, 32, (2, 16)).cuda()

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = net(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    check_one_segment_from_the_third_time_on(step)


@counted
def test_a_segment_tells_what_its_steps_make_and_what_varies() -> None:
    x = torch.ones(8, device="cuda")

    def step(scale: float) -> float:
        return ((x * scale).sin() + 1).sum().item()

    step(1.0)  # the first call of a kind is a segment's end
    earlier = comings()
    for scale in (0.5, 0.25, 0.125, 0.0625):
        before = comings()
        step(scale)
    ((identity, calls),) = comings() - before
    (segment,) = (found for found in _C.segments() if found["identity"] == identity)
    assert (segment["times"] - earlier[identity, calls], calls, segment["births"]) == (4, 4, 4)
    assert segment["varying"] == 1, "the scale"


@counted
def test_a_segment_has_the_identity_of_its_calls() -> None:
    x, y = torch.ones(8, device="cuda"), torch.ones(8, device="cuda")
    x.sin().cos()  # the first call of a kind is a segment's end
    torch.cuda.synchronize()
    ours = [came(lambda scale=scale, z=z: ((z * scale).sin().sum()).item()) for scale, z in ((2.0, x), (3.0, y))]
    other = came(lambda: (x * 2.0).cos().sum().item())
    assert ours[0] == ours[1] != other
    assert [sorted(one.values()) for one in (*ours, other)] == [[1]] * 3
