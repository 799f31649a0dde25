"""What the reference models have in common: their options, batches of sample data, and what is told of each step.

Nothing but PyTorch is needed, and nothing here knows which device it runs on.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator

import torch
from torch import Tensor

WARM_UP_STEPS = 2
"""These do not count for the throughput: a device finds its kernels and its memory in them."""


class Training:
    """One run of a model, as the command line wants it."""

    def __init__(self, about: str | None, steps: int = 50, batch: int = 16) -> None:
        parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--steps", type=int, default=steps, help="training steps (%(default)s)")
        parser.add_argument("--batch", type=int, default=batch, help="samples of a step (%(default)s)")
        parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="as PyTorch names it (%(default)s)")
        parser.add_argument("--seed", type=int, default=0, help="of weights, sample data and batches (%(default)s)")
        parser.add_argument("--json", action="store_true", help="print all figures as JSON, and read losses at the end alone")
        options = parser.parse_args()
        if min(options.steps, options.batch) < 1:
            parser.error("--steps and --batch must be at least 1")
        self.steps, self.batch, self.device = options.steps, options.batch, torch.device(options.device)
        self.quiet = options.json
        torch.manual_seed(options.seed)
        self.chance = torch.Generator().manual_seed(options.seed)
        """Draws on the host, so that all devices get the same samples."""
        self._losses: list[Tensor] = []
        self._counted_from = self._now()

    def batches(self, *data: Tensor, steps: int | None = None) -> Iterator[list[Tensor]]:
        """Random rows of the data, the same of each tensor, on the device; once a step."""
        for _ in range(self.steps if steps is None else steps):
            rows = torch.randint(len(data[0]), (self.batch,), generator=self.chance)
            yield [part[rows].to(self.device) for part in data]

    def report(self, loss: Tensor) -> None:
        """Takes note of a step's loss, and prints it."""
        self._losses.append(loss.detach())
        if not self.quiet:
            print(f"step {len(self._losses):>{len(str(self.steps))}}/{self.steps}  loss {loss.item():.4f}", flush=True)
        if len(self._losses) == WARM_UP_STEPS and self.steps > WARM_UP_STEPS:
            self._counted_from = self._now()

    def finish(self) -> None:
        """Waits for the device, and prints the throughput."""
        seconds = self._now() - self._counted_from
        counted = self.steps - WARM_UP_STEPS if self.steps > WARM_UP_STEPS else self.steps
        rate = counted * self.batch / seconds
        on_gpu = self.device.type == "cuda"
        peak_bytes = torch.cuda.max_memory_allocated(self.device) if on_gpu else None
        if self.quiet:
            losses = torch.stack(self._losses).tolist()
            figures = {"steps": self.steps, "batch": self.batch, "device": str(self.device), "losses": losses}
            print(json.dumps({**figures, "samples_per_second": rate, "peak_memory_bytes": peak_bytes}))
            return
        name = torch.cuda.get_device_name(self.device) if on_gpu else str(self.device)
        memory = f", at most {peak_bytes / 2**20:,.0f} MiB" if peak_bytes is not None else ""
        print(f"{rate:,.1f} samples per second on {name}{memory}")

    def _now(self) -> float:
        """Seconds, when the device has done all that it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()
