"""Loops that take statistics of their batches: extremes, quantisation, norms, metrics (``divided_loops.py``)."""

from __future__ import annotations

import torch
from divided_loops import ROWS, STEPS, Run, loop
from torch import Tensor, nn
from torch.nn import functional

FEATURES = 7
CLASSES = 5


@loop
def running_minima_and_maxima(run: Run) -> None:
    """As an observer of a quantisation has them, and inputs that are scaled by them."""
    model = run.up_model(nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 3)))
    low, high = run.up(torch.full((FEATURES,), float("inf"))), run.up(torch.full((FEATURES,), -float("inf")))

    def loss_of(step: int) -> Tensor:
        nonlocal low, high
        x, y = run.up(run.numbers(step, ROWS, FEATURES)), run.up(run.numbers(step, ROWS, 3))
        low, high = torch.minimum(low, x.amin(0)), torch.maximum(high, x.amax(0))
        both = torch.aminmax(x)
        run.tell(low, high, *both, x.max(0).values, x.max(0).indices, x.min(1).indices, x.argmax(), x.abs().max(), x.any(0), x.all(1))
        found = model((x - low) / (high - low).clamp(min=1e-3))
        return functional.mse_loss(found, y) + found.max() - found.amin(0).mean() + found.amax((0, 1))

    run.train(model, loss_of)


@loop
def quantisation_to_bytes(run: Run) -> None:
    """Of activations by their largest, by that of each row and column, and of weights by channels; gradients go straight through."""
    model = run.up_model(nn.Linear(FEATURES, 8))
    head = run.up_model(nn.Linear(8, 3))

    def quantised(x: Tensor, scale: Tensor) -> Tensor:
        whole = (x / scale.clamp(min=1e-6)).round().clamp(-127, 127).to(torch.int8)
        run.tell(whole)
        return x + (whole * scale - x).detach()

    def loss_of(step: int) -> Tensor:
        x, y = run.up(run.numbers(step, ROWS, FEATURES)), run.up(run.numbers(step, ROWS, 3))
        run.tell(x / x.abs().max(), x / x.abs().max().clamp(min=1e-9))
        hidden = model(quantised(x, x.abs().amax(0) / 127))
        hidden = quantised(hidden, hidden.abs().max() / 127) + quantised(hidden, hidden.abs().amax(1, keepdim=True) / 127)
        weight = quantised(head.weight, head.weight.abs().amax(1, keepdim=True) / 127)
        found = functional.linear(hidden, weight, head.bias)
        zeros, scales = torch.zeros(8, dtype=torch.int32, device=x.device), (hidden.detach().abs().amax(0) / 127).clamp(min=1e-6)
        fake = torch.fake_quantize_per_channel_affine(hidden.float(), scales.float(), zeros, 1, -127, 127)
        whole = torch.fake_quantize_per_tensor_affine(hidden.float(), 0.05, 3, -128, 127)
        return functional.mse_loss(found, y) + 1e-3 * (fake.double().sum() + whole.double().mean())

    run.train(nn.ModuleList([model, head]), loss_of)


@loop
def advantages_that_are_normalised(run: Run) -> None:
    """A policy's ratio is clipped; advantages have the batch's mean and deviation taken out; returns are discounted."""
    policy, value = run.up_model(nn.Linear(FEATURES, CLASSES)), run.up_model(nn.Linear(FEATURES, 1))

    def loss_of(step: int) -> Tensor:
        x, actions = run.up(run.numbers(step, ROWS, FEATURES)), run.up(run.classes(step, CLASSES, ROWS))
        rewards, old = run.up(run.numbers(step, ROWS)), run.up(run.drawn(ROWS) - 1.5)
        returns = rewards.flip(0).cumsum(0).flip(0) / 4
        values = value(x).squeeze(1)
        advantages = (returns - values).detach()
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        log_chances = policy(x).log_softmax(1)
        taken = log_chances.gather(1, actions[:, None]).squeeze(1)
        ratio = (taken - old).exp()
        clipped = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
        entropy = -(log_chances.exp() * log_chances).sum(1).mean()
        kind = torch.distributions.Categorical(logits=policy(x))
        run.tell(advantages, entropy, kind.log_prob(actions), (ratio > 1.2).double().mean(), *torch.var_mean(returns), returns.median())
        return functional.mse_loss(values, returns) - clipped - 0.01 * entropy - 0.01 * kind.entropy().mean()

    run.train(nn.ModuleList([policy, value]), loss_of)


