"""What an embedded pool finds on its host, as the worker's Python describes it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forebay_pool import embedded
from forebay_pool.service import Service
from forebay_pool.settings import load

GIB = 2**30
MI210 = {"kind": "hip", "index": 0, "model": "AMD Instinct MI210", "memory_bytes": 64 * GIB, "uuid": "", "driver": None}
A30 = {"kind": "cuda", "index": 0, "model": "NVIDIA A30", "memory_bytes": 24 * GIB, "uuid": "GPU-one", "driver": {"name": "NVIDIA A30"}}
CPU = {"kind": "cpu", "index": 0, "model": "cpu-dev", "memory_bytes": 8 * GIB, "uuid": "", "driver": None}
Prepare = Callable[[str], Service]


@pytest.fixture
def prepare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prepare:
    """Makes the service of a host with a driver, whose worker's Python runs the script instead."""
    driver = tmp_path / "kfd"
    driver.touch()
    monkeypatch.setattr(embedded, "DRIVERS", (str(driver),))

    def make(script: str, **values: Any) -> Service:
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o700)
        settings = load(None, {}, {"port": 0, "state_dir": tmp_path, "worker_python": python, **values}, managed=False)
        return asyncio.run(embedded.prepare(settings, "a-token", os.environ))

    return make


def says(*devices: dict[str, Any]) -> str:
    return f"echo '{json.dumps({'torch': '2.13.0', 'accelerator': 'cuda', 'devices': devices})}'"


def found_by(service: Service) -> list[tuple[str, str, int]]:
    return [(device.id, device.model, device.memory_bytes) for device in service.settings.all_devices()]


def test_accelerators_of_both_vendors_are_lent_beside_the_development_device(prepare: Prepare) -> None:
    service = prepare(says(A30, MI210, CPU))
    memory_bytes = embedded.cpu_memory_bytes()
    assert found_by(service) == [
        ("main/cpu:0", "cpu-dev", memory_bytes),
        ("main/cuda:0", "NVIDIA A30", 24 * GIB),
        ("main/hip:0", "MI210", 64 * GIB),
    ], "a model that flavors name is called as they do, another one as its driver does"
    models = {flavor.name: [equivalent.model for equivalent in flavor.equivalents] for flavor in service._extra_flavors}
    found = {name: [model for model in names if model in ("NVIDIA A30", "MI210")] for name, names in models.items()}
    assert found["dev.1gb"] == ["MI210", "NVIDIA A30"]
    assert found["small.64gb"] == ["MI210"], "a flavor that does not fit is not served"


@pytest.mark.parametrize("script", ["echo nonsense", "echo '{}'", "exit 3", says({**A30, "memory_bytes": "much"})])
def test_a_worker_python_that_cannot_describe_its_devices_leaves_the_development_device(
    prepare: Prepare, caplog: pytest.LogCaptureFixture, script: str
) -> None:
    assert [name for name, _, _ in found_by(prepare(script))] == ["main/cpu:0"]
    assert "cannot say which accelerators it sees" in caplog.text


def test_where_no_driver_is_loaded_nobody_is_asked(prepare: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "DRIVERS", ("/dev/none",))
    assert [name for name, _, _ in found_by(prepare(says(A30)))] == ["main/cpu:0"]
