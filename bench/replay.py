"""What the worker's executor costs a call, against native eager PyTorch in this process: µs, and the ratio.

Both sides run the same operator on the same tensors in one thread, in turns; the smallest round counts, since other work on the
machine only ever adds. The executor's figure is that of a stream that was encoded before: reading, binding, running, adopting
the result, and freeing it. Attention has a contract (``worker/csrc/call/contracts.inc``), which is looked at once for each template; of
bags and of a pool's gradient the worker looks at the whole numbers in each call, which is in their figures.
"""

from __future__ import annotations

import argparse
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import torch
from forebay_wire import stream
from forebay_wire.stream import Argument, Geometry, Output, OutputTag, Tag, Template, View
from report import report

CALLS = 5_000
ROUNDS = 15
SMALL = 1000
"""Storage ids below this are inputs."""


@dataclass(frozen=True)
class Case:
    """One operator: its arguments beyond the tensors, the tensors, and how native PyTorch runs it."""

    name: str
    op: torch._ops.OpOverload
    tensors: list[torch.Tensor]
    template: Template
    values: tuple[stream.Binding, ...]
    native: Callable[[], object]


@dataclass(frozen=True)
class Figure:
    """The smallest mean of a round, in µs."""

    name: str
    executor_us: float
    eager_us: float
    ratio: float


DTYPES = {torch.float32: 6, torch.int64: 4}


def geometry(tensor: torch.Tensor) -> Geometry:
    return Geometry(DTYPES[tensor.dtype], tuple(tensor.shape), tuple(tensor.stride()))


def tensor(value: torch.Tensor) -> Argument:
    return Argument(Tag.TENSOR, geometry=geometry(value))


def new(value: torch.Tensor) -> Output:
    return Output(OutputTag.NEW, geometry=geometry(value), storage_bytes=value.nbytes)


def cases() -> list[Case]:
    """The three operators of DESIGN §10, on small tensors, where the cost of a call shows."""
    aten = torch.ops.aten
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    m, n = torch.randn(32, 32), torch.randn(32, 32)
    h, w, c = torch.randn(16, 64), torch.randn(64), torch.randn(64)
    normal = aten.native_layer_norm.default(h, [64], w, c, 1e-5)
    shape, epsilon = Argument(Tag.INT_LIST, list=(64,)), Argument(Tag.DOUBLE)
    return [
        Case(
            "add 4x4",
            aten.add.Tensor,
            [a, b],
            Template(0, (tensor(a), tensor(b), Argument(Tag.SCALAR_INT)), (new(a),)),
            (1,),
            lambda: a + b,
        ),
        Case("mm 32x32", aten.mm.default, [m, n], Template(1, (tensor(m), tensor(n)), (new(m),)), (), lambda: torch.mm(m, n)),
        Case(
            "layer_norm 16x64",
            aten.native_layer_norm.default,
            [h, w, c],
            Template(2, (tensor(h), shape, tensor(w), tensor(c), epsilon), tuple(new(result) for result in normal)),
            (1e-5,),
            lambda: torch.native_layer_norm(h, [64], w, c, 1e-5),
        ),
    ]


def argument(value: object) -> Argument:
    """How a template says it; a float is bound by each call."""
    match value:
        case torch.Tensor():
            return tensor(value)
        case bool():
            return Argument(Tag.BOOL, flag=value)
        case int():
            return Argument(Tag.INT, integer=value)
        case float():
            return Argument(Tag.DOUBLE)
        case list():
            return Argument(Tag.INT_LIST, list=tuple(value))
    return Argument(Tag.NONE)


def case_of(name: str, op: torch._ops.OpOverload, *given: object, **options: object) -> Case:
    """The operator with all its arguments, in the schema's order."""
    values = [*given, *options.values()]
    results = op(*given, **options)
    made = tuple(new(result) for result in (results if isinstance(results, tuple) else (results,)))
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    floats = tuple(value for value in values if isinstance(value, float))
    return Case(name, op, tensors, Template(0, tuple(argument(value) for value in values), made), floats, lambda: op(*given, **options))


