"""A real worker process, and a client that speaks the command stream to it."""

from __future__ import annotations

import copy
import json
import os
import secrets
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from forebay_wire import stream

sys.path.insert(0, str(Path(__file__).parent))  # for devices, link_to_pool

import fork_server
from devices import TWO_DEVICES, options_of
from forebay_wire.stream import Argument, Geometry, Output, OutputTag, Tag, Template
from forebay_wire.vocabulary import DEFAULT_DTYPE_SHIFT, FLOAT
from link_to_pool import Linked, Pool
from standin import build

START_SECONDS_MAX = 60
STOP_SECONDS_MAX = 20
MEMORY_BYTES = 256 << 20

DTYPES = {
    torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4, torch.float16: 5, torch.float32: 6, torch.float64: 7,
    torch.complex64: 9, torch.complex128: 10, torch.bool: 11, torch.bfloat16: 15,
}  # fmt: skip
DTYPE_OF = {number: dtype for dtype, number in DTYPES.items()}


def geometry_of(tensor: torch.Tensor) -> Geometry:
    flags = int(tensor.is_conj()) | int(tensor.is_neg()) << 1
    return Geometry(DTYPES[tensor.dtype], tuple(tensor.shape), tuple(tensor.stride()), flags)


def default_dtype_flags() -> int:
    """Of a template whose calls are made as this process is set now."""
    number = DTYPES[torch.get_default_dtype()]
    return 0 if number == FLOAT else number << DEFAULT_DTYPE_SHIFT


def bytes_of(tensor: torch.Tensor) -> bytes:
    """The whole storage under a tensor."""
    return bytes(torch.tensor([], dtype=torch.uint8).set_(tensor.untyped_storage()).numpy())


@dataclass
class Client:
    """One connection to a worker. ``run`` does with an operator what a virtual device would.

    It says that it heard of a failure with what it sends next.
    """

    socket: socket.socket
    ticket: bytes
    device: str = "cpu:0"
    """The worker's."""
    writer: stream.CommandWriter = field(default_factory=stream.CommandWriter)
    next_storage: int = 1
    next_request: int = 1
    hears: bool = True
    heard: int = 0
    notices: list[stream.Failure] = field(default_factory=list)
    operators: dict[str, int] = field(default_factory=dict)
    templates: dict[Template, int] = field(default_factory=dict)

    def hello(self) -> stream.Reply:
        self.send(stream.Hello(self.ticket, torch.__version__))
        return self.reply()

    def send(self, *commands: stream.Command) -> None:
        """One frame with all commands that were queued, and these."""
        for command in commands:
            self.writer.add(command)
        self.socket.sendall(stream.frame(self.writer.take()))

    def send_raw(self, body: bytes) -> None:
        self.socket.sendall(stream.frame(body))

    def reply(self) -> stream.Reply:
        """The next one that is no notice."""
        body = stream.read_frame(self.socket)
        assert body is not None, "the worker closed the connection"
        reply = stream.decode_reply(body)
        if isinstance(reply, stream.Failure):
            if reply.request == 0:
                self.notices.append(reply)
                return self.reply()
            self.hear(reply)
        return reply

    def hear(self, failure: stream.Failure) -> None:
        if self.hears and failure.number > self.heard:
            self.heard = failure.number
            self.writer.add(stream.Heard(failure.number))

    def request(self) -> int:
        self.next_request += 1
        return self.next_request

    def storage(self) -> int:
        self.next_storage += 1
        return self.next_storage

    def sync(self) -> stream.Reply:
        self.send(stream.Sync(self.request()))
        return self.reply()

    def upload(self, tensor: torch.Tensor) -> int:
        data = bytes_of(tensor)
        storage = self.storage()
        self.writer.add(stream.Allocate(storage, len(data)))
        for start in range(0, len(data), stream.CHUNK_BYTES_MAX):
            self.writer.add(stream.Write(storage, start, data[start : start + stream.CHUNK_BYTES_MAX]))
        return storage

    def read(self, storage: int, size: int, offset: int = 0) -> bytes:
        parts = []
        for start in range(offset, offset + size, stream.CHUNK_BYTES_MAX):
            request = self.request()
            self.send(stream.Read(request, storage, start, min(stream.CHUNK_BYTES_MAX, offset + size - start)))
            reply = self.reply()
            assert isinstance(reply, stream.Data), reply
            assert reply.request == request
            parts.append(reply.data)
        return b"".join(parts)

    def download(self, storage: int, geometry: Geometry) -> torch.Tensor:
        dtype = DTYPE_OF[geometry.dtype]
        data = bytearray(self.read(storage, geometry.span() * dtype.itemsize))
        flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
        return flat.as_strided(geometry.sizes, geometry.strides)

    def operator(self, op: torch._ops.OpOverload) -> int:
        name = op._schema.name + "." + op._schema.overload_name
        if name not in self.operators:
            self.operators[name] = len(self.operators)
            self.writer.add(stream.Operator(op._schema.name, op._schema.overload_name, stream.schema_hash(str(op._schema))))
        return self.operators[name]

    def template(self, template: Template) -> int:
        if template not in self.templates:
            self.templates[template] = len(self.templates)
            self.writer.add(stream.DefineTemplate(template))
        return self.templates[template]

    def run(self, op: torch._ops.OpOverload, *args: Any, random: stream.Random | None = None, **kwargs: Any) -> tuple[Any, Any]:
        """Runs the operator here and there: (ours, theirs), each a list of the results and of the arguments it writes to."""
        call = Recording(self, op, args, kwargs)
        ours = call.run_here()
        outputs = call.outputs(ours)
        flags = default_dtype_flags() | (stream.RANDOM if random else 0)
        number = self.template(Template(self.operator(op), tuple(call.arguments), tuple(outputs), flags))
        self.send(stream.Call(number, tuple(call.bindings), random))
        return call.here, call.there()


