"""Loops whose data say where things go: graphs, experts, tables, mixtures of rows (``divided_loops.py``)."""

from __future__ import annotations

import torch
from divided_loops import ROWS, STEPS, Run, loop
from torch import Tensor, nn
from torch.nn import functional

FEATURES = 8
NODES = 12
EDGES = 36
WORDS = 29
EXPERTS = 4


@loop
def graph_networks(run: Run) -> None:
    """Messages along edges are added, averaged, and their largest taken; nodes without edges, edges twice."""
    embed, message, head = (run.up_model(nn.Linear(FEATURES, FEATURES)) for _ in range(3))

    def loss_of(step: int) -> Tensor:
        nodes = run.up(run.numbers(step, NODES, FEATURES))
        edges = run.up(torch.stack((run.classes(step, NODES, EDGES), run.whole_numbers(NODES, EDGES))))
        weights = run.up(run.numbers(step, EDGES, 1))
        hidden = embed(nodes).tanh()
        sent = message(hidden[edges[0]]) * weights
        target = edges[1][:, None].expand_as(sent)
        added = torch.zeros_like(hidden).index_add(0, edges[1], sent)
        mean = torch.zeros_like(hidden).scatter_reduce(0, target, sent, "mean", include_self=False)
        largest = hidden.scatter_reduce(0, target, sent, "amax")
        least = torch.index_reduce(hidden.detach(), 0, edges[1], sent.detach(), "amin")
        product = torch.index_reduce(hidden.detach(), 0, edges[1], sent.detach(), "mean")
        degree = torch.zeros(NODES, device=nodes.device).scatter_add_(0, edges[1], torch.ones(EDGES, device=nodes.device))
        weighed = (sent.sum(1) - torch.zeros(NODES, device=nodes.device).scatter_reduce(0, edges[1], sent.sum(1), "amax")[edges[1]]).exp()
        share = weighed / torch.zeros(NODES, device=nodes.device).index_add(0, edges[1], weighed)[edges[1]]
        attended = torch.zeros_like(hidden).index_add(0, edges[1], share[:, None] * hidden[edges[0]])
        run.tell(degree, least, product, share, added)
        found = head(hidden + added / degree.clamp(min=1)[:, None] + mean + largest + attended)
        return found.square().mean() + found.mean(0).tanh().sum() + (found * nodes).sum(1).sigmoid().mean()

    run.train(nn.ModuleList([embed, message, head]), loss_of)


@loop
def pooled_graphs(run: Run) -> None:
    """Nodes of several graphs in one batch, which a vector of numbers tells apart, and dense adjacencies."""
    embed, head = run.up_model(nn.Linear(FEATURES, FEATURES)), run.up_model(nn.Linear(3 * FEATURES, 2))

    def loss_of(step: int) -> Tensor:
        nodes, owner = run.up(run.numbers(step, NODES, FEATURES)), run.up(run.classes(step, 4, NODES).sort().values)
        adjacency = run.up((run.drawn(NODES, NODES) > 0.5).double())
        adjacency = adjacency + adjacency.t() + torch.eye(NODES, device=nodes.device)
        scale = adjacency.sum(1).rsqrt()
        hidden = torch.relu(scale[:, None] * adjacency * scale[None] @ embed(nodes))
        size = torch.zeros(4, device=nodes.device).index_add_(0, owner, torch.ones(NODES, device=nodes.device))
        place = owner[:, None].expand_as(hidden)
        total = torch.zeros(4, FEATURES, device=nodes.device).scatter_add(0, place, hidden)
        largest = torch.zeros(4, FEATURES, device=nodes.device).scatter_reduce(0, place, hidden, "amax", include_self=False)
        found = head(torch.cat((total, total / size.clamp(min=1)[:, None], largest), 1))
        run.tell(size, found, hidden.index_select(0, owner), torch.segment_reduce(nodes, "mean", lengths=size.long()))
        return functional.cross_entropy(found, torch.arange(4, device=nodes.device) % 2)

    run.train(nn.ModuleList([embed, head]), loss_of)


