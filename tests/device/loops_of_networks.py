"""Loops of networks: norms, recurrences, attention, images, averages of weights, gradients of each row (``divided_loops.py``)."""

from __future__ import annotations

import copy
from functools import partial

import torch
from divided_loops import ROWS, STEPS, Run, loop
from torch import Tensor, nn
from torch.nn import functional

FEATURES = 8
WORDS = 29
LENGTH = 6


@loop
def batch_norms(run: Run) -> None:
    """In training and, between the steps, in evaluation; without running statistics, without weights, cumulative; a last smaller batch."""
    first = nn.Sequential(nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU())
    second = nn.Sequential(nn.Conv2d(6, 6, 3), nn.BatchNorm2d(6, affine=False, momentum=None), nn.ReLU(), nn.Flatten())
    last = nn.Sequential(nn.Linear(96, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.ReLU(), nn.Linear(8, 3))
    model = run.up_model(nn.Sequential(first, second, last))

    def loss_of(step: int) -> Tensor:
        rows = ROWS if step < STEPS - 1 else 7
        x, y = run.up(run.numbers(step, rows, 2, 8, 8) + 0.1 * run.drawn(rows, 2, 8, 8)), run.up(run.classes(step, 3, rows))
        with torch.no_grad():
            run.tell(model.eval()(x))
        return functional.cross_entropy(model.train()(x), y)

    run.train(model, loss_of)


@loop
def batch_norms_of_huge_numbers(run: Run) -> None:
    """Variances of a few steps are infinite, and what is kept of them; ordinary batches follow."""
    norms = run.up_model(nn.ModuleList([nn.BatchNorm1d(FEATURES, momentum=momentum) for momentum in (0.1, 1.0, 0.0)]))
    for step in range(STEPS):
        x = run.numbers(step, ROWS, FEATURES)
        x = run.up(x * 1e200 if step in (3, 4) else x + 1e8 if step == 6 else x).requires_grad_()
        found = torch.stack([norm(x) for norm in norms])
        (gradient,) = torch.autograd.grad((found * found.detach().cos()).sum(), x)
        run.tell(found.nan_to_num().clamp(-9, 9).round(decimals=5), gradient.isfinite().sum(1))
        with torch.no_grad():
            run.tell(*(norm.eval()(x) for norm in norms))
        norms.train()
    run.keep(norms)


@loop
def weights_that_come_anew(run: Run) -> None:
    """All that a layer is given comes in each step, of 12 rows or channels each: none of it is the batch of another."""
    width = ROWS
    table = run.up_model(nn.Embedding(width, width))

    def loss_of(step: int) -> Tensor:
        x, y = run.up(run.numbers(step, ROWS, width)), run.up(run.classes(step, width, ROWS))
        square, line = run.up(run.drawn(width, width)), run.up(run.numbers(step, width))
        kernel, images = run.up(run.drawn(width, 2, 3, 3)), run.up(run.drawn(ROWS, 2, 5, 5))
        mean, variance, mask = run.up(run.drawn(width)), run.up(run.drawn(width).abs() + 0.1), run.up(run.drawn(ROWS, ROWS) > 0)
        hidden = functional.linear(x, square, line) + x @ square + torch.addmm(x, square, x) + line
        hidden = hidden / 50 + functional.batch_norm(x, mean, variance, line, mean) / 50 + functional.embedding(y, square) + table(y)
        hidden = functional.layer_norm(hidden, (width,), line, mean) + functional.layer_norm(x * line[:, None], (width,)) + x * line
        pixels = functional.conv2d(images, kernel, line, padding=1)
        pixels = functional.group_norm(pixels, 3, line, mean) + functional.batch_norm(pixels, None, None, line, mean, training=True)
        attended = functional.scaled_dot_product_attention(hidden, hidden, square, attn_mask=mask.fill_diagonal_(True))
        order = line.sort().values
        run.tell(
            torch.bucketize(x, order),
            torch.searchsorted(order, mean),
            torch.cdist(x, square),
            x.gather(0, y[:, None]),
            square[y],
            square[:, y],
        )
        run.tell(
            torch.where(mask, x, square), torch.outer(line, mean), line @ square, square @ line, torch.lerp(x, square, line), line.dot(mean)
        )
        run.tell(torch.any(mask, dim=()), torch.all(mask, dim=(), keepdim=True), torch.all(mask, dim=(0,)), x.amax(()), mask.sum(()))
        run.tell(
            torch.einsum("ij,jk,k->i", x, square, line),
            torch.cat((x, square)),
            torch.cat((x, square), 1),
            x.cov(),
            functional.prelu(x, line),
        )
        scores = hidden + attended + pixels.mean((2, 3))
        losses = (
            functional.cross_entropy(scores, y, variance),
            functional.cross_entropy(scores, y, variance, reduction="sum", ignore_index=1) / 9,
        )
        return sum(losses, functional.binary_cross_entropy_with_logits(scores, x.sigmoid(), weight=variance, pos_weight=variance))

    run.train(table, loss_of)


@loop
def sequences_with_time_in_front(run: Run) -> None:
    """Of 12 moments: what is uploaded is divided by moments, which a recurrent layer may not be."""
    layer = run.up_model(nn.GRU(FEATURES, 6))
    head, convolution = run.up_model(nn.Linear(6, 3)), run.up_model(nn.Conv1d(6, 3, 3))

    def loss_of(step: int) -> Tensor:
        x, y = run.up(run.numbers(step, 12, 4, FEATURES)), run.up(run.classes(step, 3, 12, 4))
        found, last = layer(x)
        scores = head(found)
        later = functional.mse_loss(found[1:], found[:-1]) + convolution(found.permute(1, 2, 0)).square().mean()
        run.tell(last, scores.softmax(2), scores.cumsum(0), x.transpose(0, 1).flatten(1), x.diff(dim=0), x.mean(0), x.sum((0, 2)))
        return functional.cross_entropy(scores.flatten(0, 1), y.flatten()) + later + scores[-1].logsumexp(1).mean()

    run.train(nn.ModuleList([layer, head, convolution]), loss_of)


@loop
def norms_of_each_row(run: Run) -> None:
    """Of layers, groups, instances, root mean squares, neighbours, spectra and weights."""
    images = nn.Sequential(nn.Conv2d(2, 6, 3), nn.GroupNorm(3, 6), nn.ELU(), nn.InstanceNorm2d(6, affine=True, track_running_stats=True))
    middle = nn.Sequential(nn.LocalResponseNorm(3), nn.Flatten(), nn.LayerNorm(54))
    last = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(54, 8)), nn.RMSNorm(8), nn.Mish(), nn.Linear(8, 3))
    model = run.up_model(nn.Sequential(images, middle, last))

    def loss_of(step: int) -> Tensor:
        x, y = run.up(run.numbers(step, ROWS, 2, 5, 5) + 0.1 * run.drawn(ROWS, 2, 5, 5)), run.up(run.numbers(step, ROWS, 3))
        found = model(x)
        run.tell(functional.layer_norm(x, (5, 5)), functional.instance_norm(x), functional.group_norm(x, 2))
        return functional.mse_loss(found, y)

    run.train(model, loss_of)