@dataclass
class Recording:
    """One call on the way to the wire."""

    client: Client
    op: torch._ops.OpOverload
    args: Sequence[Any]
    kwargs: dict[str, Any]

    def __post_init__(self) -> None:
        self.values = [self._value(index, argument) for index, argument in enumerate(self.op._schema.arguments)]
        self.storages: dict[int, int] = {}
        self.bindings: list[stream.Binding] = []
        self.flat: list[torch.Tensor | None] = []
        self.written: list[tuple[torch.Tensor, int]] = []
        self.news: list[tuple[int, Geometry]] = []
        self.arguments = [self._argument(value, argument) for value, argument in zip(self.values, self.op._schema.arguments, strict=True)]
        self.here: list[torch.Tensor] = []

    def _value(self, index: int, argument: Any) -> Any:
        if index < len(self.args):
            return self.args[index]
        return self.kwargs.get(argument.name, argument.default_value if argument.has_default_value() else None)

    def _tensor(self, tensor: torch.Tensor | None) -> Argument:
        self.flat.append(tensor)
        if tensor is None:
            return Argument(Tag.NONE)
        key = tensor.untyped_storage().data_ptr()
        if key not in self.storages:
            self.storages[key] = self.client.upload(tensor)
        self.bindings.append(stream.View(self.storages[key], int(tensor.storage_offset())))
        return Argument(Tag.TENSOR, geometry=geometry_of(tensor))

    def _sparse(self, value: Any) -> Argument:
        items = tuple(self._tensor(part) for part in value.parts)
        return Argument(Tag.SPARSE, flag=value.coalesced, list=value.sizes, items=items, layout=value.layout)

    def _scalar(self, value: complex) -> Argument:
        self.bindings.append(value)
        tags = {bool: Tag.SCALAR_BOOL, int: Tag.SCALAR_INT, float: Tag.SCALAR_DOUBLE, complex: Tag.SCALAR_COMPLEX}
        return Argument(tags[type(value)])

    def _argument(self, value: Any, argument: Any) -> Argument:
        kind = str(argument.type).replace("Optional[Tensor]", "Tensor").removeprefix("Optional[").removesuffix("]")
        if value is None:
            return self._tensor(None)
        if kind == "Tensor":
            return self._sparse(value) if hasattr(value, "parts") else self._tensor(value)
        if kind.startswith("List[Tensor"):
            return Argument(Tag.TENSOR_LIST, items=tuple(self._tensor(item) for item in value))
        if kind.startswith("List["):
            return self._list(kind, value)
        if isinstance(value, torch.dtype):
            return Argument(Tag.INT, integer=DTYPES[value])
        match kind:
            case "number":
                return self._scalar(value)
            case "int":
                return Argument(Tag.INT, integer=int(value))
            case "float":
                self.bindings.append(float(value))
                return Argument(Tag.DOUBLE)
            case "bool":
                return Argument(Tag.BOOL, flag=value)
            case "str":
                return Argument(Tag.STRING, text=value)
            case "Device":
                return Argument(Tag.DEVICE, flag=True)
            case "Generator":
                return Argument(Tag.GENERATOR)
        raise NotImplementedError(kind)

    def _list(self, kind: str, value: Any) -> Argument:
        if kind.startswith("List[int"):
            return Argument(Tag.INT_LIST, list=tuple(value if isinstance(value, list | tuple) else [value]))
        if kind.startswith("List[bool"):
            return Argument(Tag.BOOL_LIST, list=tuple(int(item) for item in value))
        if kind.startswith("List[float"):
            self.bindings.append(tuple(float(item) for item in value))
            return Argument(Tag.DOUBLE_LIST, count=len(value))
        return Argument(Tag.SCALAR_LIST, items=tuple(self._scalar(item) for item in value))

    def run_here(self) -> list[Any]:
        values = copy.deepcopy(self.values)
        named = {argument.name: value for argument, value in zip(self.op._schema.arguments, values, strict=True)}
        positional = [named.pop(argument.name) for argument in self.op._schema.arguments if not argument.kwarg_only]
        result = self.op(*positional, **named)
        for argument, value in zip(self.op._schema.arguments, values, strict=True):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self.here += value if isinstance(value, list | tuple) else [value]
        for argument, value in zip(self.op._schema.arguments, self.values, strict=True):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in value if isinstance(value, list | tuple) else [value]:
                    self.written.append((tensor, self.storages[tensor.untyped_storage().data_ptr()]))
        if not self.op._schema.returns:
            return []
        return list(result) if len(self.op._schema.returns) > 1 else [result]

    def outputs(self, results: list[Any]) -> list[Output]:
        written = iter([i for i, tensor in enumerate(self.flat) if any(tensor is other for other, _ in self.written)])
        outputs = []
        for result, returned in zip(results, self.op._schema.returns, strict=True):
            if returned.alias_info is not None and returned.alias_info.is_write:
                outputs.append(Output(OutputTag.SAME, same=next(written)))
            elif isinstance(result, list | tuple):
                outputs.append(Output(OutputTag.LIST, items=tuple(self._new(item) for item in result)))
            else:
                outputs.append(self._new(result))
        return outputs

    def _new(self, tensor: torch.Tensor | None) -> Output:
        if tensor is None:
            return Output(OutputTag.NONE)
        self.here.append(tensor)
        geometry = geometry_of(tensor)
        storage = self.client.storage()
        self.bindings.append(storage)
        self.news.append((storage, geometry))
        return Output(OutputTag.NEW, geometry=geometry, storage_bytes=geometry.span() * tensor.dtype.itemsize)

    def there(self) -> list[torch.Tensor]:
        results = []
        for tensor, storage in self.written:
            data = bytearray(self.client.read(storage, tensor.untyped_storage().nbytes()))
            flat = torch.frombuffer(data, dtype=tensor.dtype)
            results.append(flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()))
        for storage, geometry in self.news:
            tensor = self.client.download(storage, geometry)
            if geometry.flags & 1:
                tensor = tensor.conj()
            if geometry.flags & 2:
                tensor = torch._neg_view(tensor)
            results.append(tensor)
        return results


