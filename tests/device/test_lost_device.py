"""A device that fails for good ends its session, not the program: a stand-in for a GPU, whose kernel finds too few values for a mask."""

from __future__ import annotations

import subprocess
from pathlib import Path

import fork_server
import pytest
from standalone import standalone_worker
from standin import build

PROGRAM = """
import sys
import torch
from forebay import _C, facade
from forebay.virtual_device import VirtualDevices

workers = iter(zip(sys.argv[1::2], sys.argv[2::2]))

def connect(_device):
    if not _C.connected():
        address, ticket = next(workers)
        print("new session", flush=True)
        _C.connect(address, bytes.fromhex(ticket))
    _C.lease_opened(1, 1 << 40)

devices = VirtualDevices()
devices.start()
facade.install(devices)
_C.set_lease_callback(connect)

def said(question):
    try:
        return question()
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}".replace("\\n", " ")

kept = torch.ones(4, device="cuda")
mask, few = torch.ones(4, dtype=torch.bool).cuda(), torch.ones(1).cuda()
print(said(lambda: kept.clone().masked_scatter_(mask, few).sum().item()))
print(_C.connected())
print(said(lambda: kept.sum().item()))
print(said(lambda: torch.ones(3, device="cuda").sum().item()))
"""


@pytest.fixture(scope="module")
def standin_folder() -> Path:
    return build.built()


def test_after_a_device_is_lost_the_connection_ends_and_what_comes_next_gets_a_new_session(
    standin_folder: Path, tmp_path: Path
) -> None:
    python = fork_server.standin(standin_folder)
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    with (
        standalone_worker(folders[0], "--device", "standin:0", python=python) as one,
        standalone_worker(folders[1], "--device", "standin:1", python=python) as two,
    ):
        done = subprocess.run(
            [fork_server.programs(), "-c", PROGRAM, *one, *two], capture_output=True, text=True, timeout=120, check=False
        )
    assert done.returncode == 0, done.stderr
    first, failure, connected, lost, second, value = done.stdout.splitlines()
    assert (first, second) == ("new session", "new session")
    assert "Number of elements of source < number of ones in mask" in failure and "the device failed; the tensors on it are lost" in failure
    assert connected == "False"
    assert "this tensor is lost: the device failed" in lost
    assert value == "3.0"
