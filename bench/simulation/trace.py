"""A production cluster's nodes and tasks: Alibaba's cluster-trace-gpu-v2023.

It was published with Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent",
USENIX ATC 2023. The files lie outside of the repository (their owners allow use for research and study).
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from forebay_pool.model.types import Device

NODES_FILE = "openb_node_list_gpu_node.csv"
TASKS_FILE = "openb_pod_list_default.csv"
FOLDER = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "alibaba-gpu-2023"
"""Where it is looked for unless an option says otherwise: beside the checkout."""
GIB = 2**30
MEMORY_GIB = {"V100M16": 16, "V100M32": 32, "P100": 16, "T4": 16, "A10": 24, "G2": 32, "G3": 32}
"""Of a device. Alibaba does not say what G2 and G3 are; 32 GiB is our guess."""
WHOLE = 1000
"""Thousandths of a device."""


class TraceMissing(Exception):
    """The trace's files are not there."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is not there: give the folder of cluster-trace-gpu-v2023 by --trace (it is no part of this repository)")


@dataclass(frozen=True, slots=True)
class Node:
    """A host and its GPUs, all of one model."""

    name: str
    model: str
    gpus: int
    cpu_milli: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Task:
    """One task: ``gpus`` whole devices together, or ``share_milli`` thousandths of one. Times are seconds of the trace."""

    name: str
    gpus: int
    share_milli: int
    cpu_milli: int
    memory_mib: int
    created_seconds: int
    deleted_seconds: int

    @property
    def demand(self) -> float:
        """In GPUs."""
        return self.gpus * self.share_milli / WHOLE

    @property
    def seconds(self) -> int:
        return self.deleted_seconds - self.created_seconds


def read_nodes(folder: Path) -> list[Node]:
    """The 1,213 nodes with GPUs. Raises TraceMissing."""
    return [
        Node(row["sn"], row["model"], int(row["gpu"]), int(row["cpu_milli"]), int(row["memory_mib"])) for row in _rows(folder / NODES_FILE)
    ]


def read_tasks(folder: Path) -> list[Task]:
    """All 8,152 tasks, those without a GPU included, in the order of their creation. Raises TraceMissing."""
    tasks = []
    for row in _rows(folder / TASKS_FILE):
        gpus = int(row["num_gpu"])
        share = int(row["gpu_milli"]) if gpus else 0
        need = (int(row["cpu_milli"]), int(row["memory_mib"]))
        tasks.append(Task(row["name"], gpus, share, *need, int(row["creation_time"]), int(row["deletion_time"])))
    return sorted(tasks, key=lambda task: task.created_seconds)


def _rows(path: Path) -> Iterator[dict[str, str]]:
    if not path.is_file():
        raise TraceMissing(path)
    with path.open(newline="") as file:
        yield from csv.DictReader(file)


def devices_of(node: Node) -> list[Device]:
    memory_bytes = MEMORY_GIB[node.model] * GIB
    return [Device(f"{node.name}/null:{index}", node.name, "null", index, node.model, memory_bytes) for index in range(node.gpus)]


def mixed(nodes: list[Node]) -> list[Node]:
    """The nodes in an order of which every beginning has the models in their proportion."""
    counts: dict[str, int] = {}
    for node in nodes:
        counts[node.model] = counts.get(node.model, 0) + 1
    seen = dict.fromkeys(counts, 0)
    places = []
    for number, node in enumerate(nodes):
        places.append(((seen[node.model] + 0.5) / counts[node.model], number, node))
        seen[node.model] += 1
    return [node for _, _, node in sorted(places, key=lambda place: place[:2])]


def first_devices(nodes: list[Node], count: int) -> list[Device]:
    """The first ``count`` devices of the nodes; the last node may be taken in part."""
    devices: list[Device] = []
    for node in nodes:
        if len(devices) >= count:
            break
        devices += devices_of(node)
    return devices[:count]
