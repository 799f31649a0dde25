"""Kernels that a program brings of its own: compiled apart from the worker, launched in their order, or refused in one sentence."""

from __future__ import annotations

import base64
import json
import os
import struct
import subprocess
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from forebay_wire import stream
from forebay_wire._stream import Writer
from forebay_wire.kernels import put_source
from forebay_wire.stream import FailureCode
from forebay_wire.vocabulary import Kernel, KernelSource, Launch, Pointer
from forebay_worker.user_code import kernels
from forebay_worker.user_code.kernel_compiler import Compiled, parameters_of

ADD = """module {
  tt.func public @add(%x: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %y: !tt.ptr<f32>, %out: !tt.ptr<f32>, %n: i32, %by: f32) attributes {}
  {
    %block = arith.constant 64 : i32
    %pid = tt.get_program_id x : i32
    %start = arith.muli %pid, %block : i32
    %range = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
    %starts = tt.splat %start : i32 -> tensor<64xi32>
    %places = arith.addi %starts, %range : tensor<64xi32>
    %most = tt.splat %n : i32 -> tensor<64xi32>
    %mask = arith.cmpi slt, %places, %most : tensor<64xi32>
    %xs = tt.splat %x : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>>
    %x_at = tt.addptr %xs, %places : tensor<64x!tt.ptr<f32>>, tensor<64xi32>
    %a = tt.load %x_at, %mask : tensor<64x!tt.ptr<f32>>
    %ys = tt.splat %y : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>>
    %y_at = tt.addptr %ys, %places : tensor<64x!tt.ptr<f32>>, tensor<64xi32>
    %b = tt.load %y_at, %mask : tensor<64x!tt.ptr<f32>>
    %sum = arith.addf %a, %b : tensor<64xf32>
    %bys = tt.splat %by : f32 -> tensor<64xf32>
    %c = arith.mulf %sum, %bys : tensor<64xf32>
    %outs = tt.splat %out : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>>
    %out_at = tt.addptr %outs, %places : tensor<64x!tt.ptr<f32>>, tensor<64xi32>
    tt.store %out_at, %c, %mask : tensor<64x!tt.ptr<f32>>
    tt.return
  }
}
"""
"""out[i] = (x[i] + y[i]) * by, for i below n."""
BLOCK = 64

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed: pip install triton (190 MB)")


def source(representation: str = ADD, **changes: Any) -> KernelSource:
    release = "0.0.0"
    if find_spec("triton") is not None:
        import triton

        release = triton.__version__
    return replace(KernelSource(release, 4, 3, 1, 0, True, representation.encode()), **changes)


def bits(value: float) -> int:
    return int.from_bytes(struct.pack("<f", value), "little")


