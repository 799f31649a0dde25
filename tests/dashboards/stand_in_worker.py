"""A worker that speaks the worker link to a real pool and executes nothing: enough for leases to open and close."""

from __future__ import annotations

import argparse
import os

from forebay_wire import messages as wire
from websockets.sync.client import connect

HEARTBEAT_SECONDS = 1.0


def main() -> None:
    """Serves until told to end."""
    parser = argparse.ArgumentParser()
    for name in ("pool", "worker", "device", "socket-dir"):
        parser.add_argument(f"--{name}", required=True)
    options, _ = parser.parse_known_args()
    headers = {"Authorization": f"token {os.environ['FOREBAY_WORKER_TOKEN']}"}
    with connect(options.pool, additional_headers=headers) as link:
        device = wire.DeviceModel(kind="null", model="null")
        address = f"unix:{options.socket_dir}/{options.worker}"
        link.send(wire.Ready(worker=options.worker, address=address, torch="2.13.0", device=device, pid=os.getpid()).encode())
        epoch: int | None = None
        while True:
            try:
                message = wire.to_worker(link.recv(timeout=HEARTBEAT_SECONDS))
            except TimeoutError:
                link.send(wire.Heartbeat(epoch=epoch, memory_bytes=2**20, busy_ns=0, commands=0).encode())
                continue
            if isinstance(message, wire.End):
                return
            if isinstance(message, wire.Assign):
                link.send(wire.Assigned(session=message.session).encode())
            elif isinstance(message, wire.Open):
                epoch = message.epoch
            elif isinstance(message, wire.Close):
                epoch = None
                link.send(wire.Closed(epoch=message.epoch).encode())
            elif isinstance(message, wire.Park):
                link.send(wire.Parked(bytes=2**20).encode())


if __name__ == "__main__":
    main()