@loop
def experts_by_routes(run: Run) -> None:
    """Each row goes to the two best of four experts, by masks, by lists of rows and by gathered weights; loads are balanced."""
    router = run.up_model(nn.Linear(FEATURES, EXPERTS))
    experts = run.up_model(nn.ModuleList([nn.Linear(FEATURES, FEATURES) for _ in range(EXPERTS)]))

    def loss_of(step: int) -> Tensor:
        x, y = run.up(run.numbers(step, ROWS, FEATURES)), run.up(run.numbers(step, ROWS, FEATURES))
        chances = (router(x) + 1e-3 * run.up(run.drawn(ROWS, EXPERTS))).softmax(1)
        weights, chosen = chances.topk(2, 1)
        weights = weights / weights.sum(1, keepdim=True)
        found, masked = torch.zeros_like(x), torch.zeros_like(x)
        for number, expert in enumerate(experts):
            rows, place = (chosen == number).nonzero(as_tuple=True)
            found = found.index_add(0, rows, expert(x.index_select(0, rows)) * weights[rows, place, None])
            mask = (chosen == number).any(1)
            masked[mask] = masked[mask] + expert(x[mask]).detach()
        stacked = torch.stack([expert(x) for expert in experts], 1)
        gathered = (stacked.gather(1, chosen[..., None].expand(-1, -1, FEATURES)) * weights[..., None]).sum(1)
        load = functional.one_hot(chosen, EXPERTS).double().sum(1).mean(0)
        rank = functional.one_hot(chosen[:, 0], EXPERTS).cumsum(0).gather(1, chosen[:, :1])
        run.tell(load, found, gathered, masked, rank, torch.bincount(chosen.flatten(), minlength=EXPERTS))
        kept = torch.where(rank <= 4, gathered, 0.0)
        balance = EXPERTS * (load * chances.mean(0)).sum() + router(x).logsumexp(1).square().mean()
        return functional.mse_loss(found, y) + kept.square().mean() + balance

    run.train(nn.ModuleList([router, experts]), loss_of)


@loop
def tables_of_embeddings(run: Run) -> None:
    """Tables with padding, bags of several modes, weights and offsets, a matrix of factors, gradients by frequency."""
    words = run.up_model(nn.Embedding(WORDS, FEATURES, padding_idx=0))
    bags = run.up_model(nn.ModuleList([nn.EmbeddingBag(WORDS, FEATURES, mode=mode, padding_idx=3) for mode in ("sum", "mean", "max")]))
    counted, user = run.up_model(nn.Embedding(WORDS, FEATURES, scale_grad_by_freq=True)), run.up_model(nn.Embedding(WORDS, FEATURES))

    def loss_of(step: int) -> Tensor:
        x, weights = run.up(run.classes(step, WORDS, ROWS, 5)), run.up(run.numbers(step, ROWS, 5))
        who, rating = run.up(run.classes(step, WORDS, ROWS)), run.up(run.numbers(step, ROWS))
        offsets = run.up(torch.arange(ROWS) * 5)
        looked = words(x)
        length = (x != 0).sum(1, keepdim=True).clamp(min=1)
        mean = looked.sum(1) / length
        pooled = [bag(x) for bag in bags] + [bags[0](x, per_sample_weights=weights), bags[1](x.flatten(), offsets)]
        factors = (user(who) * counted(who)).sum(1) + user.weight[who, 0]
        run.tell(length, *pooled)
        near = looked[:, :-1] * looked[:, 1:]
        return functional.mse_loss(factors, rating) + mean.square().mean() + sum(one.tanh().mean() for one in pooled) + near.mean()

    run.train(nn.ModuleList([words, bags, counted, user]), loss_of)


