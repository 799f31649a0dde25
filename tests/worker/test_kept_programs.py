"""Executables on disk: found by a tenant's next worker, with the same bits, and never taken where they are not what was kept."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from forebay_worker.libraries import Libraries
from forebay_worker.user_code import kept_programs, programs
from forebay_worker.user_code.kept_programs import KeptPrograms
from torch.utils.dlpack import to_dlpack

pytestmark = pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed: pip install jax (90 MB)")

ALONE = (1, 1, (0,), False, False, (False,), (False,))
BOTH = (1, 2, (0, 1), True, True, (False,), (False,))
HEAD = "module @jit_step attributes {mhlo.num_partitions = COUNT : i32, mhlo.num_replicas = 1 : i32} { "
SOLVE = (
    HEAD.replace("COUNT", "1")
    + """func.func public @main(%x: tensor<3x3xf32>) -> (tensor<3x3xf32>, tensor<i32>) {
  %s = stablehlo.exponential %x : tensor<3x3xf32>
  %r:2 = stablehlo.custom_call @lapack_spotrf_ffi(%s) {
    mhlo.backend_config = {uplo = 76 : ui8}, operand_layouts = [dense<[0, 1]> : tensor<2xindex>],
    result_layouts = [dense<[0, 1]> : tensor<2xindex>, dense<> : tensor<0xindex>]} : (tensor<3x3xf32>) -> (tensor<3x3xf32>, tensor<i32>)
  return %r#0, %r#1 : tensor<3x3xf32>, tensor<i32>
} }"""
)
"""A Cholesky factor of exponentials, by a custom call."""
DIVIDED = (
    HEAD.replace("COUNT", "2")
    + """sdy.mesh @mesh = <["x"=2]>
  func.func public @main(%x: tensor<4x3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
      -> (tensor<f32> {sdy.sharding = #sdy.sharding<@mesh, []>}) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %sum = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x3xf32>, tensor<f32>) -> tensor<f32>
    return %sum : tensor<f32>
  } }"""
)
ASKS = (
    HEAD.replace("COUNT", "1")
    + """func.func public @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  %r = stablehlo.custom_call @forebay_callback(%x) {
    has_side_effect = true, mhlo.backend_config = {number = 7 : ui64}} : (tensor<3xf32>) -> tensor<3xf32>
  return %r : tensor<3xf32>
} }"""
)
MATRIX = torch.tensor([[2.0, 0.1, 0.2], [0.1, 3.0, 0.3], [0.2, 0.3, 4.0]])


@pytest.fixture(scope="module")
def runtimes() -> dict[int, Any]:
    """XLA for one device, and for two."""
    return {devices: programs.Runtime(None, devices, KeptPrograms(None)) for devices in (1, 2)}


@pytest.fixture(autouse=True)
def all_are_worthwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "LEAST_SECONDS", 0.0)


@pytest.fixture
def worker(runtimes: dict[int, Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A worker's runtime that keeps its programs in a folder. Without a compiler it can only take what was kept."""

    whole = {devices: runtime.client for devices, runtime in runtimes.items()}

    def begin(folder: Path | None, *, compiles: bool = True, devices: int = 1) -> Any:
        runtime, client = runtimes[devices], whole[devices]
        monkeypatch.setattr(runtime, "kept", KeptPrograms(folder))
        only_reads = SimpleNamespace(deserialize_executable=client.deserialize_executable)
        monkeypatch.setattr(runtime, "client", client if compiles else only_reads)
        return runtime

    return begin


def refuse(*_: object) -> Any:
    raise AssertionError("no program here calls back")


def compiled(runtime: Any, module: str = SOLVE, placement: tuple[Any, ...] = ALONE) -> Any:
    return runtime.compile(module.encode(), placement, refuse)


def results(executable: Any, *inputs: torch.Tensor) -> list[bytes]:
    made = executable.run([to_dlpack(one) for one in inputs])
    return [ctypes.string_at(address, size) for _, address, size in made]


def the_file(folder: Path) -> Path:
    (found,) = folder.glob("*.so")
    return found


def test_the_next_worker_takes_it_with_the_same_bits(worker: Any, tmp_path: Path) -> None:
    first = compiled(worker(tmp_path / "a"))
    wanted = results(first, MATRIX)
    second = compiled(worker(tmp_path / "a", compiles=False))
    assert results(second, MATRIX) == wanted
    assert (second.name, second.inputs, second.outputs) == (first.name, first.inputs, first.outputs)
    assert second.temporary_bytes == first.temporary_bytes
    factor = torch.frombuffer(bytearray(wanted[0]), dtype=torch.float32).reshape(3, 3).tril()
    assert torch.allclose(factor, torch.linalg.cholesky(MATRIX.exp()))


def test_a_program_over_several_devices_is_taken_too(worker: Any, tmp_path: Path) -> None:
    halves = torch.arange(6.0).reshape(2, 3), torch.arange(6.0, 12.0).reshape(2, 3)
    first = compiled(worker(tmp_path / "a", devices=2), DIVIDED, BOTH)
    wanted = results(first, *halves)
    second = compiled(worker(tmp_path / "a", devices=2, compiles=False), DIVIDED, BOTH)
    assert results(second, *halves) == wanted == [torch.tensor(66.0).numpy().tobytes()] * 2
    assert (second.inputs, second.outputs) == (first.inputs, first.outputs)
    assert programs.shard_sizes(second.compiled) == programs.shard_sizes(first.compiled)


def test_another_tenant_does_not_find_it(worker: Any, tmp_path: Path) -> None:
    compiled(worker(tmp_path / "a"))
    with pytest.raises(AttributeError, match="compile_and_load"):
        compiled(worker(tmp_path / "b", compiles=False))
    assert not list((tmp_path / "b").glob("*.so"))