@loop
def dropouts(run: Run) -> None:
    """With one seed; of elements, channels, and none: as one device draws them."""
    model = run.up_model(nn.Sequential(nn.Linear(FEATURES, 24), nn.ReLU(), nn.Dropout(0.3), nn.Linear(24, 12), nn.Unflatten(1, (4, 3))))
    head = run.up_model(nn.Sequential(nn.Dropout1d(0.5), nn.Flatten(), nn.AlphaDropout(0.2), nn.Linear(12, 3), nn.Dropout(0.0)))
    torch.manual_seed(7)

    def loss_of(step: int) -> Tensor:
        x, y = run.up(run.numbers(step, ROWS, FEATURES)), run.up(run.numbers(step, ROWS, 3))
        noise = torch.empty_like(x).bernoulli_(0.8)
        return functional.mse_loss(head(model(x * noise)), y)

    run.train(nn.ModuleList([model, head]), loss_of)


@loop
def recurrent_layers(run: Run) -> None:
    """Of one and two directions, with the batch first and in the middle, a state of the batch, cells by hand, and packed rows."""
    several = (nn.LSTM(FEATURES, 6, batch_first=True), nn.GRU(6, 5, bidirectional=True), nn.RNN(10, 4, num_layers=2))
    layers = run.up_model(nn.ModuleList(several))
    cell, start = run.up_model(nn.GRUCell(4, 4)), run.up_model(nn.Linear(FEATURES, 6))

    def loss_of(step: int) -> Tensor:
        x, y = run.up(run.numbers(step, ROWS, 5, FEATURES)), run.up(run.numbers(step, ROWS, 4))
        state = start(x[:, 0])[None]
        long, (hidden, _) = layers[0](x, (state, torch.zeros_like(state)))
        both, last = layers[1](long.transpose(0, 1))
        found, _ = layers[2](both)
        lengths = 1 + run.whole_numbers(5, ROWS)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        padded, _ = nn.utils.rnn.pad_packed_sequence(layers[0](packed)[0], batch_first=True)
        run.tell(hidden, last, padded)
        end = found[-1]
        for moment in found:
            end = cell(moment, end)
        return functional.mse_loss(end, y) + padded.square().mean()

    run.train(nn.ModuleList([layers, cell, start]), loss_of)


