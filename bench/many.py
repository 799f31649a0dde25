"""A training step on one virtual device that is two, against hand-written DistributedDataParallel on the same cores.

Both compute on the CPU, one thread a process, gloo between the processes of the native one, and take
turns. Bar: at most 1.05 of DDP's time. DDP's batch norms take the statistics of each process's own rows there (SyncBatchNorm
needs GPUs), and its dropouts draw each process's own mask: less work than ours.

``sharded`` is a model whose weights, gradients and states are 192 MiB, on two devices of 108 MiB, against FSDP2 (`fully_shard`
of each layer), whose processes hold a half each, too. Bar: at most 1.10 of FSDP2's time. A device that wanted more would fail.

With ``--ranks`` the same DistributedDataParallel script runs in two processes that have a virtual device each, over "nccl", instead; with
``--ranks --pool N`` by torchrun, of a pool with so many devices: 1 device is lent in halves, unless ``--whole``.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep

from forebay.service import Service
from report import report

WARM_UP_STEPS = 12
"""Until the batch was found, and more."""
MIB = 1 << 20
SHARDED = "sharded"
NAMES = ("perceptron", "transformer", "dropout", "convolutions", "batch_norm", SHARDED)


@dataclass(frozen=True)
class Training:
    """A model, how a batch of so many rows is made, and the rows on all devices together."""

    model: Callable[[], object]
    batch: Callable[[int], tuple[object, object]]
    rows: int


def trainings() -> dict[str, Training]:
    """By name."""
    import torch
    from torch import nn

    def perceptron() -> object:
        return nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))

    class Transformer(nn.Module):
        def __init__(self, dropout: float = 0.0) -> None:
            super().__init__()
            self.embedding = nn.Embedding(1000, 128)
            layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=dropout, batch_first=True)
            self.layers, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(128, 1000)

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.head(self.layers(self.embedding(words))).flatten(0, 1)
            return found

    def convolutions(norm: Callable[[int], nn.Module] = lambda channels: nn.GroupNorm(4, channels)) -> object:
        def block(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
            return nn.Conv2d(inputs, outputs, 3, padding=1), norm(outputs), nn.ReLU(), nn.MaxPool2d(2)

        return nn.Sequential(*block(3, 32), *block(32, 64), *block(64, 64), nn.Flatten(), nn.Linear(64 * 16, 10))

    def images(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(rows, 3, 32, 32), torch.randint(0, 10, (rows,))

    def texts(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randint(0, 1000, (rows, 64)), torch.randint(0, 1000, (rows * 64,))

    def layers() -> object:
        return nn.Sequential(*(part for _ in range(12) for part in (nn.Linear(1024, 1024), nn.GELU())), nn.Linear(1024, 10))

    def vectors(width: int) -> Callable[[int], tuple[torch.Tensor, torch.Tensor]]:
        return lambda rows: (torch.randn(rows, width), torch.randint(0, 10, (rows,)))

    return {
        "perceptron": Training(perceptron, vectors(512), 512),
        "transformer": Training(Transformer, texts, 32),
        "dropout": Training(lambda: Transformer(0.1), texts, 32),
        "convolutions": Training(convolutions, images, 64),
        "batch_norm": Training(lambda: convolutions(nn.BatchNorm2d), images, 64),
        SHARDED: Training(layers, vectors(1024), 128),
    }


def parted(name: str, model: object) -> object:
    """As somebody writes it by hand for several processes."""
    import torch
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    if name != SHARDED:
        return nn.parallel.DistributedDataParallel(model)  # type: ignore[arg-type]
    mesh = torch.distributed.init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for layer in model:  # type: ignore[attr-defined]
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)  # type: ignore[arg-type]


def milliseconds(name: str, device: str, steps: int, processes: int) -> float:
    """The median of a step, of this process's part of the rows."""
    import torch
    from torch.nn import functional

    torch.set_num_threads(1)
    torch.manual_seed(0)
    training = trainings()[name]
    model = training.model().to(device)  # type: ignore[attr-defined]
    if processes > 1:
        model = parted(name, model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=name == SHARDED)  # else its temporaries count, too
    taken = []
    for _ in range(WARM_UP_STEPS + steps):
        x, y = training.batch(training.rows // processes)
        begin = perf_counter()
        optimizer.zero_grad()
        functional.cross_entropy(model(x.to(device)), y.to(device)).backward()  # type: ignore[attr-defined]
        optimizer.step()
        next(iter(model.parameters())).sum().item()
        taken.append(1e3 * (perf_counter() - begin))
    return statistics.median(taken[WARM_UP_STEPS:])


def run_program(name: str, steps: int, mode: str, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--steps", str(steps), "--program", mode, name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})


def said(process: subprocess.Popen[str]) -> float:
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    return float(json.loads(out.splitlines()[-1]))


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def native(name: str, steps: int) -> float:
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": "2"}
    return max(map(said, [run_program(name, steps, "native", RANK=str(rank), **meeting) for rank in range(2)]))


@contextmanager
def worker(name: str, devices: int) -> Iterator[tuple[str, str]]:
    """Address and ticket."""
    with tempfile.TemporaryDirectory() as folder:
        address, ticket = f"unix:{folder}/worker.sock", secrets.token_hex(32)
        several = [option for _ in range(devices) for option in ("--device", "cpu:0")]
        memory_mib = 108 if name == SHARDED and devices > 1 else 2048
        limits = ["--memory", str(devices * memory_mib * MIB), "--threads", "1"]
        command = [sys.executable, "-m", "forebay_worker", "--standalone", address, "--ticket", ticket]
        process = subprocess.Popen([*command, *limits, *several], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            assert "ready" in process.stdout.readline()
            yield address, ticket
        finally:
            process.terminate()
            process.communicate()


def virtual(name: str, steps: int, devices: int) -> float:
    with worker(name, devices) as (address, ticket):
        return said(run_program(name, steps, "virtual", WORKER_ADDRESS=address, WORKER_TICKET=ticket))


def ranks(name: str, steps: int) -> float:
    """Of two processes with a virtual device each."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    with worker(name, 1) as first, worker(name, 1) as second:
        meeting["FOREBAY_TEST_WORKERS"] = json.dumps([first, second])
        return max(map(said, [run_program(name, steps, "ranks", RANK=str(rank), LOCAL_RANK=str(rank), **meeting) for rank in range(2)]))


@contextmanager
def pool(devices: int, share_milli: int) -> Iterator[dict[str, str]]:
    """What a program needs to know of a pool with so many development devices, which lends such parts of them."""
    flavor = {"memory_bytes": 2048 * MIB * share_milli // 1000, "equivalents": [{"model": "cpu-dev", "share_milli": share_milli}]}
    with tempfile.TemporaryDirectory() as folder:
        state, settings = Path(folder) / "state", Path(folder) / "pool.toml"
        settings.write_text(f'[[devices]]\nkind = "cpu"\nmodel = "cpu-dev"\nmemory = "2GiB"\ncount = {devices}\n')
        command = [sys.executable, "-m", "forebay_pool", "--embedded", "--state-dir", str(state), "--port", "0", "--config", str(settings)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while not (state / "pool.json").exists():
                assert process.poll() is None
                sleep(0.05)
            at = json.loads((state / "pool.json").read_text())
            Service(at["url"], at["token"]).put("api/flavors/ranks", flavor)
            yield {"FOREBAY_URL": at["url"], "FOREBAY_TOKEN": at["token"], "FOREBAY_FLAVOR": "ranks", "XDG_CONFIG_HOME": folder}
        finally:
            process.terminate()
            process.wait()


def pooled(name: str, steps: int, devices: int, share_milli: int) -> dict[str, object]:
    """Two of torchrun's processes: the median of a step, and the seconds of all steps, warm-up included."""
    command = [sys.executable, "-m", "forebay", "run", "torchrun", "--nproc-per-node", "2", __file__]
    command += ["--steps", str(steps), "--program", "pooled", name]
    with pool(devices, share_milli) as environment:
        done = subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, timeout=900)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    if done.returncode:
        return {"model": name, "devices": devices, "share": share_milli / 1000, "refused": True}
    ms, seconds = (max(column) for column in zip(*found, strict=True))
    return {"model": name, "devices": devices, "share": share_milli / 1000, "ms": ms, "steps": WARM_UP_STEPS + steps, "seconds": seconds}


def rank_of_torchrun(name: str, steps: int) -> list[float]:
    import torch

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl")
    begin = perf_counter()
    found = milliseconds(name, "cuda", steps, 2)
    seconds = perf_counter() - begin
    torch.distributed.destroy_process_group()
    return [found, seconds]


def program(name: str, steps: int, mode: str) -> float | list[float]:
    if mode == "pooled":
        return rank_of_torchrun(name, steps)
    if mode == "native":
        import torch.distributed

        torch.distributed.init_process_group("gloo")
        found = milliseconds(name, "cpu", steps, 2)
        torch.distributed.destroy_process_group()
        return found
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "device"))
    if mode == "ranks":
        import process_group_programs as programs

        programs.attach(*json.loads(os.environ["FOREBAY_TEST_WORKERS"])[programs.RANK])
        programs.group()
        found = milliseconds(name, "cuda", steps, 2)
        programs.dist.destroy_process_group()
        return found
    from operator_sweep import attach

    attach(os.environ["WORKER_ADDRESS"], os.environ["WORKER_TICKET"])
    return milliseconds(name, "cuda", steps, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1, help="turns a figure is the median of")
    parser.add_argument("--steps", type=int, default=20, help="steps in a turn")
    parser.add_argument("--ranks", action="store_true", help="two processes with a virtual device each")
    parser.add_argument("--pool", type=int, help="with --ranks: by torchrun, of a pool with so many devices")
    parser.add_argument("--whole", action="store_true", help="with --pool 1: two ranks want the one device")
    parser.add_argument("--program", choices=("native", "virtual", "ranks", "pooled"), help=argparse.SUPPRESS)
    parser.add_argument("models", nargs="*", help=f"of {' '.join(NAMES)}; all by default, with --ranks all but the last")
    options = parser.parse_args()
    if options.program:
        print(json.dumps(program(options.models[0], options.steps, options.program)))
        return
    names = options.models or [name for name in NAMES if name != SHARDED or not options.ranks]  # FSDP2 shards on a mesh of CPUs here
    if options.pool:
        share_milli = 1000 if options.pool > 1 or options.whole else 500
        report("ranks of a pool", [pooled(name, options.steps, options.pool, share_milli) for name in names])
        return
    rows = [in_ranks(name, options) if options.ranks else on_two_devices(name, options) for name in names]
    largest = max(float(str(row["ratio"])) for row in rows)
    report("ranks" if options.ranks else "many", rows, largest_ratio=largest)


def on_two_devices(name: str, options: argparse.Namespace) -> dict[str, object]:
    measures = (lambda name, steps: virtual(name, steps, 2), lambda name, steps: virtual(name, steps, 1), native)
    turns = [[measure(name, options.steps) for measure in measures] for _ in range(options.rounds)]
    two, one, by_hand = (statistics.median(column) for column in zip(*turns, strict=True))
    ratio = statistics.median(turn[0] / turn[2] for turn in turns)
    bar = 1.10 if name == SHARDED else 1.05
    return {"model": name, "two devices ms": two, "one device ms": one, "by hand ms": by_hand, "ratio": ratio, "bar": bar}


def in_ranks(name: str, options: argparse.Namespace) -> dict[str, object]:
    turns = [(ranks(name, options.steps), native(name, options.steps)) for _ in range(options.rounds)]
    ours, gloo = (statistics.median(column) for column in zip(*turns, strict=True))
    return {"model": name, "nccl ms": ours, "gloo ms": gloo, "ratio": statistics.median(turn[0] / turn[1] for turn in turns)}


if __name__ == "__main__":
    main()