@loop
def mixtures_of_rows(run: Run) -> None:
    """Mixup by a roll, a flip and a permutation of the batch, CutMix, random masks that the host draws; a last smaller batch."""
    model = run.up_model(nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)))

    def loss_of(step: int) -> Tensor:
        rows = ROWS if step < STEPS - 1 else 7
        x, y = run.up(run.numbers(step, rows, 2, 6, 6)), run.up(run.classes(step, 3, rows))
        part = 0.1 * (step + 1)
        order = run.up(torch.randperm(rows, generator=run.generator))
        loss = torch.zeros((), device=x.device)
        for other, label in ((x.roll(1, 0), y.roll(1, 0)), (x.flip(0), y.flip(0)), (x[order], y[order])):
            scores = model(part * x + (1 - part) * other)
            loss = loss + part * functional.cross_entropy(scores, y) + (1 - part) * functional.cross_entropy(scores, label)
        cut = x.clone()
        cut[:, :, 1:4, 2:5] = x[order][:, :, 1:4, 2:5]
        erased = x.masked_fill(run.up(run.drawn(rows, 1, 6, 6) > 0.7), 0.0)
        mirrored = torch.where(run.up(run.drawn(rows) > 0)[:, None, None, None], x.flip(3), x)
        halves = torch.cat((x[rows // 2 :], x[: rows // 2]))
        soft = functional.one_hot(y, 3).double().lerp(functional.one_hot(y[order], 3).double(), 0.25)
        run.tell(cut, halves, soft, x[::2], x.view(rows, -1).t())
        loss = loss + functional.cross_entropy(model(cut), soft) + model(erased).square().mean()
        return loss + (model(mirrored) - model(halves)).abs().mean()

    run.train(model, loss_of)


@loop
def values_of_actions(run: Run) -> None:
    """Double Q-learning with a target network that follows, priorities of rows and a memory of rows that is written to."""
    net, target = run.up_model(nn.Linear(FEATURES, 3)), run.up_model(nn.Linear(FEATURES, 3))
    target.load_state_dict(net.state_dict())
    memory = run.up(torch.zeros(4 * ROWS, FEATURES))

    def loss_of(step: int) -> Tensor:
        x, after = run.up(run.numbers(step, ROWS, FEATURES)), run.up(run.numbers(step, ROWS, FEATURES))
        actions, rewards = run.up(run.classes(step, 3, ROWS, 1)), run.up(run.numbers(step, ROWS, 1))
        ended, weights = run.up(run.drawn(ROWS, 1) > 0.5), run.up(run.numbers(step, ROWS, 1).abs())
        first = ROWS * (step % 4)
        memory[first : first + ROWS] = x
        memory.index_copy_(0, run.up(torch.arange(ROWS) * 2), after)
        with torch.no_grad():
            best = net(after).argmax(1, keepdim=True)
            wanted = rewards + 0.9 * target(after).gather(1, best) * (~ended)
            for one, other in zip(target.parameters(), net.parameters(), strict=True):
                one.lerp_(other, 0.1)
        found = net(x).gather(1, actions)
        priorities = (found - wanted).abs().detach().squeeze(1)
        run.tell(memory, priorities, priorities / priorities.sum().clamp(min=1e-9), priorities.cumsum(0))
        return (weights * functional.smooth_l1_loss(found, wanted, reduction="none")).mean() + 1e-3 * net(memory).logsumexp(1).mean()

    run.train(net, loss_of)


@loop
def sequences_that_are_packed(run: Run) -> None:
    """Rows of several lengths one after the other, spans between them, pointers into each row, and pairs of rows."""
    model = run.up_model(nn.Linear(FEATURES, FEATURES))

    def loss_of(step: int) -> Tensor:
        x, lengths = run.up(run.numbers(step, ROWS, 5, FEATURES)), run.up(1 + run.classes(step, 5, ROWS))
        hidden = model(x)
        mask = torch.arange(5, device=x.device) < lengths[:, None]
        packed = hidden[mask]
        last = hidden[torch.arange(ROWS, device=x.device), lengths - 1]
        masked = hidden.masked_fill(~mask[..., None], -1e9).amax(1)
        mean = (hidden * mask[..., None]).sum(1) / lengths[:, None]
        pointers = (hidden[:, :, 0].masked_fill(~mask, -float("inf"))).log_softmax(1)
        repeated = last.repeat_interleave(3, 0)
        grid = last[:, None] - last[None]
        run.tell(packed, masked, mask.sum(), repeated, functional.pad(x, (1, 2, 0, 1)), torch.cumsum(lengths, 0), x.unfold(1, 2, 1).sum(-1))
        losses = packed.square().mean(), functional.nll_loss(pointers, lengths - 1), grid.abs().mean(), repeated.tanh().mean()
        rest = hidden.triu().mean() + hidden.movedim(1, 0).reshape(-1, FEATURES)[:ROWS].sum()
        return sum(losses, mean.mean()) + 1e-3 * masked.clamp(-10, 10).sum() + rest

    run.train(model, loss_of)
