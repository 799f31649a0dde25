"""The state of the device's generator: what programs save, restore and fork."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint


def test_a_state_taken_in_the_middle_of_a_run_brings_back_what_followed() -> None:
    torch.rand(5, device="cuda")
    state, all_states = torch.cuda.get_rng_state(), torch.cuda.get_rng_state_all()
    first = [torch.randn(7, device="cuda"), torch.randperm(50, device="cuda")]
    torch.cuda.set_rng_state(state)
    second = [torch.randn(7, device="cuda"), torch.randperm(50, device="cuda")]
    torch.cuda.set_rng_state_all(all_states)
    third = [torch.randn(7, device="cuda"), torch.randperm(50, device="cuda")]
    assert all(torch.equal(one, other) for one, other in zip(first * 2, second + third, strict=True))
    assert not torch.equal(first[0], torch.randn(7, device="cuda"))


def test_a_forked_generator_leaves_no_trace() -> None:
    state = torch.cuda.get_rng_state()
    with torch.random.fork_rng():
        torch.cuda.manual_seed(1)
        inside = torch.rand(4, device="cuda")
    assert torch.equal(state, torch.cuda.get_rng_state())
    torch.cuda.manual_seed_all(1)
    assert torch.equal(inside, torch.rand(4, device="cuda"))


def test_a_checkpointed_dropout_draws_the_same_mask_when_it_is_computed_again() -> None:
    x = torch.ones(64, device="cuda", requires_grad=True)
    for reentrant in (False, True):
        x.grad = None
        out = checkpoint(torch.nn.functional.dropout, x, use_reentrant=reentrant, preserve_rng_state=True)
        torch.rand(3, device="cuda")
        out.sum().backward()
        assert x.grad is not None and torch.equal(x.grad, out.detach())


def test_a_clone_of_a_generator_goes_its_own_way() -> None:
    one = torch.Generator(device="cuda").manual_seed(4)
    torch.rand(2, device="cuda", generator=one)
    other = one.clone_state()
    assert one.device == torch.device("cuda", 0) and one.initial_seed() == other.initial_seed() == 4
    assert torch.equal(torch.rand(9, device="cuda", generator=one), torch.rand(9, device="cuda", generator=other))


def test_generators_that_share_a_state_draw_one_after_the_other() -> None:
    one, other = torch.Generator(device="cuda").manual_seed(4), torch.Generator(device="cuda").manual_seed(5)
    alone = torch.Generator(device="cuda").manual_seed(4)
    expected = [torch.rand(3, device="cuda", generator=alone) for _ in range(4)]
    other.graphsafe_set_state(one)
    third = one.graphsafe_get_state()
    drawn = [torch.rand(3, device="cuda", generator=generator) for generator in (one, other, third, one)]
    assert all(torch.equal(a, b) for a, b in zip(expected, drawn, strict=True))
    assert torch.equal(other.get_state(), alone.get_state())
    apart = one.clone_state()
    one.manual_seed(6)
    assert (other.initial_seed(), apart.initial_seed()) == (6, 4)
    with pytest.raises(RuntimeError):
        one.graphsafe_set_state(torch.Generator())
