"""A worker on an out-of-tree back end: it is described, its device is limited and can be lost, and what a worker forgets is found."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from forebay_wire import stream
from forebay_wire.stream import Argument, FailureCode, Geometry, Output, OutputTag, Tag, Template

aten = torch.ops.aten
BYTES = 1 << 20
FOUR = Geometry(6, (4,), (1,))
SECONDS_MAX = 60

pytestmark = pytest.mark.parametrize("device", ["standin:0"])


def test_an_out_of_tree_back_end_is_described_like_any_device(device_environment: dict[str, str]) -> None:
    environment = device_environment | {"FOREBAY_STANDIN_MEMORY_BYTES": str(1 << 30)}
    command = [sys.executable, "-m", "forebay_worker", "--describe"]
    described = json.loads(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    kinds = [(found["device"], found["kind"], found["model"], found["memory_bytes"]) for found in described["devices"]]
    assert kinds[:2] == [(f"standin:{index}", "standin", "stand-in", 1 << 30) for index in range(2)]
    assert [kind for kind, *_ in kinds[2:]] == ["cpu:0", "null:0"]


@pytest.mark.parametrize("name", ["standin:7", "strange:0"])
def test_a_device_that_is_not_there_is_refused_by_name(device_environment: dict[str, str], name: str) -> None:
    command = [sys.executable, "-m", "forebay_worker", "--standalone", "tcp:127.0.0.1:0", "--ticket", "0" * 64, "--device", name]
    ended = subprocess.run(command, env=device_environment, capture_output=True, text=True, timeout=SECONDS_MAX)
    assert ended.returncode == 1
    assert f"there is no device '{name}'" in ended.stderr and "it sees standin:0, standin:1, cpu:0, null:0" in ended.stderr


def test_a_second_device_computes_like_the_first(start_worker: Any) -> None:
    client = start_worker(device="standin:1").connect()
    with client.socket:
        client.hello()
        ours, theirs = client.run(aten.mm.default, torch.ones(3, 4), torch.ones(4, 2))
        assert torch.equal(ours[0], theirs[0])


def test_what_only_a_kernel_finds_is_told_at_the_next_sync_and_the_session_is_lost(client: Any) -> None:
    """The host finds too few values before anything is written; a device's kernel finds that while it runs."""
    good, mask, source = client.upload(torch.ones(4)), client.upload(torch.ones(4, dtype=torch.bool)), client.upload(torch.ones(1))
    geometries = FOUR, Geometry(11, (4,), (1,)), Geometry(6, (1,), (1,))
    arguments = tuple(Argument(Tag.TENSOR, geometry=geometry) for geometry in geometries)
    scatter = client.template(Template(client.operator(aten.masked_scatter_.default), arguments, (Output(OutputTag.SAME, same=0),)))
    client.send(stream.Call(scatter, (stream.View(good), stream.View(mask), stream.View(source))))
    told = client.sync()
    assert isinstance(told, stream.Failure) and told.code == FailureCode.DEVICE_LOST
    assert "the device failed; the tensors on it are lost" in told.message
    assert "Number of elements of source < number of ones in mask" in told.message
    client.send(stream.Read(client.request(), good, 0, 16))
    again = client.reply()
    assert isinstance(again, stream.Failure) and again.code == FailureCode.NEVER_MADE


FAULTS = {
    "no-wait": "pinned memory that a copy from the device writes to, without waiting for the copy: a synchronisation is missing",
    "stray-copies": "nothing makes it wait: an event or a synchronisation is missing",
}


@pytest.mark.parametrize("fault", list(FAULTS))
def test_a_worker_that_does_not_wait_or_copies_on_a_wrong_stream_is_found(
    fault: str, device_environment: dict[str, str], make_client: Any, tmp_path: Path, socket_folder: Path
) -> None:
    """The device leaves out what the worker would have forgotten: no synchronisation waits, or copies run on another stream."""
    ticket, address, log = secrets.token_bytes(32), f"unix:{socket_folder}/0.sock", tmp_path / "faulty.log"
    command = [sys.executable, "-m", "forebay_worker", "--standalone", address, "--ticket", ticket.hex(), "--device", "standin:0"]
    with log.open("w") as written:
        environment = device_environment | {"FOREBAY_STANDIN_FAULT": fault}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=written, text=True)
    try:
        assert process.stdout and process.stdout.readline()
        client = make_client(address, ticket)
        with client.socket:
            client.hello()
            storage = client.upload(torch.ones(BYTES // 4))
            with pytest.raises((AssertionError, OSError)):  # the worker ends, or tells of a failure
                client.read(storage, BYTES)
    finally:
        process.terminate()
        process.communicate(timeout=SECONDS_MAX)
    assert "standin: " in log.read_text() and FAULTS[fault] in log.read_text()
