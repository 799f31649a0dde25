"""Loops whose losses count, weigh, pad and reduce in many ways (``divided_loops.py``)."""

from __future__ import annotations

import torch
from divided_loops import ROWS, STEPS, Run, loop
from torch import Tensor, nn
from torch.nn import functional

WORDS = 23
LENGTH = 6
CLASSES = 5
IGNORED = -100
REDUCTIONS = ("none", "mean", "sum")


def padded(run: Run, step: int, labels: Tensor, ignored: int = IGNORED) -> Tensor:
    """As many labels count in the first rows as in the last ones, or none in the first, or in the last, or few of each row."""
    rows = len(labels)
    kinds: dict[int, slice] = {1: slice(rows // 2), 2: slice(rows // 2, rows), 3: slice(1, rows), 4: slice(rows // 4, rows)}
    labels = labels.clone()
    if step in kinds:
        labels[kinds[step]] = ignored
    elif step:
        lengths = run.whole_numbers(labels.shape[1] + 1, rows)
        labels[torch.arange(labels.shape[1]).expand_as(labels) >= lengths[:, None]] = ignored
        labels[-1, 0] = 1
    return labels


def tagger() -> nn.Module:
    return nn.Sequential(nn.Embedding(WORDS, 8, padding_idx=0), nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, WORDS))


@loop
def cross_entropy_with_padding(run: Run) -> None:
    model = run.up_model(tagger())

    def loss_of(step: int) -> Tensor:
        words, labels = run.classes(step, WORDS, ROWS, LENGTH), run.whole_numbers(WORDS, ROWS, LENGTH)
        words, labels = run.up(words), run.up(padded(run, step, labels))
        return functional.cross_entropy(model(words).flatten(0, 1), labels.flatten(), ignore_index=IGNORED)

    run.train(model, loss_of)


@loop
def evaluation_of_batches_that_are_all_padding(run: Run) -> None:
    model = run.up_model(tagger()).eval()
    with torch.no_grad():
        for step in range(STEPS):
            words, labels = run.classes(step, WORDS, ROWS, LENGTH), run.whole_numbers(WORDS, ROWS, LENGTH)
            labels = torch.full_like(labels, IGNORED) if step % 2 else padded(run, step, labels)
            scores, labels = model(run.up(words)).transpose(1, 2), run.up(labels)
            for reduction in REDUCTIONS:
                run.tell(functional.cross_entropy(scores, labels, reduction=reduction))
            run.tell((scores.argmax(1) == labels)[labels != IGNORED].sum(), (labels != IGNORED).sum())


@loop
def cross_entropy_in_all_its_ways(run: Run) -> None:
    """Weights of classes, smoothed labels, padding, and each reduction; a class of weight 0."""
    model = run.up_model(nn.Sequential(nn.Linear(7, 16), nn.ReLU(), nn.Linear(16, CLASSES)))
    weight = run.up(torch.tensor([0.3, 2.0, 0.0, 1.0, 5.0]))

    def loss_of(step: int) -> Tensor:
        x, y = run.numbers(step, ROWS, 7), run.classes(step, CLASSES, ROWS)
        y[step % ROWS :: 3] = IGNORED
        scores, y = model(run.up(x)), run.up(y)
        loss = scores.square().mean()
        for reduction in REDUCTIONS:
            for weights in (None, weight):
                for smoothing in (0.0, 0.2):
                    one = functional.cross_entropy(scores, y, weights, reduction=reduction, label_smoothing=smoothing)
                    run.tell(one)
                    loss = loss + one.nan_to_num().mean()
        return loss

    run.train(model, loss_of)


@loop
def cross_entropy_with_probabilities(run: Run) -> None:
    model = run.up_model(nn.Sequential(nn.Linear(7, 16), nn.ReLU(), nn.Linear(16, CLASSES)))
    weight = run.up(torch.tensor([0.3, 2.0, 0.0, 1.0, 5.0]))

    def loss_of(step: int) -> Tensor:
        x, y = run.up(run.numbers(step, ROWS, 7)), run.up(run.numbers(step, ROWS, CLASSES).softmax(1))
        scores = model(x)
        losses = [functional.cross_entropy(scores, y, weight, reduction=reduction, label_smoothing=0.1) for reduction in REDUCTIONS]
        run.tell(*losses)
        return losses[0].square().mean() + losses[1] + losses[2] / ROWS

    run.train(model, loss_of)


@loop
def negative_log_likelihoods(run: Run) -> None:
    model = run.up_model(nn.Sequential(nn.Linear(7, 16), nn.GELU(), nn.Linear(16, CLASSES), nn.LogSoftmax(1)))
    weight = run.up(torch.linspace(0.0, 2.0, CLASSES))

    def loss_of(step: int) -> Tensor:
        x, y = run.up(run.numbers(step, ROWS, 7)), run.up(run.classes(step, CLASSES, ROWS))
        scores = model(x)
        losses = [functional.nll_loss(scores, y, weight, ignore_index=2, reduction=reduction) for reduction in REDUCTIONS]
        run.tell(*losses)
        return losses[0].mean() + losses[1].nan_to_num() + losses[2] / ROWS

    run.train(model, loss_of)


@loop
def regression_losses(run: Run) -> None:
    model = run.up_model(nn.Sequential(nn.Linear(7, 16), nn.Tanh(), nn.Linear(16, 3)))
    losses = (functional.mse_loss, functional.smooth_l1_loss, functional.huber_loss, functional.l1_loss, functional.soft_margin_loss)

    def loss_of(step: int) -> Tensor:
        x, y = run.up(run.numbers(step, ROWS, 7)), run.up(run.numbers(step, ROWS, 3))
        found = model(x)
        total = found.sum() * 0
        for loss in losses:
            for reduction in REDUCTIONS:
                target = y.sign() if loss is functional.soft_margin_loss else y
                one = loss(found, target, reduction=reduction)
                run.tell(one)
                total = total + one.mean()
        return total

    run.train(model, loss_of)


@loop
def losses_of_probabilities(run: Run) -> None:
    """Saturated ones, too; weights of elements, of rows, and of positives."""
    model = run.up_model(nn.Sequential(nn.Linear(7, 16), nn.SiLU(), nn.Linear(16, 4)))
    positives = run.up(torch.tensor([0.0, 1.0, 3.0, 10.0]))

    def loss_of(step: int) -> Tensor:
        x, y = run.up(run.numbers(step, ROWS, 7)), run.up((run.numbers(step, ROWS, 4) > 0).double())
        weight = run.up(run.numbers(step, ROWS, 1).abs())
        scores = model(x)
        total = scores.square().mean()
        for reduction in REDUCTIONS:
            ones = (
                functional.binary_cross_entropy(scores.sigmoid(), y, reduction=reduction),
                functional.binary_cross_entropy(scores.sigmoid(), y, weight.expand_as(y), reduction=reduction),
                functional.binary_cross_entropy_with_logits(scores, y, weight, reduction=reduction, pos_weight=positives),
                functional.multilabel_soft_margin_loss(scores, y, reduction=reduction),
            )
            run.tell(*ones)
            total = total + sum(one.mean() for one in ones)
        return total

    run.train(model, loss_of)


@loop
def divergences(run: Run) -> None:
    """A student learns a teacher's probabilities."""
    student, teacher = run.up_model(nn.Linear(7, CLASSES)), run.up_model(nn.Linear(7, CLASSES))

    def loss_of(step: int) -> Tensor:
        x = run.up(run.numbers(step, ROWS, 7))
        ours, theirs = student(x).log_softmax(1), teacher(x).detach().log_softmax(1)
        losses = []
        for reduction in (*REDUCTIONS, "batchmean"):
            losses.append(functional.kl_div(ours, theirs, reduction=reduction, log_target=True))
            losses.append(functional.kl_div(ours, theirs.exp(), reduction=reduction))
        hard = functional.kl_div(ours, functional.one_hot(theirs.argmax(1), CLASSES).double(), reduction="batchmean")
        run.tell(*losses, hard)
        return sum((loss.mean() for loss in losses), hard)

    run.train(student, loss_of)


@loop
def losses_of_pixels(run: Run) -> None:
    """A map of classes with a border that does not count; focal and Dice losses beside it."""
    down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
    model = run.up_model(nn.Sequential(*down, nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(8, CLASSES, 1)))
    weight = run.up(torch.linspace(0.5, 2.0, CLASSES))

    def loss_of(step: int) -> Tensor:
        x, y = run.numbers(step, ROWS, 3, 8, 8), run.classes(step, CLASSES, ROWS, 8, 8)
        y = padded(run, step, y.flatten(1), ignored=255).reshape(y.shape)
        scores, y = model(run.up(x)), run.up(y)
        losses = [functional.cross_entropy(scores, y, weight, ignore_index=255, reduction=reduction) for reduction in REDUCTIONS]
        each = functional.cross_entropy(scores, y, ignore_index=255, reduction="none")
        focal = ((1 - (-each).exp()) ** 2 * each).sum() / (y != 255).sum()
        valid = (y != 255)[:, None]
        chances, truth = scores.softmax(1) * valid, functional.one_hot(y.where(y != 255, 0), CLASSES).movedim(-1, 1) * valid
        dice = 1 - (2 * (chances * truth).sum((0, 2, 3)) / ((chances + truth).sum((0, 2, 3)) + 1e-6)).mean()
        run.tell(*losses, focal, dice)
        return losses[0].mean() + losses[1] + losses[2] / y.numel() + focal + dice

    run.train(model, loss_of)


@loop
def connectionist_temporal_classification(run: Run) -> None:
    model = run.up_model(nn.Sequential(nn.Linear(7, 16), nn.Tanh(), nn.Linear(16, CLASSES)))

    def loss_of(step: int) -> Tensor:
        x, y = run.up(run.numbers(step, ROWS, 9, 7)), run.up(1 + run.whole_numbers(CLASSES - 1, ROWS, 4))
        inputs, targets = 5 + run.whole_numbers(5, ROWS), run.whole_numbers(5, ROWS)
        scores = model(x).log_softmax(2).transpose(0, 1)
        losses = [functional.ctc_loss(scores, y, inputs, targets, reduction=reduction, zero_infinity=True) for reduction in REDUCTIONS]
        run.tell(*losses)
        return losses[0].mean() + losses[1] + losses[2] / ROWS

    run.train(model, loss_of)


@loop
def pairs_of_a_batch(run: Run) -> None:
    """InfoNCE both ways, and with a queue of earlier keys."""
    model = run.up_model(nn.Sequential(nn.Linear(7, 16), nn.ReLU(), nn.Linear(16, 6)))
    queue = run.up(functional.normalize(run.drawn(ROWS, 6), dim=1))

    def loss_of(step: int) -> Tensor:
        nonlocal queue
        x, noise = run.up(run.numbers(step, ROWS, 7)), run.up(run.drawn(ROWS, 7))
        one, other = functional.normalize(model(x), dim=1), functional.normalize(model(x + 0.1 * noise), dim=1)
        similar = one @ other.t() / 0.2
        own = torch.arange(ROWS, device=similar.device)
        symmetric = (functional.cross_entropy(similar, own) + functional.cross_entropy(similar.t(), own)) / 2
        positive = (one * other).sum(1, keepdim=True)
        contrast = functional.cross_entropy(torch.cat((positive, one @ queue.t()), 1) / 0.2, torch.zeros_like(own))
        queue = torch.cat((queue[ROWS // 2 :], other.detach()[: ROWS // 2]))
        covariance = (one - one.mean(0)).t() @ (other - other.mean(0)) / (ROWS - 1)
        run.tell(symmetric, contrast, queue)
        return symmetric + contrast + (covariance - torch.eye(6, device=covariance.device)).square().sum()

    run.train(model, loss_of)


@loop
def triplets_and_distances(run: Run) -> None:
    """The hardest positive and negative of each row, by distances of all pairs; margins, cosines."""
    model = run.up_model(nn.Sequential(nn.Linear(7, 16), nn.Tanh(), nn.Linear(16, 4)))

    def loss_of(step: int) -> Tensor:
        x, y = run.up(run.numbers(step, ROWS, 7)), run.up(run.classes(step, 3, ROWS))
        found = model(x) + 1e-2 * run.up(run.drawn(ROWS, 4))
        distances, same = torch.cdist(found, found), y[:, None] == y[None]
        positive = distances.masked_fill(~same, -1.0).amax(1)
        negative = distances.masked_fill(same, 1e3).min(1).values
        hardest = functional.relu(positive - negative + 0.5).mean()
        others = found.roll(1, 0), found.flip(0)
        losses = (
            functional.triplet_margin_loss(found, *others, swap=True),
            functional.cosine_embedding_loss(found, others[0], 2 * same.diagonal(1).int().sum().clamp(max=1).expand(ROWS) - 1, margin=0.1),
            functional.margin_ranking_loss(found[:, 0], others[1][:, 0], torch.where(y > 0, 1.0, -1.0), margin=0.2),
            functional.multi_margin_loss(found, y),
            functional.pairwise_distance(found, others[1], p=3).mean(),
            torch.cdist(found, x[:, :4], p=1).mean() + torch.cdist(found, x[:5, :4], p=float("inf")).mean(),
        )
        run.tell(hardest, *losses)
        return sum(losses, hardest)

    run.train(model, loss_of)