@dataclass
class Worker:
    """A worker process without a pool, and what it printed."""

    process: subprocess.Popen[str]
    address: str
    ticket: bytes
    device: str

    def connect(self) -> Client:
        peer = connect(self.address)
        peer.settimeout(30)
        return Client(peer, self.ticket, self.device)

    def events(self) -> list[dict[str, Any]]:
        """What it printed, after it has ended."""
        output, _ = self.process.communicate(timeout=STOP_SECONDS_MAX)
        return [json.loads(line) for line in output.splitlines()]


def pid_of(client: Client) -> int:
    """Of the worker at the other end of a Unix socket: what a test starts may be a process that asks for a fork of another one."""
    pid: int = struct.unpack("3i", client.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))[0]
    return pid


def connect(address: str) -> socket.socket:
    if address.startswith("unix:"):
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(address.removeprefix("unix:"))
        return peer
    host, _, port = address.removeprefix("tcp:").rpartition(":")
    return socket.create_connection((host, int(port)))


def stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe:
            pipe.close()


@pytest.fixture(scope="session")
def single_threaded() -> Iterator[None]:
    """Sums come out bit by bit the same only where the work is cut the same."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """Short enough for a Unix socket's path, which pytest's folders may not be."""
    with tempfile.TemporaryDirectory(prefix="fb-") as folder:
        yield Path(folder)


StartWorker = Callable[..., Worker]
STANDIN_FINDING = "standin:"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of what a device does run on the host, on the stand-in for a GPU, and on two devices of one session."""
    if "device" in metafunc.fixturenames and not any("device" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")):
        everywhere = metafunc.definition.get_closest_marker("everywhere") or metafunc.config.getoption("--every-device")
        several = [] if metafunc.definition.get_closest_marker("one_device") else [TWO_DEVICES]
        one = metafunc.config.getoption("--on-device")
        metafunc.parametrize("device", [one] if one else ["cpu:0", "standin:0", *several] if everywhere else ["cpu:0"])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is tried everywhere is tried in each of its cases on the host, and on the others in one, but with --full-sweep."""
    if config.getoption("--every-device") or config.getoption("--on-device"):
        return
    tried = set()
    for item in items:
        everywhere = item.get_closest_marker("everywhere")
        if everywhere is None or "each case" in everywhere.args or not isinstance(item, pytest.Function):
            continue
        device = item.callspec.params["device"]
        if device != "cpu:0" and (item.path, item.originalname, device) in tried:
            item.add_marker("full_sweep")
        tried.add((item.path, item.originalname, device))


@pytest.fixture(scope="session")
def standin_folder() -> Path:
    """Where the stand-in can be imported from."""
    return build.built()


@pytest.fixture
def device_environment(request: pytest.FixtureRequest, device: str) -> dict[str, str]:
    """A worker's environment: with the stand-in, where the test runs on it."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if device.startswith("standin"):
        environment["PYTHONPATH"] = str(request.getfixturevalue("standin_folder"))
    return environment


@pytest.fixture
def worker_python(request: pytest.FixtureRequest, device: str) -> Path:
    """An interpreter whose workers are forks of a process that has imported what they need; a GPU's driver suffers no fork."""
    if not device.startswith(("cpu", "null", "standin")):
        return Path(sys.executable)
    return fork_server.standin(request.getfixturevalue("standin_folder")) if device.startswith("standin") else fork_server.services()


@pytest.fixture
def start_worker(
    socket_folder: Path, single_threaded: None, device: str, device_environment: dict[str, str], worker_python: Path, tmp_path: Path
) -> Iterator[StartWorker]:
    """Starts workers without a pool; they end with the test, which fails where the stand-in found a mistake."""
    started: list[Worker] = []
    ours = device

    def start(
        *options: str,
        device: str = ours,
        memory_bytes: int = MEMORY_BYTES,
        address: str | None = None,
        python: str | Path = worker_python,
        program: Sequence[str] = ("-m", "forebay_worker"),
    ) -> Worker:
        ticket = secrets.token_bytes(32)
        where = address or f"unix:{socket_folder}/{len(started)}.sock"
        command = [str(python), *program, "--standalone", where, "--threads", "1", *options_of(device)]
        command += ["--ticket", ticket.hex(), "--memory", str(memory_bytes), *options]
        with (tmp_path / f"worker-{len(started)}.log").open("w") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=device_environment)
        timer = threading.Timer(START_SECONDS_MAX, process.kill)
        timer.start()
        assert process.stdout
        line = process.stdout.readline()
        timer.cancel()
        assert line, f"the worker ended before it was ready: {Path(log.name).read_text()}"
        worker = Worker(process, json.loads(line)["address"], ticket, device.partition(",")[0])
        started.append(worker)
        return worker

    yield start
    for worker in started:
        stop(worker.process)
    logs = "".join(path.read_text(errors="replace") for path in sorted(tmp_path.glob("worker-*.log")))
    sys.stderr.write(logs)
    assert STANDIN_FINDING not in logs, logs


