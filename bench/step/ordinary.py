"""Nineteen programs as people write them, each by a step that is taken again and again: they read numbers, draw, and keep things."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from step.models import Step, Wrap, adamw, as_it_is, classifies

STEPS_OF_A_READ = 3
STEPS_OF_A_LINE = 50


def _perceptron(*widths: int, dropout: float = 0.0) -> nn.Sequential:
    layers: list[nn.Module] = []
    for given, made in itertools.pairwise(widths):
        layers += [nn.Linear(given, made), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
    return nn.Sequential(*layers[: -2 if dropout else -1])


def _descended(optimizer: torch.optim.Optimizer, loss: Tensor) -> Tensor:
    """The loss, after a step by its gradients."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def _fits(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, labels: Tensor, reads_every: int) -> Step:
    """A loop that reads its loss every so many steps."""
    numbers, take = itertools.count(1), classifies(model, optimizer, inputs, labels)

    def step() -> Tensor:
        loss = take()
        if next(numbers) % reads_every == 0:
            loss.item()
        return loss

    return step


def _classifier(device: str, wrap: Wrap, reads_every: int) -> Step:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.LayerNorm(512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 64)).to(device)
    inputs, labels = torch.randn(128, 256).to(device), torch.randint(0, 64, (128,)).to(device)
    return _fits(wrap(model), adamw(model.parameters()), inputs, labels, reads_every)


def read_each(device: str, wrap: Wrap = as_it_is) -> Step:
    """A perceptron with layer norm and dropout whose loss is read in each step."""
    return _classifier(device, wrap, 1)


def read_thirds(device: str, wrap: Wrap = as_it_is) -> Step:
    """The same, read in each third step."""
    return _classifier(device, wrap, STEPS_OF_A_READ)


def read_lines(device: str, wrap: Wrap = as_it_is) -> Step:
    """The same, read in each fiftieth step."""
    return _classifier(device, wrap, STEPS_OF_A_LINE)


def trainer(device: str, wrap: Wrap = as_it_is) -> Step:
    """BERT with two layers of width 128 as transformers' Trainer steps it: a loss that is looked at, clipped gradients, a schedule."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = {"vocab_size": 256, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
    model = BertForSequenceClassification(BertConfig(**sizes, num_labels=4)).to(device).train()
    wrapped, optimizer = wrap(model), adamw(model.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda number: 1 / (1 + 1e-3 * number))
    tokens, labels = torch.randint(0, 256, (8, 32)).to(device), torch.randint(0, 4, (8,)).to(device)
    total = torch.zeros((), device=device)

    def step() -> Tensor:
        loss: Tensor = wrapped(input_ids=tokens, labels=labels).loss
        loss.backward()
        if not (torch.isnan(loss) | torch.isinf(loss)).item():
            total.add_(loss.detach())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def averaged(device: str, wrap: Wrap = as_it_is) -> Step:
    """A convnet with clipped gradients, a cosine schedule, and an exponential average of its weights."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.SiLU(), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(16 * 64, 10))
    model = nn.Sequential(*layers).to(device)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99))
    wrapped, optimizer = wrap(model), torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000)
    images, labels = torch.randn(16, 3, 32, 32).to(device), torch.randint(0, 10, (16,)).to(device)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(wrapped(images), labels, label_smoothing=0.1)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        average.update_parameters(model)
        return loss.detach()

    return step


def evaluation(device: str, wrap: Wrap = as_it_is) -> Step:
    """Four batches without gradients, and their accuracy, which is read."""
    torch.manual_seed(0)
    model = wrap(_perceptron(64, 256, 256, 10).to(device).eval())
    batches = [(torch.randn(128, 64).to(device), torch.randint(0, 10, (128,)).to(device)) for _ in range(4)]

    def step() -> Tensor:
        with torch.no_grad():
            right = torch.stack([(model(inputs).argmax(1) == labels).sum() for inputs, labels in batches]).sum()
        right.item()
        return right

    return step


