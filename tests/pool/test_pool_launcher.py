"""The launcher of workers on this host, with real processes."""

from __future__ import annotations

import logging
import os
import subprocess
from pathlib import Path

import pytest
from forebay_pool.hosts.launcher import LocalLauncher, WorkerCommand
from forebay_pool.model.types import Device

STRANGER = 60701


@pytest.mark.parametrize("allowed", [False, True])
def test_workers_take_kernels_of_programs_where_the_operator_allows_it(allowed: bool) -> None:
    device = Device("main/cuda:0", "main", "cuda", 0, "h100", 80 << 30)
    command = WorkerCommand(lambda kind: Path("python"), None, "ws://pool", {}, 0.0, "info", user_kernels=allowed)
    assert ("--kernels" in command.of("w", [device])) == allowed


@pytest.mark.parametrize("allowed", [False, True])
def test_workers_on_rays_nodes_are_told_that_the_network_is_closed_where_the_operator_says_so(allowed: bool) -> None:
    command = WorkerCommand(lambda kind: Path("python"), None, "ws://pool", {}, 0.0, "info", plaintext=allowed)
    assert command.variables().get("FOREBAY_WORKER_PLAINTEXT") == ("1" if allowed else None)


@pytest.mark.parametrize(("folder", "seconds"), [(None, "90.0"), (Path("/run"), "90.0")])
def test_workers_wait_for_clients_whose_connection_broke(folder: Path | None, seconds: str | None) -> None:
    command = WorkerCommand(lambda kind: Path("python"), folder, "ws://pool", {}, 0.0, "info", reconnect_seconds=90.0)
    assert command.variables().get("FOREBAY_WORKER_RECONNECT_SECONDS") == seconds


@pytest.mark.skipif(os.getuid() != 0, reason="becoming another user needs root")
def test_a_worker_that_a_pool_may_not_end_is_logged_and_does_not_end_the_pool(caplog: pytest.LogCaptureFixture) -> None:
    """As after a kill of `make up` itself, which kept the user namespace that the worker was started in."""
    with subprocess.Popen(["sleep", "60"], process_group=0) as worker:
        launcher = LocalLauncher(None, lambda *_: None, lambda *_: None)  # type: ignore[arg-type]  # it starts none
        launcher._pids["w"] = worker.pid
        os.setresuid(STRANGER, STRANGER, 0)
        try:
            with caplog.at_level(logging.ERROR):
                launcher.kill("w")
        finally:
            os.setresuid(0, 0, 0)
        assert worker.poll() is None
        worker.kill()
    assert f"process {worker.pid} is not this pool's to end" in caplog.text
