"""Two workers whose memory is fenced (``fence.cpp``) and which differ in what unwritten memory holds; each call goes to both.

One of the stand-in for a GPU needs no fence: that memory is closed to the host.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from conftest import Client, Recording, bytes_of, connect, geometry_of
from forebay_wire import stream
from forebay_wire.stream import Argument, Output, OutputTag, Tag, Template
from hostile_calls import HostileCall

STORAGE_BYTES = 131 * 64
"""Of every storage that these tests make: the allocator of ``fence.cpp`` knows them by it."""
FILLS = (0x01, 0x3F)
MEMORY_BYTES = 256 << 20
ANSWER_SECONDS_MAX = 30
TOLD_STORAGES = 1 << 32
"""The first id of the results' storages, above those of the arguments."""
OF_CHANCE = ("Generator", "Optional[Generator]")


def compiled_fence(folder: Path) -> Path:
    compiler = shutil.which("g++")
    assert compiler, "g++ builds the extensions, so it must be here"
    library = folder / "fence.so"
    source = Path(__file__).with_name("fence.cpp")
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, str(source), "-o", str(library), "-ldl"], check=True, timeout=120)
    return library


class Encoding(Recording):
    """A call whose tensors each lie at the end of a storage that holds the worker's byte before them."""

    fill: int = 0

    def _tensor(self, tensor: torch.Tensor | None) -> Argument:
        self.flat.append(tensor)
        if tensor is None:
            return Argument(Tag.NONE)
        geometry = geometry_of(tensor)
        span = geometry.span() * tensor.dtype.itemsize
        start = int(tensor.storage_offset()) * tensor.dtype.itemsize
        data = bytes_of(tensor)[start : start + span]
        if span > STORAGE_BYTES:
            raise NotImplementedError("a tensor larger than the storages here")
        offset = (STORAGE_BYTES - span) // tensor.dtype.itemsize
        before = offset * tensor.dtype.itemsize
        storage = self.client.storage()
        self.client.writer.add(stream.Allocate(storage, STORAGE_BYTES))
        self.client.writer.add(stream.Write(storage, 0, bytes([self.fill]) * before + data))
        self.uploads.append((storage, before))
        self.bindings.append(stream.View(storage, offset))
        return Argument(Tag.TENSOR, geometry=geometry)

    @property
    def uploads(self) -> list[tuple[int, int]]:
        return self.__dict__.setdefault("_uploads", [])


@dataclass
class FencedWorker:
    library: Path | None
    """The fence; none: the memory has one of its own."""
    fill: int
    address: str
    device: str = "cpu:0"
    variables: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        ticket = secrets.token_bytes(32)
        command = [sys.executable, "-m", "forebay_worker", "--standalone", f"unix:{self.address}", "--threads", "1"]
        command += ["--ticket", ticket.hex(), "--memory", str(MEMORY_BYTES), "--device", self.device]
        fence = {"FENCE_FILL": str(self.fill), "FENCE_STORAGE_BYTES": str(STORAGE_BYTES)}
        fence |= {} if self.library is None else {"LD_PRELOAD": str(self.library)}
        Path(self.address).unlink(missing_ok=True)
        environment = {**self.variables, **fence, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
        assert self.process.stdout
        line = self.process.stdout.readline()
        peer = connect(json.loads(line)["address"])
        peer.settimeout(ANSWER_SECONDS_MAX)
        self.client = Client(peer, ticket, self.device)
        assert isinstance(self.client.hello(), stream.Welcome)

    def stop(self) -> None:
        self.client.socket.close()
        self.process.kill()
        self.process.communicate()

    def ask(self, call: HostileCall) -> Any:
        """What the worker says and what its memory holds afterwards; raises NotImplementedError where the wire cannot carry the call."""
        client = self.client
        client.templates.clear()
        encoding = Encoding.__new__(Encoding)
        leads_through_storages = any(argument.name == "storage_offset" for argument in call.op._schema.arguments)
        encoding.fill = 0 if leads_through_storages else self.fill  # these show a storage's other bytes, on purpose
        Recording.__init__(encoding, client, call.op, call.values, {})
        outputs = self.outputs(call, encoding)
        draws = torch.Tag.nondeterministic_seeded in call.op.tags or any(str(a.type) in OF_CHANCE for a in call.op._schema.arguments)
        random = stream.Random(3, 4) if draws else None
        operator = client.operator(call.op)
        try:
            number = client.template(Template(operator, tuple(encoding.arguments), tuple(outputs), stream.RANDOM if random else 0))
            client.writer.add(stream.Ask(1, TOLD_STORAGES, number, tuple(encoding.bindings), random))
        except stream.WireError as error:
            self.stop()
            self.start()
            raise NotImplementedError(str(error)) from error
        try:
            client.send()
            reply = client.reply()
        except (TimeoutError, OSError, AssertionError) as error:
            return self.ended(error)
        if isinstance(reply, stream.Refused):
            self.stop()
            self.start()
            return ("refused", reply.message)
        result = self.collect(reply, encoding)
        client.send(stream.Forget(), stream.Sync(2))
        try:
            client.reply()
        except (TimeoutError, OSError, AssertionError) as error:
            return self.ended(error)
        return result

    def outputs(self, call: HostileCall, encoding: Encoding) -> list[Output]:
        written = []
        flat = 0
        for argument, value in zip(call.op._schema.arguments, encoding.values, strict=True):
            count = 0
            if "Tensor" in str(argument.type):
                count = len(value) if isinstance(value, (list, tuple)) else len(getattr(value, "parts", (0,)))
            elif value is None:
                count = 1
            if argument.alias_info is not None and argument.alias_info.is_write:
                written += list(range(flat, flat + count))
            flat += count
        places = iter(written)
        outputs = []
        for returned in call.op._schema.returns:
            if returned.alias_info is not None and returned.alias_info.is_write:
                outputs.append(Output(OutputTag.SAME, same=next(places, 0)))
            else:
                outputs.append(Output(OutputTag.UNKNOWN))
        return outputs

    def ended(self, error: Exception) -> tuple[str, str]:
        slow = isinstance(error, TimeoutError)
        if slow:
            self.process.kill()
        self.process.communicate()
        self.client.socket.close()
        status = self.process.returncode
        self.start()
        return ("slow", "") if slow else ("ended", f"status {status}")

    def collect(self, reply: stream.Reply, encoding: Encoding) -> Any:
        client = self.client
        told: list[Any] = []
        new: list[int] = []
        if isinstance(reply, stream.Failure):
            told.append(("failure", reply.message))

        def tell(produced: Any) -> None:
            if produced.tag == OutputTag.NEW:
                new.append(produced.storage)
                told.append((produced.geometry, client.read(produced.storage, min(produced.storage_bytes, 1 << 16))))
            elif produced.tag in (OutputTag.LIST, OutputTag.SPARSE):
                told.append((produced.layout, produced.coalesced, produced.sizes))
                for item in produced.items:
                    tell(item)
            else:
                told.append(repr(produced.value))

        if isinstance(reply, stream.Outputs):
            for produced in reply.outputs:
                tell(produced)
        inputs = []
        for storage, before in encoding.uploads:
            client.send(stream.Read(5, storage, 0, STORAGE_BYTES))
            answer = client.reply()
            if not isinstance(answer, stream.Data):
                continue
            if answer.data[:before] != bytes([encoding.fill]) * before:
                told.append("wrote before")
            inputs.append(answer.data[before:])
        client.send(stream.Free(tuple(storage for storage, _ in encoding.uploads) + tuple(new)))
        return ("answered" if isinstance(reply, stream.Outputs) else "failed", told, inputs)