def reinforce(device: str, wrap: Wrap = as_it_is) -> Step:
    """Policy gradients: actions are drawn on the device and taken on the host, which gives the rewards."""
    torch.manual_seed(0)
    model = _perceptron(16, 64, 64, 4).to(device)
    wrapped, optimizer = wrap(model), adamw(model.parameters())
    states = torch.randn(64, 16).to(device)

    def step() -> Tensor:
        policy = torch.distributions.Categorical(logits=wrapped(states))
        actions = policy.sample()
        rewards = (actions.cpu() % 2).float().to(device)
        loss = -(policy.log_prob(actions) * (rewards - rewards.mean())).mean() - 0.01 * policy.entropy().mean()
        return _descended(optimizer, loss)

    return step


def q_learning(device: str, wrap: Wrap = as_it_is) -> Step:
    """Deep Q-learning from a buffer on the device, with a target network that follows."""
    torch.manual_seed(0)
    model, target = _perceptron(8, 128, 128, 4).to(device), _perceptron(8, 128, 128, 4).to(device)
    wrapped, optimizer = wrap(model), adamw(model.parameters())
    before, after, rewards = torch.randn(4096, 8).to(device), torch.randn(4096, 8).to(device), torch.randn(4096).to(device)
    actions = torch.randint(0, 4, (4096,)).to(device)

    def step() -> Tensor:
        taken = torch.randint(0, 4096, (64,), device=device)
        with torch.no_grad():
            wanted = rewards[taken] + 0.99 * target(after[taken]).max(1).values
        found = wrapped(before[taken]).gather(1, actions[taken][:, None])[:, 0]
        loss = functional.smooth_l1_loss(found, wanted)
        _descended(optimizer, loss)
        with torch.no_grad():
            for one, other in zip(target.parameters(), model.parameters(), strict=True):
                one.lerp_(other, 0.005)
        model(before[:1]).argmax().item()  # the next action
        return loss.detach()

    return step


def proximal(device: str, wrap: Wrap = as_it_is) -> Step:
    """Proximal policy optimisation: four shuffled quarters of a rollout."""
    torch.manual_seed(0)
    actor, critic = _perceptron(16, 64, 64, 4).to(device), _perceptron(16, 64, 64, 1).to(device)
    acts, rates = wrap(actor), wrap(critic)
    optimizer = adamw([*actor.parameters(), *critic.parameters()])
    states, actions = torch.randn(256, 16).to(device), torch.randint(0, 4, (256,)).to(device)
    gains, returns = torch.randn(256).to(device), torch.randn(256).to(device)
    with torch.no_grad():
        old = torch.distributions.Categorical(logits=actor(states)).log_prob(actions)

    def step() -> Tensor:
        for part in torch.randperm(256).to(device).chunk(4):
            policy = torch.distributions.Categorical(logits=acts(states[part]), validate_args=False)
            ratio = (policy.log_prob(actions[part]) - old[part]).exp()
            surrogate = torch.min(ratio * gains[part], ratio.clamp(0.8, 1.2) * gains[part]).mean()
            loss = functional.mse_loss(rates(states[part])[:, 0], returns[part]) - surrogate - 0.01 * policy.entropy().mean()
            _descended(optimizer, loss)
        return loss.detach()

    return step


def autoencoder(device: str, wrap: Wrap = as_it_is) -> Step:
    """A variational autoencoder, whose two losses are read together."""
    torch.manual_seed(0)
    inward, outward = _perceptron(196, 256, 32).to(device), _perceptron(16, 256, 196).to(device)
    encodes, decodes = wrap(inward), wrap(outward)
    optimizer, images = adamw([*inward.parameters(), *outward.parameters()]), torch.rand(64, 196).to(device)

    def step() -> Tensor:
        mean, spread = encodes(images).chunk(2, 1)
        drawn = mean + torch.randn_like(mean) * (0.5 * spread).exp()
        likely = functional.binary_cross_entropy_with_logits(decodes(drawn), images, reduction="sum") / 64
        divergence = -0.5 * (1 + spread - mean.square() - spread.exp()).sum() / 64
        _descended(optimizer, likely + divergence)
        torch.stack([likely.detach(), divergence.detach()]).tolist()
        return likely.detach()

    return step


