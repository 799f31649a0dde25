"""Loops whose batches are slices of data that lies on the device; see ``divided_loops``."""

from __future__ import annotations

import torch
from divided_loops import ROWS, STEPS, Run, loop
from torch import Tensor, nn
from torch.nn import functional

BLOCKS = 6
CLASSES = 3
CHANNELS, SIDE = 2, 10
"""Of an image; a slice of twelve has 19 KiB."""
WORDS, LENGTH = 23, 180


def of_blocks(run: Run, *sizes: int) -> Tensor:
    """Data on the device, block after block: zeros, equal numbers, ties, one-hot and large numbers, and ordinary ones."""
    return run.up(torch.cat([run.numbers(block, ROWS, *sizes) for block in range(BLOCKS)]))


def labels_of_blocks(run: Run, count: int, *sizes: int) -> Tensor:
    return run.up(torch.cat([run.classes(block, count, ROWS, *sizes) for block in range(BLOCKS)]))


@loop
def slices_of_images(run: Run) -> None:
    """In their order, epoch after epoch; the last slice is shorter. Then an evaluation of all."""
    images, labels = of_blocks(run, CHANNELS, SIDE, SIDE)[:-5], labels_of_blocks(run, CLASSES)[:-5]
    layers = (nn.Conv2d(CHANNELS, 4, 3, padding=1), nn.BatchNorm2d(4, eps=0.1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * SIDE**2, CLASSES))
    model = run.up_model(nn.Sequential(*layers))

    def loss_of(step: int) -> Tensor:
        begin = step % BLOCKS * ROWS
        return functional.cross_entropy(model(images[begin : begin + ROWS]), labels[begin : begin + ROWS])

    run.train(model, loss_of)
    model.eval()
    with torch.no_grad():
        for begin in range(0, len(images), ROWS):
            scores = model(images[begin : begin + ROWS])
            run.tell(scores, scores.argmax(1) == labels[begin : begin + ROWS])


@loop
def slices_in_any_order(run: Run) -> None:
    """An autoencoder of blocks in an order by chance; what comes first divides, and the data is changed and replaced in between."""
    data = of_blocks(run, 2 * SIDE**2)
    model = run.up_model(nn.Sequential(nn.Linear(2 * SIDE**2, 16), nn.Tanh(), nn.Linear(16, 2 * SIDE**2)))
    held = [data]

    def loss_of(step: int) -> Tensor:
        begin = int(torch.randint(0, BLOCKS, (1,), generator=run.generator)) * ROWS
        if step == 5:
            held[0].add_(0.25)
        if step == 7:
            held[0] = held[0] * 0.5
        rows = held[0][begin : begin + ROWS]
        made = model(rows / 4)
        run.tell(made, (rows.square()).mean(1))
        return functional.mse_loss(made, rows)

    run.train(model, loss_of)


@loop
def blocks_of_text(run: Run) -> None:
    """Windows of a text that begin anywhere, put together; the next word of each is to be told."""
    text = labels_of_blocks(run, WORDS, LENGTH).flatten()[:8000].clone()
    embedding, head = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS)
    model = run.up_model(nn.ModuleList([embedding, head]))

    def loss_of(step: int) -> Tensor:
        begins = [int(begin) for begin in torch.randint(0, len(text) - LENGTH - 1, (ROWS,), generator=run.generator)]
        x = torch.stack([text[begin : begin + LENGTH] for begin in begins])
        y = torch.stack([text[begin + 1 : begin + 1 + LENGTH] for begin in begins])
        return functional.cross_entropy(head(embedding(x).tanh()).flatten(0, 1), y.flatten())

    run.train(model, loss_of)


@loop
def slices_of_words(run: Run) -> None:
    """Rows of a table of words, and of numbers beside them; every step also reads a part that is always the same."""
    words, numbers = labels_of_blocks(run, WORDS, LENGTH), of_blocks(run, LENGTH)
    fixed = run.up(run.numbers(STEPS, ROWS, 8))
    embedding, head = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS)
    model = run.up_model(nn.ModuleList([embedding, head]))

    def loss_of(step: int) -> Tensor:
        begin = step * 7 % (ROWS * (BLOCKS - 1))
        x, weights = words[begin : begin + ROWS], numbers[begin : begin + ROWS].abs()
        hidden = embedding(x).tanh() + fixed[:, None]
        scores = head(hidden[:, :-1]).flatten(0, 1)
        losses = functional.cross_entropy(scores, x[:, 1:].flatten(), reduction="none").view(ROWS, -1)
        run.tell(losses.mean(1))
        return (losses * weights[:, 1:]).mean()

    run.train(model, loss_of)
