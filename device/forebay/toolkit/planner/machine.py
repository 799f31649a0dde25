"""What a plan is for: devices of a model, so many to a host, and the network between them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, log2
from pathlib import Path

from forebay.errors import ForebayError

GIB = 1 << 30
MEMORY_SHARE = 0.9
"""Of a device's memory that a plan may take: the rest is fragmentation, libraries and what the driver keeps."""
BANDWIDTH_SHARE = 0.8
"""Of the makers' figures of memory that large calls are taken to reach. Assumed, not measured."""
LINK_SHARE = 0.8
"""Of the makers' figures of links that large collectives are taken to reach. Assumed, not measured."""
CALL_SECONDS = 4e-6
"""That a call takes at least: a kernel's launch. Assumed, not measured."""


@dataclass(frozen=True)
class Link:
    """An axis of the network: what one device sends over it in one direction."""

    latency_seconds: float
    bytes_per_second: float


@dataclass(frozen=True)
class Network:
    """Links between the devices of a host, and between hosts."""

    host: Link = Link(10e-6, 100e9)
    switch: Link = Link(20e-6, 25e9)
    source: str = "assumed: 100 GB/s between devices of a host, 25 GB/s a device between hosts"

    def links(self) -> dict[str, Link]:
        """By the axes' names."""
        return {"host": self.host, "switch": self.switch}


def _network(host: float, switch: float, source: str) -> Network:
    """Of gigabytes a second of each device in one direction, as makers tell them."""
    told = f"{host:g} GB/s between devices of a host, {switch:g} GB/s a device between hosts ({source}), {LINK_SHARE:.0%} of it assumed"
    return Network(Link(10e-6, host * 1e9 * LINK_SHARE), Link(20e-6, switch * 1e9 * LINK_SHARE), told)


@dataclass(frozen=True)
class DeviceModel:
    """Figures of the maker's data sheet, dense, without sparsity."""

    name: str
    memory_bytes: int
    half_flops: float
    """A second, in bfloat16."""
    single_flops: float
    """A second, in float32 matrix products."""
    bytes_per_second: float
    source: str
    flops_share: float = 0.5
    """Of the operations a second that large products are taken to reach."""
    network: Network = Network()
    """Of the hosts that have such devices."""


NVLINK3 = _network(300, 25, "NVIDIA DGX A100 data sheet")
NVLINK4 = _network(450, 50, "NVIDIA DGX H100 data sheet")
REACHED_A100, REACHED_H100 = 0.75, 0.6
"""So that plans agree with what Megatron-LM reached: on A100 (arXiv 2205.05198, table 5), and on H100 (its README: up to 47 % in all)."""


def _model(
    name: str,
    gigabytes: int,
    half: float,
    single: float,
    terabytes_per_second: float,
    source: str,
    share: float = 0.5,
    network: Network = Network(),
) -> DeviceModel:
    return DeviceModel(name, gigabytes * GIB, half * 1e12, single * 1e12, terabytes_per_second * 1e12, source, share, network)


MODELS: Mapping[str, DeviceModel] = {
    model.name.lower(): model
    for model in (
        _model("MI210", 64, 181.0, 45.3, 1.6384, "AMD Instinct MI210 data sheet"),
        _model("MI250", 128, 362.1, 90.5, 3.2768, "AMD Instinct MI250 data sheet, both dies as one device"),
        _model("MI300X", 192, 1307.4, 163.4, 5.3, "AMD Instinct MI300X data sheet"),
        _model("A100", 80, 312.0, 19.5, 2.039, "NVIDIA A100 80GB SXM data sheet", REACHED_A100, NVLINK3),
        _model("H100", 80, 989.4, 66.9, 3.35, "NVIDIA H100 SXM data sheet", REACHED_H100, NVLINK4),
        _model("H200", 141, 989.4, 66.9, 4.8, "NVIDIA H200 SXM data sheet", REACHED_H100, NVLINK4),
        _model("L40S", 48, 362.0, 91.6, 0.864, "NVIDIA L40S data sheet"),
    )
}
DEFAULT_MODEL = "MI250"
"""The model that this installation's scale of flavors is counted in."""


@dataclass(frozen=True)
class Machine:
    """Equal devices. ``devices`` is a multiple of ``per_host``, or below it."""

    devices: int
    model: DeviceModel
    memory_bytes: int
    per_host: int = 8
    network: Network = Network()

    @property
    def budget_bytes(self) -> int:
        """That a plan may take of each device."""
        return int(self.memory_bytes * MEMORY_SHARE)


@dataclass(frozen=True)
class Group:
    """Devices that make a collective together: so many of each host, on so many hosts."""

    host: int = 1
    switch: int = 1

    @property
    def size(self) -> int:
        return self.host * self.switch

    def traffic(self, size: int) -> dict[str, float]:
        """Bytes that each device sends over each axis to gather, or to sum and scatter, ``size`` bytes: within hosts first, in rings."""
        return {"host": size * (self.host - 1) / self.host, "switch": size / self.host * (self.switch - 1) / self.switch}

    def seconds(self, size: int, network: Network) -> float:
        """What that takes. Small ones take a tree's latency."""
        sent, links = self.traffic(size), network.links()
        hops = {"host": ceil(log2(self.host)), "switch": ceil(log2(self.switch))}
        return sum(hops[axis] * links[axis].latency_seconds + sent[axis] / links[axis].bytes_per_second for axis in sent)


def network_of(path: Path) -> Network:
    """A measured table: ``{"host": {"latency_us": 10, "gigabytes_per_second": 100}, "switch": {…}}``. Raises ForebayError."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        links = [_link(table[axis]) for axis in ("host", "switch")]
    except OSError as error:
        raise ForebayError(f"The network's table {path} cannot be read: {error.strerror or error}.") from None
    except (ValueError, KeyError, TypeError):
        form = '{"host": {"latency_us": 10, "gigabytes_per_second": 100}, "switch": {"latency_us": 20, "gigabytes_per_second": 25}}'
        raise ForebayError(f"{path} is no table of a network; it must be like {form}, with numbers above 0.") from None
    return Network(links[0], links[1], f"measured, {path}")


def _link(row: Mapping[str, float]) -> Link:
    latency, rate = float(row["latency_us"]), float(row["gigabytes_per_second"])
    if not (0 < latency < 1e9 and 0 < rate < 1e6):
        raise ValueError
    return Link(latency * 1e-6, rate * 1e9)