def adversaries(device: str, wrap: Wrap = as_it_is) -> Step:
    """A generator and a discriminator by turns."""
    torch.manual_seed(0)
    maker, judge = _perceptron(32, 128, 128, 64).to(device), _perceptron(64, 128, 128, 1).to(device)
    makes, judges = wrap(maker), wrap(judge)
    optimizers = [torch.optim.Adam(model.parameters(), 2e-4, betas=(0.5, 0.999)) for model in (maker, judge)]
    real, yes, no = torch.randn(64, 64).to(device), torch.ones(64, 1).to(device), torch.zeros(64, 1).to(device)

    def step() -> Tensor:
        made = makes(torch.randn(64, 32, device=device))
        optimizers[1].zero_grad()
        loss = functional.binary_cross_entropy_with_logits
        (loss(judges(real), yes) + loss(judges(made.detach()), no)).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        fooled = loss(judges(made), yes)
        fooled.backward()
        optimizers[0].step()
        return fooled.detach()

    return step


def contrastive(device: str, wrap: Wrap = as_it_is) -> Step:
    """Two views of each row, which are to be each other's nearest."""
    torch.manual_seed(0)
    model = _perceptron(128, 256, 64, dropout=0.1).to(device)
    wrapped, optimizer = wrap(model), adamw(model.parameters())
    rows, own = torch.randn(64, 128).to(device), torch.arange(64).to(device)

    def step() -> Tensor:
        views = [functional.normalize(wrapped(rows + 0.1 * torch.randn_like(rows)), dim=1) for _ in range(2)]
        loss = functional.cross_entropy(views[0] @ views[1].T / 0.1, own)
        return _descended(optimizer, loss)

    return step


def distillation(device: str, wrap: Wrap = as_it_is) -> Step:
    """A small network follows a large one."""
    torch.manual_seed(0)
    teacher, student = _perceptron(64, 512, 512, 10).to(device).eval(), _perceptron(64, 64, 10).to(device)
    wrapped, optimizer, rows = wrap(student), adamw(student.parameters()), torch.randn(64, 64).to(device)

    def step() -> Tensor:
        with torch.no_grad():
            wanted = (teacher(rows) / 2).softmax(1)
        loss = functional.kl_div((wrapped(rows) / 2).log_softmax(1), wanted, reduction="batchmean")
        return _descended(optimizer, loss)

    return step


def cells(device: str, wrap: Wrap = as_it_is) -> Step:
    """A GRU cell over sixteen moments, in a Python loop."""
    torch.manual_seed(0)
    cell, last = nn.GRUCell(32, 64).to(device), nn.Linear(64, 8).to(device)
    wrapped, optimizer = wrap(cell), adamw([*cell.parameters(), *last.parameters()])
    inputs, labels = torch.randn(16, 32, 32).to(device), torch.randint(0, 8, (32,)).to(device)

    def step() -> Tensor:
        state = torch.zeros(32, 64, device=device)
        for moment in inputs:
            state = wrapped(moment, state)
        loss = functional.cross_entropy(last(state), labels)
        return _descended(optimizer, loss)

    return step


def graphs(device: str, wrap: Wrap = as_it_is) -> Step:
    """Two rounds of messages along the edges of a graph."""
    torch.manual_seed(0)
    first, second = nn.Linear(32, 64).to(device), nn.Linear(64, 8).to(device)
    layers, optimizer = (wrap(first), wrap(second)), adamw([*first.parameters(), *second.parameters()])
    nodes, labels = torch.randn(500, 32).to(device), torch.randint(0, 8, (500,)).to(device)
    sources, targets = torch.randint(0, 500, (2, 3000)).to(device)
    degrees = torch.bincount(targets, minlength=500).clamp(min=1)[:, None]

    def step() -> Tensor:
        held = nodes
        for layer in layers:
            made = layer(held)
            held = functional.relu(torch.zeros_like(made).index_add(0, targets, made[sources]) / degrees)
        loss = functional.cross_entropy(held, labels)
        return _descended(optimizer, loss)

    return step