@loop
def images_down_and_up(run: Run) -> None:
    """Pooling of all kinds and back, resizing, transposed and grouped convolutions, padding, shuffled pixels, sampling by grids."""
    grouped = nn.Conv2d(4, 4, 3, padding=1, groups=4)
    down = run.up_model(nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"), nn.SiLU(), grouped))
    up = run.up_model(nn.Sequential(nn.ConvTranspose2d(4, 8, 2, stride=2), nn.ReLU(), nn.PixelShuffle(2), nn.Conv2d(2, 2, 1)))
    turn = run.up_model(nn.Linear(4, 6))
    line = run.up_model(nn.Conv1d(2, 3, 3, dilation=2))

    def loss_of(step: int) -> Tensor:
        x, y = run.up(run.numbers(step, ROWS, 2, 8, 8)), run.up(run.numbers(step, ROWS, 2, 16, 16))
        hidden = down(x)
        pooled, places = functional.max_pool2d(hidden, 2, return_indices=True)
        unpooled = functional.max_unpool2d(pooled, places, 2)
        smaller = functional.avg_pool2d(unpooled, 2) + functional.adaptive_avg_pool2d(hidden, 4) + functional.adaptive_max_pool2d(hidden, 4)
        found = up(smaller)
        modes = ("nearest", "bilinear", "bicubic", "area", "nearest-exact")
        resized = sum(functional.interpolate(found, size=(12, 12), mode=mode).square().mean() for mode in modes)
        grid = functional.affine_grid(turn(smaller.mean((2, 3))).view(-1, 2, 3), [ROWS, 2, 6, 6], align_corners=False)
        sampled = functional.grid_sample(x, grid, align_corners=False)
        columns = functional.fold(functional.unfold(hidden, 3, padding=1), (8, 8), 3, padding=1)
        bordered = functional.pad(hidden, (1, 2, 1, 1), mode="replicate").mean() + functional.pad(hidden, (1, 1, 2, 0)).square().mean()
        run.tell(places, sampled, functional.pixel_unshuffle(x, 2), functional.lp_pool2d(x.abs() + 0.1, 2.0, 2))
        flat = line(x.flatten(2)).abs().amax(2).mean() + functional.max_pool1d(x.flatten(2), 3).mean()
        rest = sampled.square().mean() + columns.square().mean() + bordered + flat
        return functional.mse_loss(found, functional.interpolate(y, size=found.shape[2:])) + resized + rest

    run.train(nn.ModuleList([down, up, turn, line]), loss_of)


@loop
def attention_with_padding(run: Run) -> None:
    """Keys of each row that do not count, causal masks, biases of positions, cross attention, the fused function and the layers."""
    embed, attend = run.up_model(nn.Embedding(WORDS, FEATURES)), run.up_model(nn.MultiheadAttention(FEATURES, 2, batch_first=True))
    layer = run.up_model(nn.TransformerEncoderLayer(FEATURES, 2, 16, dropout=0.0, batch_first=True, norm_first=True))
    across = run.up_model(nn.TransformerDecoderLayer(FEATURES, 2, 16, dropout=0.0, batch_first=True))
    head, bias = run.up_model(nn.Linear(FEATURES, WORDS)), run.up_model(nn.Embedding(2 * LENGTH, 2))

    def loss_of(step: int) -> Tensor:
        words, lengths = run.up(run.classes(step, WORDS, ROWS, LENGTH)), run.up(1 + run.whole_numbers(LENGTH, ROWS))
        place = torch.arange(LENGTH, device=words.device)
        padding = place[None] >= lengths[:, None]
        causal = nn.Transformer.generate_square_subsequent_mask(LENGTH, device=words.device)
        hidden = embed(words)
        found, weights = attend(hidden, hidden, hidden, key_padding_mask=padding)
        heads = found.view(ROWS, LENGTH, 2, -1).transpose(1, 2)
        distance = bias(place[:, None] - place[None] + LENGTH).permute(2, 0, 1)[None]
        mask = (~padding)[:, None, None] & (causal == 0)
        fused = functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)
        causal_alone = functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        biased = ((heads @ heads.transpose(2, 3)) / 2 + distance).masked_fill(~mask, -torch.inf).softmax(3) @ heads
        joined = (fused + causal_alone + biased).transpose(1, 2).reshape(ROWS, LENGTH, -1)
        encoded = layer(joined, src_mask=causal, src_key_padding_mask=padding.double().masked_fill(padding, -torch.inf))
        decoded = across(hidden, encoded, tgt_mask=causal, memory_key_padding_mask=padding)
        labels = words.roll(-1, 1).masked_fill(padding, -100)
        run.tell(weights, padding.sum())
        return functional.cross_entropy(head(decoded).transpose(1, 2), labels)

    run.train(nn.ModuleList([embed, attend, layer, across, head, bias]), loss_of)