@loop
def norms_whose_power_changes(run: Run) -> None:
    model = run.up_model(nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 3)))
    powers = (2.0, 1.0, float("inf"), 3.0, 0.0, -float("inf"), 1.5, -1.0, 2.0)

    def loss_of(step: int) -> Tensor:
        power = powers[step]
        x = run.up(run.numbers(step, ROWS, FEATURES))
        found = model(x) + 0.3
        norms = found.norm(power, 1)
        run.tell(x.norm(power), x.norm(power, 0), norms, found.norm(power), found.norm(), torch.linalg.vector_norm(x, power, (0, 1)))
        run.tell(torch.linalg.matrix_norm(x), torch.dist(x, x.flip(0), power), x.std(0), x.var(1), x.logsumexp(0), x.prod(0), x.nansum(0))
        return found.square().mean() + found.norm(2.0) + 1e-2 * found.renorm(2, 0, 1.0).sum() + functional.normalize(found, 1.0, 0).sum()

    run.train(model, loss_of)


@loop
def order_of_a_batch(run: Run) -> None:
    """Sorts, medians, sums and softmaxes over the rows, which no part of them has alone."""
    model = run.up_model(nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 3)))

    def loss_of(step: int) -> Tensor:
        x = run.up(run.numbers(step, ROWS, FEATURES))
        found = model(x) + 1e-3 * run.up(run.drawn(ROWS, 3))
        order = found[:, 0].argsort()
        pooled = (found.softmax(0) * found).sum(0)
        run.tell(x.sort(dim=0, stable=True).values, x.sort(dim=1, stable=True).indices, x.median(0).values, x.cumsum(0), x.cummax(0).values)
        run.tell(x.quantile(0.3, 0), torch.unique(x.round()), x.mode(0).values, x.kthvalue(3, 0).values, x.topk(3, 0).values, x.prod())
        soft = found[order].diff(dim=0).square().mean() + found.sort(0).values[ROWS // 2 :].mean() + found.log_softmax(0).mean()
        return soft + pooled.sum() + (found.cumsum(0) / ROWS).square().mean() + found.logsumexp(0).mean()

    run.train(model, loss_of)


@loop
def whitening_and_correlations(run: Run) -> None:
    model = run.up_model(nn.Linear(FEATURES, 4))
    mean = run.up(torch.zeros(4))

    def loss_of(step: int) -> Tensor:
        x = run.up(run.numbers(step, ROWS, FEATURES))
        found = model(x) + 0.1 * run.up(run.drawn(ROWS, 4))
        mean.lerp_(found.detach().mean(0), 0.1)
        centred = found - found.mean(0, keepdim=True)
        covariance = centred.t() @ centred / (ROWS - 1)
        white = centred @ torch.linalg.inv(torch.linalg.cholesky(covariance + 0.1 * torch.eye(4, device=x.device))).t()
        run.tell(found.t().cov(), mean, torch.einsum("ij,ik->jk", x, x), torch.einsum("ij,kj->ik", found, found), found.std())
        deviation = (found.var(0) + 1e-4).sqrt()
        return white.abs().mean() + functional.relu(1 - deviation).mean() + (covariance - covariance.diagonal().diag()).square().sum()

    run.train(model, loss_of)


@loop
def metrics_of_an_evaluation(run: Run) -> None:
    """A confusion matrix, the best k classes, precision by ranks, a curve of true and false positives; the last batch is smaller."""
    model = run.up_model(nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, CLASSES))).eval()
    confusion = run.up(torch.zeros(CLASSES, CLASSES, dtype=torch.int64))
    seen, right = run.up(torch.zeros(())), run.up(torch.zeros(3))
    all_scores, all_labels = [], []
    with torch.no_grad():
        for step in range(STEPS):
            rows = ROWS if step < STEPS - 1 else 7
            x, y = run.up(run.numbers(step, rows, FEATURES)), run.up(run.classes(step, CLASSES, rows))
            scores = model(x)
            found = scores.argmax(1)
            confusion += torch.bincount(y * CLASSES + found, minlength=CLASSES**2).view(CLASSES, CLASSES)
            best = scores.topk(3, 1).indices
            hits = (best == y[:, None]).cumsum(1).clamp(max=1).sum(0)
            right += hits
            seen += len(y)
            positive = y == 1
            order = scores[:, 1].argsort(descending=True, stable=True)
            true, false = (found[order].double().cumsum(0) / found.sum().clamp(min=1) for found in (positive, ~positive))
            bounds = torch.linspace(-1, 1, 9, device=x.device)
            run.tell(confusion, hits, right / seen, true, false, torch.trapezoid(true, false), torch.bucketize(scores, bounds))
            run.tell((found == y).double().mean(), (found == y).sum(), torch.histc(scores, 10, -1, 1))
            run.tell(functional.cross_entropy(scores, y, reduction="sum"))
            all_scores.append(scores.softmax(1))
            all_labels.append(y)
    scores, labels = torch.cat(all_scores), torch.cat(all_labels)
    confidence = scores.max(1).values
    bins = (confidence * 10).long()
    run.tell(scores, labels, torch.zeros(11, device=labels.device).index_add(0, bins, (scores.argmax(1) == labels).double()))