@pytest.fixture
def make_client() -> Callable[[str, bytes], Client]:
    """Connects to an address; the ticket is that of ``test_worker_link``."""

    def make(address: str, ticket: bytes = bytes(range(32))) -> Client:
        peer = connect(address)
        peer.settimeout(30)
        return Client(peer, ticket)

    return make


@pytest.fixture
def client(start_worker: StartWorker) -> Iterator[Client]:
    """A client of a worker on the host, let in."""
    client = start_worker().connect()
    with client.socket:
        assert isinstance(client.hello(), stream.Welcome)
        yield client


@pytest.fixture
def start_on_pool(
    socket_folder: Path,
    make_client: Callable[..., Any],
    tmp_path: Path,
    device: str,
    device_environment: dict[str, str],
    worker_python: Path,
) -> Iterator[Callable[..., Linked]]:
    """Starts workers that call a pool of their own each; the test fails where the stand-in found a mistake."""
    started: list[subprocess.Popen[str]] = []
    linked: list[Linked] = []
    pools: list[Pool] = []
    ours = device

    def start(*options: str, device: str = ours, spill: Path | None = None) -> Linked:
        pool, name = Pool(), f"w-{len(started)}"
        pools.append(pool)
        command = [str(worker_python), "-m", "forebay_worker", "--pool", pool.url, "--worker", name, *options_of(device)]
        command += ["--socket-dir", str(socket_folder), "--threads", "1", "--spill-dir", str(spill or tmp_path), *options]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**device_environment, "FOREBAY_WORKER_TOKEN": "t"})
        started.append(process)
        linked.append(Linked(pool, process, make_client, spill or tmp_path))
        return linked[-1]

    yield start
    for worker in linked:
        for client in worker.clients:
            client.socket.close()
    for process in started:
        process.kill()
        process.wait()
    for pool in pools:
        pool.stop()
    said = [read_rest(process) for process in started]
    assert not any(STANDIN_FINDING in text for text in said), said


def read_rest(process: subprocess.Popen[str]) -> str:
    assert process.stderr
    with process.stderr:
        return process.stderr.read()
