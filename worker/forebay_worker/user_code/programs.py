"""Whole programs, of JAX and TensorFlow: parsed, compiled and carried out by XLA in this process, as jaxlib has it.

A session of several devices has them here too: each is a device of the same client of XLA. A program comes as StableHLO, of TensorFlow as
HLO, of which StableHLO is made. Before XLA sees it, its operations are held against what is served: a custom call could name any function
that is linked into this process. XLA's own client of the host's processor reads inputs where the session has them, and what it makes
becomes storages of the session, both without a copy.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from forebay_worker.user_code.kept_programs import LEAST_SECONDS, KeptPrograms
from forebay_worker.user_code.program_placements import Placement, Shards, shard_sizes

if TYPE_CHECKING:
    from forebay_worker._executor import Server
    from forebay_worker.pytorch import SeenDevice
    from forebay_worker.user_code.program_callbacks import CallBack, Callbacks

LOG = logging.getLogger(__name__)

Capsule = object
"""An array as DLPack hands it over."""
Array = tuple[int, Sequence[int]]
"""The type of its elements, as ``PJRT_Buffer_Type`` numbers them, and its sizes."""
Made = tuple[object, int, int]
"""Who keeps an array's memory, its address, and its bytes."""

ELEMENT_TYPES = {
    **{"i1": 1, "i8": 2, "i16": 3, "i32": 4, "i64": 5, "ui8": 6, "ui16": 7, "ui32": 8, "ui64": 9},
    **{"f16": 10, "f32": 11, "f64": 12, "bf16": 13, "complex<f32>": 14, "complex<f64>": 15},
    **{"f8E5M2": 16, "f8E4M3FN": 17, "f8E4M3B11FNUZ": 18, "f8E5M2FNUZ": 19, "f8E4M3FNUZ": 20, "f8E4M3": 26, "f8E3M4": 27, "f8E8M0FNU": 28},
}
DIALECTS = ("builtin", "func", "stablehlo", "chlo", "mhlo", "sdy")
HOST_OPERATIONS = ("infeed", "outfeed", "send", "recv")
"""Of those dialects; they need somebody at their other end."""
HANDLED_BY_XLA = ("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "mhlo.topk", "mhlo.erf", "dce_sink")
"""Custom calls that are no calls: XLA takes operations of its own for them."""
CALLBACK = "forebay_callback"
"""Custom calls that have the client call a function: program_callbacks.py."""
DONATED = ("tf.aliasing_output", "jax.buffer_donor")
"""Attributes of an argument that the caller gives up."""
TYPE_OF_TOKENS = "!stablehlo.token"
ALIASES = "mhlo.input_output_alias"
"""The attribute of a module that says in which of its inputs a result may be written."""
HLO = b"\n"
"""What a module in HLO begins with: its first field, the name, in the wire format of protocol buffers. MLIR begins with no such byte."""
SUM = b"""module @warm_up { func.func public @main(%a: tensor<2xf32>) -> tensor<2xf32> {
  %sum = stablehlo.add %a, %a : tensor<2xf32>
  return %sum : tensor<2xf32>
} }"""
NAME_LETTERS_MAX = 200
PATIENCE = "--xla_cpu_collective_call_terminate_timeout_seconds=86400"
"""How long a device waits for the others in a collective before XLA ends the process, which takes 40 s for too long. The pool ends calls
that hang (``call_seconds_max``)."""
CALLBACKS_OF_SEVERAL = "callbacks in a program over several devices are not served on the virtual device yet"
MISSING = "this worker takes no programs of JAX; its operator installs forebay-worker[xla]"
NOT_OFFERED = "this session's flavor offers no programs of JAX and TensorFlow (xla); choose one that does: forebay flavor list"
NOT_YET = "programs of JAX are carried out on the host's processor alone so far; choose a flavor of one"
OTHER_HOSTS = "a session of devices on several hosts takes no programs of JAX; choose a flavor that one host serves"


class Executable(Protocol):
    """What the executor asks of a compiled program. What it takes and makes is that of one of its devices."""

    name: str
    devices: int
    inputs: Sequence[Array]
    outputs: Sequence[Array]
    donated: Sequence[int]
    temporary_bytes: int
    calls_back: bool
    compiled: bytes
    """Of several devices: the module as XLA has divided and compiled it."""

    def run(self, arrays: Sequence[Capsule]) -> Sequence[Made]:
        """Carries it out, and waits for it. Arrays are those of each device, one device after the other. Raises what XLA raises."""


def accept(server: Server, devices: Sequence[SeenDevice], has_other_hosts: bool, threads: int | None, kept: KeptPrograms) -> None:
    """Has the executor take programs, or say why it does not. Nothing of XLA is loaded before the first one comes."""
    refused = why_not_here(devices) or (OTHER_HOSTS if has_other_hosts else "")
    compile_here = lambda *given: runtime(threads, len(devices), kept).compile(*given)  # noqa: E731
    server.take_programs(refused, None if refused else compile_here)


def why_not_here(devices: Sequence[SeenDevice]) -> str:
    """Why this worker's environment and devices carry out no programs; empty where they do."""
    return NOT_YET if any(device.kind != "cpu" for device in devices) else MISSING if find_spec("jax") is None else ""


_loading = threading.Lock()


def runtime(threads: int | None, devices: int, kept: KeptPrograms) -> Runtime:
    """This process's. Who comes while another thread loads it waits."""
    with _loading:
        return _runtime(threads, devices, kept)


@functools.cache
def _runtime(threads: int | None, devices: int, kept: KeptPrograms) -> Runtime:
    return Runtime(threads, devices, kept)


def load_ahead(threads: int | None, devices: Sequence[SeenDevice], kept: KeptPrograms) -> None:
    """Loads XLA in a thread, so that the session's first program need not wait for it. Does nothing where no programs are carried out."""
    if not why_not_here(devices):
        load = functools.partial(_load, threads, len(devices), kept)
        threading.Thread(target=load, name="forebay-programs").start()  # one that Python waits for as it ends: it is in XLA's own code


def _load(threads: int | None, devices: int, kept: KeptPrograms) -> None:
    began = time.monotonic()
    try:
        runtime(threads, devices, kept).warm_up()
    except Exception as error:  # the first program says so to its session
        LOG.warning("what programs need is not loaded: %s", error, extra={"action": "programs_not_loaded"})
    else:
        LOG.info("what programs need is loaded in %.2f s", time.monotonic() - began, extra={"action": "programs_loaded"})


class Runtime:
    """XLA for the host's processor, which is so many devices."""

    def __init__(self, threads: int | None, devices: int, kept: KeptPrograms) -> None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        if threads is not None:
            os.environ.setdefault("NPROC", str(threads * devices))  # of XLA's pool
        if devices > 1:
            os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {PATIENCE}"
        from jaxlib import _jax, lapack, xla_client
        from jaxlib.cpu import _lapack
        from jaxlib.mlir import ir
        from jaxlib.mlir._mlir_libs import _jax_mlir_ext
        from jaxlib.mlir.dialects import chlo, mhlo, sdy, stablehlo

        allowed = set(HANDLED_BY_XLA)
        for platform, targets in lapack.registrations().items():
            for name, function, version in targets:
                xla_client.register_custom_call_target(name, function, platform=platform, api_version=version)
                allowed.add(name)
        _lapack.initialize()  # else the first call of one goes through a null pointer
        self.allowed = frozenset(allowed)
        self.context = ir.Context()
        dialects = ir.DialectRegistry()
        _jax_mlir_ext.register_dialects(dialects)
        self.context.append_dialect_registry(dialects)
        self.context.load_all_available_dialects()
        for dialect in (chlo, sdy, stablehlo):
            dialect.register_dialect(self.context)
        mhlo.register_mhlo_dialect(self.context)
        self.client = xla_client.make_cpu_client(asynchronous=False, num_devices=devices)
        self.devices = self.client.local_devices()
        self.list_of = xla_client.DeviceList
        self.options = xla_client.CompileOptions
        self.take_over = _jax.dlpack_managed_tensor_to_buffer
        self.wait_for = _jax.batched_block_until_ready
        self.kept = kept

    def warm_up(self) -> None:
        """Compiles and carries out a small program, which has all loaded that the first one would wait for: an array of jaxlib's has JAX
        itself imported."""
        import torch

        self.compile(SUM, Placement(), _no_callback).run([torch.ones(2).__dlpack__()])

    def compile(self, module: bytes, told: tuple[Any, ...], call_back: CallBack) -> HostExecutable:
        """Raises NotImplementedError for what is not served, ValueError for what is no program, and what XLA raises."""
        from jaxlib.mlir.dialects import stablehlo

        from forebay_worker.user_code.program_callbacks import Callbacks

        of_tensorflow, key = module.startswith(HLO), self.kept.key(module, told, len(self.devices))
        if of_tensorflow:
            module = self._translated(module)
        with self.context:
            try:
                parsed = stablehlo.deserialize_portable_artifact(self.context, module)
            except ValueError:  # it is no portable artifact, as where operations of other dialects are in it
                parsed = self._parsed(module)
            callbacks = Callbacks(call_back)
            for operation in list(operations(parsed.operation)):
                if check(operation, self.allowed) == CALLBACK:
                    callbacks.take(operation)
            return HostExecutable(self, parsed, Placement(*told), callbacks, key, donates=not of_tensorflow)

    def load(self, module: Any, key: str, places: Any, options: Any, callbacks: Callbacks) -> Any:
        """The program in machine code: as it was kept, or compiled now. One that calls back is compiled each time."""
        if callbacks.functions:
            return self.client.compile_and_load(module, places, options, callbacks.functions)
        if (found := self.kept.find(key)) is not None:
            try:
                return self.client.deserialize_executable(found, places, options)
            except RuntimeError as error:  # of XLA
                LOG.warning("a kept program is not taken: %s", error, extra={"action": "program_not_taken"})
                self.kept.forget(key)
        began = time.monotonic()
        loaded = self.client.compile_and_load(module, places, options, callbacks.functions)
        took = time.monotonic() - began
        if took >= LEAST_SECONDS:
            self.kept.keep(key, loaded.serialize(), took)
        return loaded

    @staticmethod
    def _translated(module: bytes) -> bytes:
        from jaxlib import _jax

        try:
            translated: bytes = _jax.mlir.hlo_to_stablehlo(module)
        except RuntimeError as error:  # of XLA
            raise ValueError(f"this is no program that this worker reads: {error}") from None
        return translated

    def _parsed(self, module: bytes) -> Any:
        from jaxlib.mlir import ir

        try:
            return ir.Module.parse(module)
        except ir.MLIRError as error:
            raise ValueError(f"this is no program in StableHLO that this worker reads: {error}") from None


def _no_callback(*_given: Any) -> Any:
    raise NotImplementedError("this program calls nobody back")


def operations(operation: Any) -> Iterator[Any]:
    """It, and all within it."""
    yield operation
    for region in operation.regions:
        for block in region:
            for inner in block:
                yield from operations(inner.operation)


def check(operation: Any, allowed: frozenset[str]) -> str | None:
    """What is called, of a custom call. Raises NotImplementedError for an operation that is not served."""
    dialect, _, name = operation.name.partition(".")
    if dialect not in DIALECTS or name in HOST_OPERATIONS:
        raise NotImplementedError(f"the operation {operation.name} is not served on the virtual device")
    if name != "custom_call":
        return None
    target = str(operation.attributes["call_target_name"].value)
    if target not in allowed and target != CALLBACK:
        raise NotImplementedError(f"the custom call {target} is not served on the virtual device")
    return target


def array_of(kind: Any) -> Array:
    """Raises NotImplementedError for a type that is not served."""
    from jaxlib.mlir import ir

    if not isinstance(kind, ir.RankedTensorType) or not kind.has_static_shape:
        raise NotImplementedError(f"a program that takes or makes a {kind} is not served on the virtual device")
    letters = str(kind.element_type)
    if letters not in ELEMENT_TYPES:
        raise NotImplementedError(f"arrays of {letters} are not served on the virtual device")
    return ELEMENT_TYPES[letters], tuple(kind.shape)


def take_tokens(main: Any) -> None:
    """Has the function take and return empty arrays in place of tokens. Those order what one program does after another, and a session's
    programs are carried out in order."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    block = main.regions[0].blocks[0]
    returned = block.operations[len(block.operations) - 1]
    if not any(str(value.type) == TYPE_OF_TOKENS for value in (*block.arguments, *returned.operands)):
        return
    with ir.Location.unknown(), ir.InsertionPoint.at_block_begin(block):
        empty = ir.RankedTensorType.get([0], ir.IntegerType.get_signless(1))
        for argument in block.arguments:
            if str(argument.type) == TYPE_OF_TOKENS:
                argument.replace_all_uses_with(stablehlo.create_token())
                argument.set_type(empty)
        for index, value in enumerate(returned.operands):
            if str(value.type) == TYPE_OF_TOKENS:
                elements = ir.DenseElementsAttr.get(bytearray(), type=empty)
                returned.operation.operands[index] = stablehlo.constant(elements)
        kinds = [argument.type for argument in block.arguments], [value.type for value in returned.operands]
        main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*kinds))


class HostExecutable:
    """A program that XLA has compiled for the host's processor. What its caller gives up is kept while it runs: that costs memory, and
    changes no result. TensorFlow gives nothing up: several of its variables may have one buffer."""

    def __init__(self, runtime: Runtime, module: Any, placement: Placement, callbacks: Callbacks, key: str, *, donates: bool) -> None:
        self._runtime, self._callbacks = runtime, callbacks
        self.name = str(module.operation.attributes["sym_name"].value)[:NAME_LETTERS_MAX]
        placement.check(module.operation.attributes, len(runtime.devices))
        self.devices, self.calls_back = len(placement.devices), bool(callbacks.functions)
        if self.devices > 1 and self.calls_back:
            raise NotImplementedError(CALLBACKS_OF_SEVERAL)
        main = self._main(module)
        take_tokens(main)
        self.inputs: Sequence[Array] = [array_of(kind) for kind in main.type.inputs]
        self.outputs: Sequence[Array] = [array_of(kind) for kind in main.type.results]
        donated = self._take_donations(main)
        self.donated: Sequence[int] = donated if donates else []
        if ALIASES in module.operation.attributes:
            del module.operation.attributes[ALIASES]
        self._places = [runtime.devices[place] for place in placement.devices]
        places, options = runtime.list_of(tuple(self._places)), runtime.options()
        placement.settle(options)
        self._loaded = runtime.load(module, key, places, options, callbacks)
        self.compiled = b""
        if self.devices > 1:
            self._shards = Shards(places)
            self._take_shards()
        self._check_layouts()
        self.temporary_bytes = int(self._loaded.get_compiled_memory_stats().temp_size_in_bytes)

    def run(self, arrays: Sequence[Capsule]) -> Sequence[Made]:
        """As Executable."""
        runtime, takes = self._runtime, len(self.inputs)
        given = [runtime.take_over(array, self._places[index // takes], None) for index, array in enumerate(arrays)]
        if self.devices > 1:
            given = [self._shards.joined(given[index::takes]) for index in range(takes)]
        with self._callbacks.explained():
            outputs = self._loaded.execute_sharded(given).disassemble_into_single_device_arrays()
            made = [output[place] for place in range(self.devices) for output in outputs]
            runtime.wait_for(made)
        return [(array, array.unsafe_buffer_pointer(), array.on_device_size_in_bytes()) for array in made]

    def _take_shards(self) -> None:
        (module,) = self._loaded.hlo_modules()
        self.compiled = module.as_serialized_hlo_module_proto()
        taken, made = shard_sizes(self.compiled)
        self.inputs = [(kind, sizes) for (kind, _), sizes in zip(self.inputs, taken, strict=True)]
        self.outputs = [(kind, sizes) for (kind, _), sizes in zip(self.outputs, made, strict=True)]

    @staticmethod
    def _main(module: Any) -> Any:
        for operation in module.body.operations:
            if operation.operation.name == "func.func" and operation.attributes["sym_name"].value == "main":
                return operation
        raise ValueError("the program has no function main")

    @staticmethod
    def _take_donations(main: Any) -> list[int]:
        from jaxlib.mlir import ir

        donated, every = [], []
        for index, attributes in enumerate(main.arg_attrs):
            kept = {one.name: one.attr for one in attributes if one.name not in DONATED}
            if len(kept) < len(attributes):
                donated.append(index)
            every.append(ir.DictAttr.get(kept))
        main.arg_attrs = ir.ArrayAttr.get(every)
        return donated

    def _check_layouts(self) -> None:
        for arrays, layouts in ((self.inputs, self._loaded.get_parameter_layouts()), (self.outputs, self._loaded.get_output_layouts())):
            for (_, sizes), layout in zip(arrays, layouts, strict=True):
                dense = "{" + ",".join(str(dim) for dim in reversed(range(len(sizes)))) + "}"
                if str(layout) != dense:
                    raise NotImplementedError(f"arrays in the layout {layout} are not served on the virtual device")