@pytest.mark.parametrize("devices", [1, 2])
def test_what_a_worker_loads_ahead_is_kept_nowhere_and_the_tenants_folder_counts_from_then_on(
    worker: Any, tmp_path: Path, devices: int
) -> None:
    runtime = worker(None, devices=devices)
    runtime.warm_up()
    runtime.kept.keep_in(tmp_path / "a")
    assert not (tmp_path / "a").exists()
    first = compiled(runtime)
    assert the_file(tmp_path / "a").stat().st_size
    assert results(compiled(worker(tmp_path / "a", compiles=False, devices=devices)), MATRIX) == results(first, MATRIX)


def test_without_a_folder_nothing_is_kept(worker: Any, tmp_path: Path) -> None:
    wanted = results(compiled(worker(None)), MATRIX)
    assert results(compiled(worker(None)), MATRIX) == wanted
    assert not list(tmp_path.iterdir())


SPOILT = {
    "a bit is turned": lambda content: content[:1000] + bytes([content[1000] ^ 1]) + content[1001:],
    "its end is missing": lambda content: content[:-1],
    "nothing is in it": lambda content: b"",
    "something is added": lambda content: content + b"\0",
}


@pytest.mark.parametrize("how", SPOILT)
def test_what_is_not_whole_is_compiled_again(how: str, worker: Any, tmp_path: Path) -> None:
    wanted = results(compiled(worker(tmp_path / "a")), MATRIX)
    kept = the_file(tmp_path / "a")
    whole = kept.read_bytes()
    kept.write_bytes(SPOILT[how](whole))
    with pytest.raises(AttributeError, match="compile_and_load"):
        compiled(worker(tmp_path / "a", compiles=False))
    assert results(compiled(worker(tmp_path / "a")), MATRIX) == wanted
    assert results(compiled(worker(tmp_path / "a", compiles=False)), MATRIX) == wanted, "it is kept again"


def test_what_another_may_have_written_is_not_opened(worker: Any, tmp_path: Path) -> None:
    compiled(worker(tmp_path / "a"))
    the_file(tmp_path / "a").chmod(0o666)
    with pytest.raises(AttributeError, match="compile_and_load"):
        compiled(worker(tmp_path / "a", compiles=False))
    (tmp_path / "a").chmod(0o777)
    kept = KeptPrograms(tmp_path / "a")
    key = the_file(tmp_path / "a").stem
    assert kept.find(key) is None
    kept.keep(key, b"something else", 1.0)
    assert the_file(tmp_path / "a").read_bytes() != b"something else"


def test_what_xla_does_not_take_is_compiled_and_kept_anew(worker: Any, tmp_path: Path) -> None:
    wanted = results(compiled(worker(tmp_path / "a")), MATRIX)
    key = the_file(tmp_path / "a").stem
    KeptPrograms(tmp_path / "a").keep(key, b"no executable", 1.0)
    assert results(compiled(worker(tmp_path / "a")), MATRIX) == wanted
    assert results(compiled(worker(tmp_path / "a", compiles=False)), MATRIX) == wanted


def test_a_module_is_held_against_what_is_served_before_a_file_is_looked_for(worker: Any, tmp_path: Path) -> None:
    runtime = worker(tmp_path / "a")
    compiled(runtime)
    refused = SOLVE.replace("lapack_spotrf_ffi", "system")
    runtime.kept.keep(runtime.kept.key(refused.encode(), ALONE, 1), the_file(tmp_path / "a").read_bytes(), 1.0)
    with pytest.raises(NotImplementedError, match="the custom call system is not served"):
        compiled(runtime, refused)


def test_a_program_that_calls_back_is_not_kept(worker: Any, tmp_path: Path) -> None:
    assert compiled(worker(tmp_path / "a"), ASKS).calls_back
    assert not list((tmp_path / "a").glob("*.so"))


def test_what_is_quick_to_compile_is_not_kept(worker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "LEAST_SECONDS", 3600.0)
    compiled(worker(tmp_path / "a"))
    assert not list((tmp_path / "a").glob("*.so"))


def test_the_key_has_all_that_an_executable_is_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(module: bytes = b"module", placement: tuple[object, ...] = ALONE, devices: int = 1) -> str:
        return KeptPrograms.key(module, placement, devices)

    keys = [key(), key(b"modulf"), key(placement=BOTH), key(devices=2), key(b"module\0")]
    for name, value in (("NPROC", "7"), ("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")):
        monkeypatch.setenv(name, value)
        keys.append(key())
        monkeypatch.delenv(name)
    monkeypatch.setattr(kept_programs, "version", lambda _: "0.0.1")
    keys.append(key())
    monkeypatch.undo()
    monkeypatch.setattr(kept_programs, "processor", lambda: "flags: of another one")
    keys.append(key())
    assert len(set(keys)) == len(keys) and key() == key()


def test_a_full_folder_loses_what_was_not_used_for_longest(tmp_path: Path) -> None:
    libraries = Libraries(tmp_path / "a", bytes_max=250)
    kept = KeptPrograms(tmp_path / "a")
    vars(kept)["_opened"] = libraries
    for number in range(3):
        kept.keep(f"{number:040x}", bytes([number]) * 100, 1.0)
        os.utime(libraries.folder / f"{number:040x}.so", (number, number))
    kept.keep(f"{3:040x}", b"\3" * 100, 1.0)
    found = [kept.find(f"{number:040x}") for number in range(4)]
    assert found[0] is None and found[3] == b"\3" * 100