@loop
def tokens_of_one_sequence(run: Run) -> None:
    """Of a batch of one the devices share the tokens, and the heads of attention: fused weights, masks, grouped queries, another memory."""
    heads, width, length = 12, 24, 24
    embed, fused = run.up_model(nn.Embedding(WORDS, width)), run.up_model(nn.Linear(width, 3 * width))
    query, memory = run.up_model(nn.Linear(width, width, bias=False)), run.up_model(nn.Linear(width, 2 * width))
    layer = run.up_model(nn.TransformerEncoderLayer(width, heads, 16, dropout=0.0, batch_first=True))
    head = run.up_model(nn.Linear(width, WORDS))

    def loss_of(step: int) -> Tensor:
        words, kept = run.up(run.classes(step, WORDS, 1, length)), run.up(1 + run.whole_numbers(length, 1))
        hidden, other = embed(words), run.up(run.numbers(step, 1, 2 * length, width))
        mask = (torch.arange(length, device=words.device) < kept[:, None])[:, None, None]
        queries, keys, values = fused(hidden).view(1, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
        own = query(hidden).view(1, length, heads, -1).transpose(1, 2)
        others = memory(other).view(1, 2 * length, 2, heads, -1).permute(2, 0, 3, 1, 4)
        attend = functional.scaled_dot_product_attention
        found = attend(queries, keys, values, is_causal=True) + attend(own, keys, values, attn_mask=mask)
        found = found + attend(own, keys[:, :4], values[:, 4:8], enable_gqa=True) + attend(queries, others[0], others[1])
        found = found + (own @ keys.transpose(2, 3) / 2).masked_fill(~mask, -torch.inf).softmax(3) @ values
        encoded = layer(hidden + found.transpose(1, 2).reshape(1, length, width))
        run.tell(found, mask.sum())
        return functional.cross_entropy(head(encoded)[0], words[0].roll(-1, 0))

    run.train(nn.ModuleList([embed, fused, query, memory, layer, head]), loss_of)


@loop
def gradients_of_each_row(run: Run) -> None:
    """By `torch.func`: each row's gradient is clipped by itself; Jacobians, and products with second derivatives."""
    model = run.up_model(nn.Sequential(nn.Linear(FEATURES, 6), nn.Tanh(), nn.Linear(6, 3)))
    weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(torch.func.functional_call(model, weights, (x[None],)), y[None])

    def total(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(torch.func.functional_call(model, weights, (x,)), y)

    def scores(weights: dict[str, Tensor], row: Tensor) -> Tensor:
        return torch.func.functional_call(model, weights, (row[None],))[0]

    for step in range(STEPS):
        x, y = run.up(run.numbers(step, ROWS, FEATURES)), run.up(run.classes(step, 3, ROWS))
        each, losses = torch.func.vmap(torch.func.grad_and_value(loss), (None, 0, 0))(weights, x, y)
        norms = torch.stack([one.flatten(1).square().sum(1) for one in each.values()]).sum(0).sqrt()
        scale = (0.5 / norms.clamp(min=1e-9)).clamp(max=1)
        jacobian = torch.func.vmap(torch.func.jacrev(scores, argnums=1), (None, 0))(weights, x)
        _, forward = torch.func.jvp(partial(total, x=x, y=y), (weights,), (weights,))
        run.tell(losses, norms, jacobian, forward)
        weights = {name: weight - 0.1 * torch.einsum("r,r...->...", scale, each[name]) / ROWS for name, weight in weights.items()}
    run.weights += [weight.cpu() for weight in weights.values()]


@loop
def gradients_of_gradients(run: Run) -> None:
    """A critic whose gradients at mixtures of rows have a norm of one, against a generator, with two optimizers."""
    critic = run.up_model(nn.Sequential(nn.Linear(FEATURES, 12), nn.Softplus(), nn.Linear(12, 1)))
    maker = run.up_model(nn.Sequential(nn.Linear(4, 12), nn.LeakyReLU(0.1), nn.Linear(12, FEATURES)))
    own = torch.optim.Adam(maker.parameters(), 1e-2, eps=1e-3)

    def loss_of(step: int) -> Tensor:
        real, noise, part = run.up(run.numbers(step, ROWS, FEATURES)), run.up(run.drawn(ROWS, 4)), run.up(run.drawn(ROWS, 1).sigmoid())
        own.zero_grad()
        made = -critic(maker(noise)).mean()
        made.backward()
        own.step()
        critic.zero_grad()
        false = maker(noise).detach()
        mixed = (part * real + (1 - part) * false).requires_grad_()
        (gradient,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        run.tell(made, gradient)
        return critic(false).mean() - critic(real).mean() + 10 * (gradient.norm(2, 1) - 1).square().mean()

    run.train(critic, loss_of, torch.optim.RMSprop(critic.parameters(), 1e-3))
    run.keep(maker)


@loop
def gradients_that_are_gathered_and_clipped(run: Run) -> None:
    """Over three batches each, by norm, by value and each by its own; AdamW without lists, Adagrad, and weights that are tied."""
    model = run.up_model(nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.CELU(), nn.Linear(FEATURES, FEATURES)))
    model[2].weight = model[0].weight
    optimizers = [torch.optim.AdamW(model.parameters(), 1e-2, eps=1e-3, foreach=False), torch.optim.Adagrad(model.parameters(), 1e-2)]
    for step in range(2 * STEPS):
        x, y = run.up(run.numbers(step, ROWS, FEATURES)), run.up(run.numbers(step, ROWS, FEATURES))
        loss = functional.mse_loss(model(x), y) / 3
        loss.backward()
        run.tell(loss, model[0].weight.grad)
        if step % 3 < 2:
            continue
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5, norm_type=(2.0, 1.0, float("inf"))[step // 3 % 3])
        nn.utils.clip_grad_value_(model.parameters(), 0.05)
        optimizers[step // 3 % 2].step()
        run.tell(norm)
        model.zero_grad(set_to_none=step % 2 == 0)
    run.keep(model)


@loop
def averages_of_weights(run: Run) -> None:
    """A mean teacher by exponential averages, and a stochastic average whose batch norms are counted anew."""
    model = run.up_model(nn.Sequential(nn.Linear(FEATURES, 12), nn.BatchNorm1d(12), nn.Hardswish(), nn.Linear(12, 3)))
    teacher = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.8))
    average = torch.optim.swa_utils.AveragedModel(model, avg_fn=lambda mean, weight, seen: mean + (weight - mean) / (seen.double() + 1))
    own = copy.deepcopy(model)
    batches: list[Tensor] = []

    def loss_of(step: int) -> Tensor:
        x, y = run.up(run.numbers(step, ROWS, FEATURES) + 0.1 * run.drawn(ROWS, FEATURES)), run.up(run.classes(step, 3, ROWS))
        teacher.update_parameters(model)
        if step > 3:
            average.update_parameters(model)
            batches.append(x)
        for one, other in zip(own.parameters(), model.parameters(), strict=True):
            one.data.mul_(0.9).add_(other.data, alpha=0.1)
        with torch.no_grad():
            wanted = teacher(x).softmax(1)
        found = model(x)
        run.tell(wanted, own(x))
        return functional.cross_entropy(found, y) + functional.mse_loss(found.softmax(1), wanted)

    run.train(model, loss_of, torch.optim.NAdam(model.parameters(), 1e-2, eps=1e-3))
    torch.optim.swa_utils.update_bn(batches, average)
    for module in (teacher, average, own):
        run.keep(module)


@loop
def autoencoders_with_codes(run: Run) -> None:
    """A variational one with noise of the host, and one whose codes come of a book by the nearest entry."""
    encode, decode = run.up_model(nn.Linear(FEATURES, 8)), run.up_model(nn.Linear(4, FEATURES))
    book = run.up_model(nn.Embedding(6, 4))

    def loss_of(step: int) -> Tensor:
        x, noise = run.up(run.numbers(step, ROWS, FEATURES)), run.up(run.drawn(ROWS, 4))
        mean, logarithm = encode(x).chunk(2, 1)
        logarithm = logarithm.clamp(-5, 5)
        found = decode(mean + noise * (logarithm / 2).exp())
        divergence = -0.5 * (1 + logarithm - mean.square() - logarithm.exp()).sum(1).mean()
        apart = mean.square().sum(1, keepdim=True) - 2 * mean @ book.weight.t() + book.weight.square().sum(1)
        chosen = apart.argmin(1)
        code = book(chosen)
        used = functional.one_hot(chosen, 6).double().mean(0)
        passed = mean + (code - mean).detach()
        run.tell(chosen, used, (-(used * (used + 1e-10).log()).sum()).exp())
        quantised = functional.mse_loss(code, mean.detach()) + 0.25 * functional.mse_loss(mean, code.detach())
        return functional.mse_loss(found, x) + 0.1 * divergence + functional.mse_loss(decode(passed), x) + quantised

    run.train(nn.ModuleList([encode, decode, book]), loss_of)


@loop
def waves_and_spectra(run: Run) -> None:
    """Fourier transforms along each row and along the batch, complex weights, and states that pass from one moment to the next."""
    model = run.up_model(nn.Linear(FEATURES, 16))
    filters = nn.Parameter(run.up(torch.view_as_complex(run.drawn(9, 2))))

    def loss_of(step: int) -> Tensor:
        x = run.up(run.numbers(step, ROWS, FEATURES))
        wave = model(x)
        spectrum = torch.fft.rfft(wave)
        filtered = torch.fft.irfft(spectrum * filters, n=16)
        mixed = torch.fft.fft2(wave).real
        state, states = torch.zeros_like(wave[:, :4]), []
        for moment in filtered.split(4, 1):
            state = 0.5 * state + moment
            states.append(state)
        run.tell(spectrum.abs(), mixed, torch.stack(states, 1), wave.roll((1, 2), (0, 1)), torch.complex(wave, x.repeat(1, 2)).abs())
        return functional.smooth_l1_loss(filtered[:, :8], x) + 1e-3 * mixed.square().mean() + states[-1].square().mean()

    both = nn.ModuleList([model, nn.ParameterList([filters])])
    run.train(both, loss_of, torch.optim.SGD(both.parameters(), 0.01))
