"""Trains at a worker until the standard input says that it may end, and at least so many steps; prints losses and the weights' hash.

Run as ``cut_training.py ADDRESS TICKET PROGRAM STEPS CERTIFICATE``; the last is empty where no TLS is spoken.
Programs: ``steps`` reads each loss; ``bulk`` moves 64 MiB up and down.
"""

from __future__ import annotations

import hashlib
import json
import select
import sys

import torch
from forebay import _C, facade
from forebay.virtual_device import VirtualDevices

BULK_FLOATS = 4 << 20
"""16 MiB: four make 64."""


def serve(address: str, ticket: str, certificate: str) -> None:
    """Gives this process the virtual device, served by a worker that opened its own lease; a session that is lost is not begun again."""
    served: list[object] = []

    def lease(device: int) -> None:
        if not served:
            served.append(_C.connect(address, bytes.fromhex(ticket), device, certificate=certificate))
        if not _C.connected(device):
            raise RuntimeError("the session is lost")
        _C.lease_opened(1, 1 << 40, device)

    devices = VirtualDevices()
    devices.start()
    facade.install(devices)
    _C.set_lease_callback(lease)


def may_end() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def train(steps: int) -> list[float]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Dropout(0.2), torch.nn.Tanh(), torch.nn.Linear(64, 4)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    host = torch.Generator().manual_seed(4)
    losses: list[float] = []
    while len(losses) < steps or (steps == 0 and not may_end()):
        x = torch.randn(64, 32, generator=host).cuda()
        loss = (model(x) - x[:, :4].sin()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    losses.append(sum(float(one.double().sum()) for one in model.parameters()))
    return losses


def move(steps: int) -> list[float]:
    """The sums are of whole numbers, so that a byte that is lost or comes twice changes them."""
    host = torch.Generator().manual_seed(5)
    found: list[float] = []
    while len(found) < steps or (steps == 0 and not may_end()):
        parts = [torch.randint(0, 1 << 20, (BULK_FLOATS,), generator=host, dtype=torch.int32) for _ in range(4)]
        there = [part.cuda() + 1 for part in parts]
        digest = hashlib.sha256()
        for part in there:
            digest.update(part.cpu().numpy().tobytes())
        found.append(float(int(digest.hexdigest()[:12], 16)))
    return found


def main() -> None:
    address, ticket, program, steps, certificate = sys.argv[1:]
    torch.set_num_threads(1)
    serve(address, ticket, certificate)
    found = (train if program == "steps" else move)(int(steps))
    torch.cuda.synchronize()
    counts = _C.statistics()
    print(json.dumps({"steps": len(found) - (program == "steps"), "found": found, "sent": counts["bytes_sent"]}), flush=True)


if __name__ == "__main__":
    main()
