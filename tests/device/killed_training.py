"""Trains by one of several programs while its workers are killed at moments of chance; prints the losses, the weights' hash, the kills,
how many images its workers kept, and by which tiers the segments were carried out that came again.

Run as ``killed_training.py PROGRAM KILLS SEED STEPS [writing]``; with ``writing`` workers are killed in the middle of an image.
With 0 kills it is what the others are held against. Of a session with several devices one process is killed at a time.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

DEVICE = "cuda:0"
PAUSE_SECONDS = (0.05, 0.6)
"""Between two kills, once the worker after the one before has computed something."""
IMAGES = Path(f"/dev/shm/forebay-{os.getuid()}")
"""Where an embedded pool's workers keep images."""
WRITING_SECONDS_MAX = 5.0
STEPS_AFTER = 10
"""That are made after the last kill, at least."""
STEPS_MAX = 4000
"""A program goes on until all kills came, but no longer."""
Steps = Iterator[torch.Tensor]


def workers() -> list[int]:
    """The workers of this process's own pool, or of the pool that the test names."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and b"forebay_worker" in (entry / "cmdline").read_bytes() and _is_ours(entry):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def _is_ours(entry: Path) -> bool:
    root = int(os.environ.get("FOREBAY_TEST_POOL", os.getpid()))
    pid = parent_of(entry.name)
    while pid not in (0, 1, root):
        pid = parent_of(pid)
    return pid == root


def victims(chance: random.Random) -> list[int]:
    """Of workers with several devices one device's process; else all workers."""
    found = workers()
    members = [pid for pid in found if b"--standalone" in (Path("/proc") / str(pid) / "cmdline").read_bytes()]
    return [chance.choice([*members, parent_of(members[0])])] if members else found


def parent_of(pid: int | str) -> int:
    return int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])


class Killer:
    """Kills workers so many times, at moments of chance, each once steps were made since the last time."""

    def __init__(self, kills: int, seed: int, writing: bool) -> None:
        self.kills = 0
        self._writing = writing
        self.steps = 0
        self._most = kills
        self._random = random.Random(seed)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return self.kills >= self._most

    def _run(self) -> None:
        seen = 0
        while not self.done:
            time.sleep(self._random.uniform(*PAUSE_SECONDS))
            if self.steps < seen + 2:
                continue
            try:
                killed = self._writers() if self._writing else victims(self._random)
            except OSError:
                continue
            for pid in killed:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if killed:
                self.kills, seen = self.kills + 1, self.steps


    def _writers(self) -> list[int]:
        """Workers, once one of them is in the middle of an image."""
        deadline = time.monotonic() + WRITING_SECONDS_MAX
        while time.monotonic() < deadline:
            found = workers()
            pools = {(Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1] for pid in found}
            if any(path.stat().st_size for pool in pools for path in IMAGES.glob(f"{pool}/*/unfinished")):
                return found
        return []


def perceptron() -> tuple[nn.Module, Steps]:
    """With dropout, and a loss that is read every third step."""
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 10)).to(DEVICE)
    return net, _trained(net, lambda: (torch.randn(64, 64), torch.randint(0, 10, (64,))))


def convolutions() -> tuple[nn.Module, Steps]:
    """With batch normalisation: statistics that each step changes."""
    layers = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10))
    net = nn.Sequential(*layers).to(DEVICE)
    return net, _trained(net, lambda: (torch.randn(16, 3, 16, 16), torch.randint(0, 10, (16,))))


def recurrent() -> tuple[nn.Module, Steps]:
    """A loop that reads what it computes, and goes on by it."""
    net = nn.GRUCell(16, 16).to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), 0.05)

    def steps() -> Steps:
        state = torch.zeros(4, 16, device=DEVICE)
        while True:
            state = net(torch.randn(4, 16, device=DEVICE), state.detach())
            loss = state.square().mean()
            if loss.item() > 0.05:
                loss = loss * 2
            found = (state > 0).nonzero()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss + found.shape[0]

    return net, steps()


def large_upload() -> tuple[nn.Module, Steps]:
    """What it trains on goes up once, in bulk, and is read back in bulk now and then."""
    net = nn.Linear(256, 256).to(DEVICE)
    data = torch.randn(16_384, 256).to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)

    def steps() -> Steps:
        for number in range(STEPS_MAX):
            rows = data[number % 64 * 256 : (number % 64 + 1) * 256]
            loss = (net(rows) - rows).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss if number % 8 else loss + data.cpu().sum().to(DEVICE)

    return net, steps()