def compiled(described: KernelSource, folder: Path, target: str = "cuda:80:32", form: str = "cubin") -> dict[str, Any]:
    """What the compiler's process says."""
    out = Writer()
    put_source(out, described)
    environ = {name: os.environ[name] for name in (*kernels.INHERITED,) if name in os.environ}
    environ |= {"HOME": str(folder), "TRITON_CACHE_DIR": str(folder / "cache"), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    told = len(out.bytes()).to_bytes(4, "little") + out.bytes()
    done = subprocess.run([*kernels.COMPILER, target, form], input=told, capture_output=True, env=environ, cwd=folder, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    return dict(json.loads(done.stdout))


@needs_triton
@pytest.mark.parametrize("architecture", [80, 90])
def test_a_kernel_is_compiled_for_the_architecture_of_the_device(tmp_path: Path, architecture: int) -> None:
    made = Compiled.decoded(compiled(source(), tmp_path, f"cuda:{architecture}:32"))
    assert (made.name, made.parameters, made.threads) == ("add", "ppp44", 128)
    assert made.binary.startswith(b"\x7fELF") and made.hidden in (0, 1, 2)
    assert f"sm_{architecture}".encode() in made.binary


HOSTILE = {
    "a release that is read otherwise": (source(compiler="1.0.0"), "it is of Triton 1.0.0, and this worker has"),
    "no kernel": (source("module {}"), "there is no kernel in it"),
    "no representation": (source("import os"), "it cannot be compiled"),
    "a name that leads elsewhere": (source(ADD.replace("@add", '@"../../add"')), "its name is none of Python's"),
    "a file of the host": (source(ADD.replace("attributes {}", 'attributes {libpath = "/etc/passwd"}')), "it names a file of its host"),
    "clusters": (source(blocks=2), "clusters of 2 blocks"),
    "warps that are no power of two": (source(warps=3), "it cannot be compiled"),
}


@needs_triton
@pytest.mark.parametrize("case", list(HOSTILE))
def test_what_is_no_kernel_is_refused_in_words(tmp_path: Path, case: str) -> None:
    described, words = HOSTILE[case]
    said = compiled(described, tmp_path)
    assert words in said["refused"], said
    assert len(said["refused"].splitlines()) == 1
    assert {path.name for path in tmp_path.iterdir()} <= {"cache", "kernel.ttir"}


@pytest.mark.parametrize(
    "change", [{"name": "../add"}, {"threads": 0}, {"hidden": 99}, {"shared_bytes": -1}, {"binary": "?"}, {"name": "a" * 300}], ids=str
)
def test_what_a_compiler_says_that_is_no_kernel_is_not_loaded(change: dict[str, Any]) -> None:
    """It has read what a tenant sent, so it is believed as little."""
    said = {"name": "add", "parameters": "pp4", "hidden": 0, "shared_bytes": 0, "threads": 128, "binary": base64.b64encode(b"ELF").decode()}
    assert Compiled.decoded(said).binary == b"ELF"
    with pytest.raises(ValueError):
        Compiled.decoded(said | change)


def test_a_kernels_parameters_are_read_off_its_head() -> None:
    assert parameters_of(ADD, "add") == "ppp44"
    first, second = '%a: !tt.ptr<bf16> {tt.divisibility = 16 : i32} loc("a"(#loc))', '%b: i64 loc("b"(#loc))'
    head = f"tt.func public @k({first}, {second}, %c: i1, %d: f64) attributes {{}} {{\n"
    assert parameters_of(head, "k") == "p818"


def define(client: Any, described: KernelSource, number: int = 1) -> stream.Reply:
    client.send(Kernel(client.request(), number, described))
    return client.reply()  # type: ignore[no-any-return]


def launch_add(n: int, *storages: int, by: float = 1.0, kernel: int = 1) -> Launch:
    return Launch(kernel, (-(-n // BLOCK), 1, 1), (*(Pointer(storage, 0) for storage in storages), n, bits(by)))


REFUSALS = {
    "host": ("cpu:0", ("--kernels",), {}, kernels.ON_HOST),
    "off": ("standin:0", (), {}, kernels.SWITCHED_OFF),
    "part": ("standin:0", ("--kernels",), {}, kernels.TOO_LITTLE),
    "several": ("standin:0+standin:1", ("--kernels",), {"memory_bytes": 4 << 30}, "a session of several devices takes none"),
}


@pytest.mark.parametrize(("device", "options", "more", "why"), REFUSALS.values(), ids=list(REFUSALS))
def test_a_kernel_is_refused_in_one_sentence_and_costs_nothing(
    start_worker: Any, device: str, options: tuple[str, ...], more: dict[str, Any], why: str
) -> None:
    if device.startswith("standin") and find_spec("triton") is None and "--kernels" in options and "several" not in why:
        why = kernels.NO_TRITON
    elif device.startswith("standin") and find_spec("triton") is None:
        why = kernels.NO_TRITON
    client = start_worker(*options, device=device, **more).connect()
    with client.socket:
        welcome = client.hello()
        assert isinstance(welcome, stream.Welcome)
        x = client.upload(torch.ones(4))
        told = define(client, source())
        assert isinstance(told, stream.Failure)
        assert (told.code, told.number) == (FailureCode.UNSUPPORTED, 0) and why in told.message
        assert device != "cpu:0" or welcome.no_kernels == why
        assert client.read(x, 16) == torch.ones(4).numpy().tobytes(), "the session goes on"


@pytest.fixture
def launching(start_worker: Callable[..., Any]) -> Any:
    """A client whose worker takes kernels and has one."""
    client = start_worker("--kernels", device="standin:0", memory_bytes=4 << 30).connect()
    with client.socket:
        welcome = client.hello()
        assert isinstance(welcome, stream.Welcome) and welcome.no_kernels == ""
        assert isinstance(define(client, source()), stream.Done)
        yield client


@needs_triton
@pytest.mark.parametrize("device", ["standin:0"])
def test_launches_come_in_their_order_among_calls_and_write_to_what_they_are_given(launching: Any) -> None:
    n = 200
    x, y = torch.arange(float(n)), torch.full((n,), 0.5)
    one, other, out = launching.upload(x), launching.upload(y), launching.storage()
    launching.writer.add(stream.Allocate(out, 4 * n))
    launching.send(launch_add(n, one, other, out, by=2.0), launch_add(n, out, other, one))
    launching.send(stream.Copy(other, 0, one, 0, 4 * n), launch_add(n, one, other, other))
    results = [torch.frombuffer(bytearray(launching.read(storage, 4 * n)), dtype=torch.float32) for storage in (out, one, other)]
    expected = (x + y) * 2
    assert torch.equal(results[0], expected)
    assert torch.equal(results[1], expected + y)
    assert torch.equal(results[2], 2 * (expected + y))


@needs_triton
@pytest.mark.parametrize("device", ["standin:0"])
def test_a_launch_that_does_not_fit_fails_by_itself_and_the_session_goes_on(launching: Any) -> None:
    x = launching.upload(torch.ones(64))
    cases = [
        (Launch(1, (1, 1, 1), (Pointer(x, 0),)), "it takes 5 arguments, and was given 1"),
        (Launch(1, (1, 1, 1), (Pointer(x, 0), Pointer(x, 0), Pointer(x, 0), Pointer(x, 0), 0)), "argument 3 is a tensor"),
        (Launch(1, (1, 1, 1), (Pointer(x, 0), Pointer(x, 0), 12345, 64, 0)), "argument 2 is a number"),
    ]
    for wrong, words in cases:
        launching.send(wrong, launch_add(64, x, x, x))
        told = launching.sync()
        assert isinstance(told, stream.Failure) and words in told.message and told.operator == "triton::add"
        assert launching.read(x, 4) == struct.pack("<f", 1.0), "nothing after it took effect"
    launching.send(launch_add(64, x, x, x))
    assert launching.read(x, 4) == struct.pack("<f", 2.0)


@needs_triton
@pytest.mark.parametrize("device", ["standin:0"])
def test_a_stray_address_costs_the_device_as_on_a_gpu(launching: Any) -> None:
    x = launching.upload(torch.ones(64))
    launching.send(launch_add(1 << 20, x, x, x))
    told = launching.sync()
    assert isinstance(told, stream.Failure) and told.code == FailureCode.DEVICE_LOST
    assert "an illegal memory access was encountered" in told.message


@pytest.mark.parametrize("device", ["cpu:0"])
@pytest.mark.parametrize(
    "body",
    [
        b"\x25\x01\x01\x01\x01\x00",  # a launch of what was not defined
        b"\x24\x02\x01\x00" + b"\xff" * 12,  # sizes beyond 64 bits
        b"\x24\x02\x01\x00\x04\x03\x01\x00\x01\xff\xff\xff\x7f",  # a kernel longer than its frame
    ],
    ids=["undefined", "sizes", "cut"],
)
def test_what_is_not_the_protocol_ends_the_session_alone(client: Any, body: bytes) -> None:
    client.send_raw(body)
    assert isinstance(client.reply(), stream.Refused)