def factors(device: str, wrap: Wrap = as_it_is) -> Step:
    """Ratings by the product of two embeddings, of a batch that is drawn on the host."""
    torch.manual_seed(0)
    people, things = nn.Embedding(2000, 32).to(device), nn.Embedding(5000, 32).to(device)
    finds, optimizer = (wrap(people), wrap(things)), adamw([*people.parameters(), *things.parameters()])

    def step() -> Tensor:
        ratings = torch.rand(256).to(device)
        found = (finds[0](torch.randint(0, 2000, (256,)).to(device)) * finds[1](torch.randint(0, 5000, (256,)).to(device))).sum(1)
        loss = functional.mse_loss(found, ratings)
        return _descended(optimizer, loss)

    return step


def sampler(device: str, wrap: Wrap = as_it_is) -> Step:
    """Ten steps from noise to an image, without gradients, which comes to the host."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 24, 3, padding=1), nn.GroupNorm(4, 24), nn.SiLU(), nn.Conv2d(24, 3, 3, padding=1))
    model, noises = wrap(nn.Sequential(*layers).to(device).eval()), torch.linspace(1.0, 0.05, 10).tolist()

    def step() -> Tensor:
        images = torch.randn(4, 3, 32, 32, device=device)
        with torch.no_grad():
            for now, then in itertools.pairwise([*noises, 0.0]):
                images = images + (then - now) * model(images) + 0.1 * then * torch.randn_like(images)
        images.clamp(-1, 1).cpu()
        return images

    return step


def chains(device: str, wrap: Wrap = as_it_is) -> Step:
    """Hamiltonian Monte Carlo of a regression, 64 chains at once: five leapfrog steps, and a choice by chance."""
    torch.manual_seed(0)
    rows, wanted = torch.randn(200, 16).to(device), torch.randn(200, 1).to(device)
    state = [torch.zeros(16, 64, device=device)]

    def energy(weights: Tensor) -> Tensor:
        return 0.5 * (rows @ weights - wanted).square().sum(0) + 0.5 * weights.square().sum(0)

    def slope(weights: Tensor) -> Tensor:
        return rows.T @ (rows @ weights - wanted) + weights

    def step() -> Tensor:
        old, momentum = state[0], torch.randn_like(state[0])
        new, begin = old, energy(old) + 0.5 * momentum.square().sum(0)
        for _ in range(5):
            momentum = momentum - 0.005 * slope(new)
            new = new + 0.01 * momentum
            momentum = momentum - 0.005 * slope(new)
        end = energy(new) + 0.5 * momentum.square().sum(0)
        state[0] = torch.where(torch.rand(64, device=device) < (begin - end).exp(), new, old)
        return state[0]

    return step


def clusters(device: str, wrap: Wrap = as_it_is) -> Step:
    """A round of k-means, with the shift that tells when to stop."""
    torch.manual_seed(0)
    rows = torch.randn(2000, 16).to(device)
    centres = [rows[:32].clone()]

    def step() -> Tensor:
        nearest = torch.cdist(rows, centres[0]).argmin(1)
        counts = torch.bincount(nearest, minlength=32).clamp(min=1)[:, None]
        moved = torch.zeros_like(centres[0]).index_add_(0, nearest, rows) / counts
        shift = (moved - centres[0]).norm()
        centres[0] = moved
        shift.item()
        return shift

    return step


MAKERS: tuple[Callable[..., Step], ...] = (
    *(read_each, read_thirds, read_lines, trainer, averaged, evaluation, reinforce, q_learning, proximal, autoencoder),
    *(adversaries, contrastive, distillation, cells, graphs, factors, sampler, chains, clusters),
)
ORDINARY: dict[str, Callable[..., Any]] = {make.__name__: make for make in MAKERS}