def leftovers() -> tuple[nn.Module, Steps]:
    """Beside what it trains: storages that nothing was written to, views, a generator, and what a failure kept from being made."""
    net = nn.Linear(32, 32).to(DEVICE)
    generator = torch.Generator(DEVICE).manual_seed(5)
    untouched, rows = torch.zeros(100_000, device=DEVICE), torch.arange(1024.0, device=DEVICE).view(32, 32).t()[::2]
    for index in (1, 7):  # the second time nothing waits for the call
        never = torch.arange(3, device=DEVICE)[torch.tensor([index], device=DEVICE)] + 1
    try:
        torch.cuda.synchronize()
    except (RuntimeError, IndexError):
        pass
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)

    def steps() -> Steps:
        while True:
            noise = torch.rand(16, 32, device=DEVICE, generator=generator)
            loss = (net(rows / 1024 + noise) - untouched[:32]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            try:
                never.sum().item()
                yield loss * 0
            except RuntimeError:
                yield loss

    return net, steps()


def wide() -> tuple[nn.Module, Steps]:
    """Weights that are larger than the batches, noise of a generator's, and a sum of losses that nobody reads until late."""
    layers = (nn.Linear(128, 512), nn.ReLU(), nn.Dropout(0.2), nn.Linear(512, 128), nn.LayerNorm(128), nn.Linear(128, 10))
    net = nn.Sequential(*layers).to(DEVICE)
    generator = torch.Generator(DEVICE).manual_seed(3)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    total = torch.zeros((), device=DEVICE)

    def steps() -> Steps:
        nonlocal total
        while True:
            x, y = torch.randn(8, 128), torch.randint(0, 10, (8,))
            noise = torch.rand(8, 128, device=DEVICE, generator=generator)
            loss = nn.functional.cross_entropy(net(x.to(DEVICE) + noise / 8), y.to(DEVICE))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total = total + loss.detach() / 7
            yield total if torch.randint(0, 9, ()).item() == 0 else loss

    return net, steps()


def deep() -> tuple[nn.Module, Steps]:
    """Whose activations take most of the memory."""
    layers = [layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Dropout(0.1))]
    net = nn.Sequential(*layers, nn.Linear(64, 10)).to(DEVICE)
    return net, _trained(net, lambda: (torch.randn(1024, 64), torch.randint(0, 10, (1024,))))


def stack() -> tuple[nn.Module, Steps]:
    """Weights that are large beside a batch, in layers one after the other. All of a batch is uploaded first, so a step is one segment."""
    layers = [layer for _ in range(20) for layer in (nn.Linear(160, 160), nn.Tanh(), nn.Dropout(0.1))]
    net = nn.Sequential(*layers, nn.Linear(160, 10)).to(DEVICE)
    return net, _trained(net, lambda: (torch.randn(32, 160).to(DEVICE), torch.randint(0, 10, (32,)).to(DEVICE)))


def large_stack() -> tuple[nn.Module, Steps]:
    """Weights, gradients and momenta that four devices of 20 MiB hold in stages alone. Sizes are odd, so nothing lies in rows."""
    layers = [layer for _ in range(20) for layer in (nn.Linear(509, 509), nn.Tanh())]
    net = nn.Sequential(*layers, nn.Linear(509, 11)).to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)

    def steps() -> Steps:
        while True:
            x, y = torch.randn(48, 509).to(DEVICE), torch.randint(0, 11, (48,)).to(DEVICE)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            yield loss

    return net, steps()


def _trained(net: nn.Module, batch: Callable[[], tuple[torch.Tensor, torch.Tensor]]) -> Steps:
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    while True:
        x, y = batch()
        loss = nn.functional.cross_entropy(net(x.to(DEVICE)), y.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss


PROGRAMS = {one.__name__: one for one in (perceptron, convolutions, recurrent, large_upload, leftovers, wide, deep, stack, large_stack)}


def main(program: str, kills: int, seed: int, steps: int, writing: bool) -> None:
    """Makes ``steps`` steps, or where it is 0 so many as it takes until all kills came; prints one line of JSON."""
    torch.manual_seed(0)
    net, trained = PROGRAMS[program]()
    killer = Killer(kills, seed, writing)
    losses, undisturbed = [], 0
    for number, loss in enumerate(trained):
        if number % 3 == 0:
            losses.append(loss.item())
        killer.steps = number
        undisturbed += killer.done
        if number + 1 == (steps or STEPS_MAX) or (not steps and undisturbed > STEPS_AFTER and number >= 20):
            break
    weights = b"".join(one.detach().cpu().numpy().tobytes() for one in net.state_dict().values())
    import forebay._C

    told = {"losses": losses, "weights": hashlib.sha256(weights).hexdigest(), "steps": number + 1, "kills": killer.kills}
    told["tiers"] = sorted({one["tier"] for one in forebay._C.segments(0)})
    print(json.dumps({**told, "images": forebay._C.statistics()["images"]}))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]), writing=sys.argv[5:] == ["writing"])