@loop
def clusters_of_batches(run: Run) -> None:
    """K-means by batches, with a classifier's prototypes moved by averages."""
    centres, counts = run.up(run.drawn(4, FEATURES)), run.up(torch.zeros(4))
    for step in range(STEPS):
        x = run.up(run.numbers(step, ROWS, FEATURES))
        distances = torch.cdist(x, centres)
        nearest = distances.argmin(1)
        members = functional.one_hot(nearest, 4).double()
        counts += members.sum(0)
        sums = torch.zeros_like(centres).index_add_(0, nearest, x)
        centres += (sums - members.sum(0)[:, None] * centres) / counts[:, None].clamp(min=1)
        means = torch.zeros_like(centres).scatter_reduce_(0, nearest[:, None].expand_as(x), x, "mean", include_self=False)
        run.tell(distances.min(1).values.sum(), nearest, counts, centres, means, (members.t() @ x), torch.bincount(nearest, minlength=4))


@loop
def statistics_of_rewards_and_observations(run: Run) -> None:
    """Running mean and variance over batches (Chan's formula), by which what comes is normalised and clipped."""
    mean, variance, count = run.up(torch.zeros(FEATURES)), run.up(torch.ones(FEATURES)), 1e-4
    model = run.up_model(nn.Linear(FEATURES, 2))

    def loss_of(step: int) -> Tensor:
        nonlocal count
        x = run.up(run.numbers(step, ROWS, FEATURES))
        own_mean, own_variance, total = x.mean(0), x.var(0, unbiased=False), count + ROWS
        difference = own_mean - mean
        variance.mul_(count).add_(own_variance * ROWS + difference.square() * count * ROWS / total).div_(total)
        mean.add_(difference * ROWS / total)
        count = total
        seen = ((x - mean) / (variance + 1e-8).sqrt()).clamp(-5, 5)
        run.tell(mean, variance, seen.std(), seen.std(0, correction=0), x.sum(), (x * x).sum() / x.numel() - x.mean() ** 2)
        return model(seen).tanh().square().mean() + model(seen).std()

    run.train(model, loss_of)