def watched_cases() -> list[Case]:
    """Operators that lead by whole numbers, or trust what they are given: what watching over that costs."""
    aten = torch.ops.aten
    table, entries, row = torch.randn(1000, 64), torch.randint(0, 1000, (64,)), torch.randint(0, 64, (16, 16))
    rows, planes = torch.randn(1, 4, 16, 16), torch.randn(1, 8, 8, 8)
    flash = aten._scaled_dot_product_flash_attention_for_cpu.default
    pooled, places = aten.max_pool2d_with_indices.default(planes, [2, 2])
    return [
        case_of("gather 16x16 of 16x64", aten.gather.default, torch.randn(16, 64), 1, row, sparse_grad=False),
        case_of("index_select 64 of 1000x64", aten.index_select.default, table, 0, entries),
        case_of("attention 1x4x16x16", flash, rows, rows, rows, 0.0, False, attn_mask=None, scale=None),
        case_of("bags 8 of 64", aten._embedding_bag.default, table, entries, torch.arange(0, 64, 8), False, 0, False, None, False, -1),
        case_of(
            "max_pool2d's gradient 8x8x8",
            aten.max_pool2d_with_indices_backward.default,
            *(pooled, planes, [2, 2], [2, 2], [0, 0], [1, 1], False, places),
        ),
    ]


class Bench:
    """A client of one worker process."""

    def __init__(self, peer: socket.socket, ticket: bytes) -> None:
        self.peer = peer
        self.writer = stream.CommandWriter()
        self.send([stream.Hello(ticket, torch.__version__)])
        reply = self.reply()
        if not isinstance(reply, stream.Welcome):
            raise SystemExit(f"the worker answered {reply}")

    def send(self, commands: list[stream.Command]) -> None:
        for command in commands:
            self.writer.add(command)
        self.peer.sendall(stream.frame(self.writer.take()))

    def reply(self) -> stream.Reply:
        body = stream.read_frame(self.peer)
        if body is None:
            raise SystemExit("the worker closed the connection")
        return stream.decode_reply(body)

    def prepare(self, number: int, case: Case) -> bytes:
        """Uploads a case's tensors; returns the frame that one round sends."""
        ids = [number * 10 + index + 1 for index in range(len(case.tensors))]
        schema = case.op._schema
        self.send(
            [
                stream.Operator(schema.name, schema.overload_name, stream.schema_hash(str(schema))),
                stream.DefineTemplate(replace(case.template, op=number)),
                *(stream.Allocate(storage, value.nbytes) for storage, value in zip(ids, case.tensors, strict=True)),
                *(stream.Write(storage, 0, value.numpy().tobytes()) for storage, value in zip(ids, case.tensors, strict=True)),
            ]
        )
        views = tuple(View(storage) for storage in ids)
        outputs = len(case.template.outputs)
        for call in range(CALLS):
            made = tuple(SMALL + call * outputs + index for index in range(outputs))
            self.writer.add(stream.Call(number, (*views, *case.values, *made)))
            self.writer.add(stream.Free(made))
        self.writer.add(stream.Sync(1))
        return stream.frame(self.writer.take())

    def round(self, frame: bytes) -> float:
        """µs a call of one round."""
        begun = time.perf_counter()
        self.peer.sendall(frame)
        reply = self.reply()
        ended = time.perf_counter()
        if not isinstance(reply, stream.Done):
            raise SystemExit(f"the worker answered {reply}")
        return (ended - begun) / CALLS * 1e6


def eager_round(native: Callable[[], object]) -> float:
    """µs a call of one round."""
    begun = time.perf_counter()
    for _ in range(CALLS):
        native()
    return (time.perf_counter() - begun) / CALLS * 1e6


def measure(bench: Bench) -> list[Figure]:
    """One figure a case; executor and eager take turns."""
    figures = []
    for number, case in enumerate([*cases(), *watched_cases()]):
        frame = bench.prepare(number, case)
        rounds = [(bench.round(frame), eager_round(case.native)) for _ in range(ROUNDS)]
        executor, eager = min(one for one, _ in rounds), min(other for _, other in rounds)
        figures.append(Figure(case.name, executor, eager, executor / eager))
    return figures


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    ticket = secrets.token_bytes(32)
    with tempfile.TemporaryDirectory(prefix="fb-") as folder:
        command = [
            sys.executable,
            "-m",
            "forebay_worker",
            "--standalone",
            f"unix:{folder}/w.sock",
            "--ticket",
            ticket.hex(),
            "--threads",
            "1",
            "--log-level",
            "error",
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker, socket.socket(socket.AF_UNIX) as peer:
            if not worker.stdout or not worker.stdout.readline():
                raise SystemExit("the worker did not start")
            peer.connect(f"{folder}/w.sock")
            figures = measure(Bench(peer, ticket))
            worker.terminate()
    report("replay", [asdict(figure) for figure in figures], torch=torch.__version__)


if __name__ == "__main__":
    main()
