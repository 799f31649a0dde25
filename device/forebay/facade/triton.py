"""Triton's own kernels (``@triton.jit``): lowered here to Triton's intermediate representation, compiled and launched by the worker.

The program's Triton stays as it is. It gets a compiler that stops before anything depends on the make of a device, and a driver whose
launches are commands of the stream. None of the program's Python leaves this process.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import struct
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, NoReturn

import torch
from forebay_wire._stream import KERNEL_BYTES_MAX, Writer
from forebay_wire.kernels import put_source
from forebay_wire.vocabulary import KernelSource

from forebay import _C
from forebay.errors import NotOnVirtualDevice
from forebay.facade import graphs
from forebay.facade.properties import CAPABILITY, MULTI_PROCESSOR_COUNT, DeviceProperties

ARCHITECTURE = 10 * CAPABILITY[0] + CAPABILITY[1]
"""What kernels are lowered for; the worker compiles them for its own device, which has at least that."""
WARP = 32
FORM = "forebay"
"""How the form is called in which kernels go to a worker."""
OUT_OF_RESOURCES, UNSUPPORTED = 2, 4
"""Codes of failures on the wire."""
FLUSHED_BYTES = 40 << 20
"""What benchmarks write to have nothing in the device's caches."""

_numbers = itertools.count(1)


def refuse(name: str, reason: str) -> NoReturn:
    """Raises NotOnVirtualDevice of a kernel."""
    raise NotOnVirtualDevice(f"The Triton kernel {name}", reason.removesuffix(".") + ".")


def encoded(name: str, representation: bytes, options: Any) -> bytes:
    """As a worker gets it. Raises NotOnVirtualDevice for what launches there cannot do."""
    import triton

    if len(representation) > KERNEL_BYTES_MAX:
        refuse(name, f"it has {len(representation)} bytes lowered, and at most {KERNEL_BYTES_MAX} go to a worker; divide it")
    if options.launch_cooperative_grid or options.launch_pdl:
        refuse(name, "launches are plain ones; leave launch_cooperative_grid and launch_pdl out")
    numbers = (options.num_warps, options.num_stages, options.num_ctas, options.maxnreg or 0)
    out = Writer()
    put_source(out, KernelSource(triton.__version__, *numbers, bool(options.enable_fp_fusion), representation))
    return out.bytes()


class Kernel:
    """One kernel for one set of types and constants."""

    def __init__(self, name: str, source: bytes) -> None:
        self.name = name
        self._number = next(_numbers)
        self._source = source
        self._defined: set[int] = set()

    def define(self, device: int) -> None:
        """Waits until the device's worker has compiled it. Raises NotOnVirtualDevice, RuntimeError, or Triton's OutOfResources."""
        refusal = _C.define_kernel(self._number, self._source, device)
        if refusal is None:
            self._defined.add(device)
            return
        code, why = refusal
        if code == UNSUPPORTED:
            refuse(self.name, why)
        if code == OUT_OF_RESOURCES:
            from triton.runtime.errors import OutOfResources

            required, limit = map(int, re.findall(r"\d+", why)[:2])
            raise OutOfResources(required, limit, "shared memory")
        raise RuntimeError(f"The worker does not compile the Triton kernel {self.name}: {why}")

    def launch(self, device: int, grid: tuple[int, int, int], *arguments: torch.Tensor | int) -> None:
        """Raises as :meth:`define`, and ValueError for a tensor that is not of the device."""
        if device not in self._defined:
            self.define(device)
        try:
            _C.launch_kernel(self._number, self._source, grid, arguments, device)
        except NotImplementedError as error:  # of another worker, to which the session has moved
            refuse(self.name, str(error))


def _flat(types: object, values: object) -> Iterator[tuple[str, Any]]:
    """What a kernel is given, tuples taken apart and constants left out."""
    if isinstance(types, tuple | list) and isinstance(values, Sequence):
        for kind, value in zip(types, values, strict=True):
            yield from _flat(kind, value)
    elif types != "constexpr":
        yield str(types), values


def _pointer(name: str, value: Any) -> torch.Tensor | int:
    tensor = value if isinstance(value, torch.Tensor) else getattr(value, "base", value)
    if tensor is None:
        return 0
    if not isinstance(tensor, torch.Tensor):
        refuse(name, f"memory of a virtual device has no address in this process; give it a tensor in place of {type(value).__name__}")
    return tensor


def _bits(name: str, kind: str, value: Any) -> int:
    """A number as the kernel reads it."""
    match kind:
        case "fp32" | "f32":
            return int.from_bytes(struct.pack("<f", _narrowed(value)), "little")
        case "fp64" | "f64":
            return int.from_bytes(struct.pack("<d", value), "little")
        case "fp16" | "bf16":
            narrow = torch.tensor(value, dtype=torch.float16 if kind == "fp16" else torch.bfloat16, device="cpu")
            return int(narrow.view(torch.int16).item()) & 0xFFFF
    if not re.fullmatch(r"[iu]\d+", kind):
        refuse(name, f"{kind} has no meaning apart from a GPU; make descriptors within the kernel (tl.make_tensor_descriptor)")
    return int(value) & ((1 << max(8, int(kind[1:]))) - 1)


def _narrowed(value: float) -> float:
    """What is too much for single precision is infinite there."""
    return math.copysign(math.inf, value) if math.isfinite(value) and abs(value) > torch.finfo(torch.float32).max else value


class Launcher:
    """What Triton calls to launch what it has compiled of ``source``."""

    def __init__(self, source: Any, metadata: Any) -> None:
        self._types = tuple(source.signature.values())

    def __call__(self, x: int, y: int, z: int, stream: int, kernel: Kernel, *more: Any) -> None:
        _, metadata, enter, leave, *values = more
        if enter is not None:
            enter(metadata)
        arguments = [
            _pointer(kernel.name, value) if kind.startswith("*") else _bits(kernel.name, kind, value)
            for kind, value in _flat(self._types, tuple(values))
        ]
        launch = functools.partial(kernel.launch, _C.current_device(), (int(x), int(y), int(z)))
        graphs.note_launch(launch, arguments)
        launch(*arguments)
        if leave is not None:
            leave(metadata)


class Utilities:
    """What Triton asks of a driver's C code."""

    def load_binary(self, name: str, source: bytes, shared: int, device: int) -> tuple[Kernel, Kernel, int, int, int]:
        """The kernel, twice, for a module and a function; registers, spills, and the most threads of a block. Workers get it at its launch,
        so that one which is refused is so at each."""
        kernel = Kernel(name, source)
        return kernel, kernel, 0, 0, DeviceProperties.max_threads_per_block

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {
            "max_shared_mem": DeviceProperties.shared_memory_per_block_optin,
            "max_num_regs": DeviceProperties.regs_per_multiprocessor,
            "multiprocessor_count": MULTI_PROCESSOR_COUNT,
            "warpSize": WARP,
            "sm_clock_rate": DeviceProperties.clock_rate,
            "mem_clock_rate": DeviceProperties.memory_clock_rate,
            "mem_bus_width": DeviceProperties.memory_bus_width,
        }


def _driver_on(base: type) -> type:
    """A driver of Triton's for virtual devices."""
    from triton.backends.compiler import GPUTarget

    class Driver(base):  # type: ignore[misc]
        launcher_cls = Launcher

        def __init__(self) -> None:
            self.utils = Utilities()

        @staticmethod
        def is_active() -> bool:
            return True

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", ARCHITECTURE, WARP)

        def get_active_torch_device(self) -> torch.device:
            return torch.device("cuda", _C.current_device())

        def get_current_device(self) -> int:
            return _C.current_device()

        def set_current_device(self, device: int) -> None:
            _C.set_device(device)

        def get_current_stream(self, device: int) -> int:
            return 0

        def get_device_capability(self, device: int | None = None) -> tuple[int, int]:
            return CAPABILITY

        def get_device_interface(self) -> ModuleType:
            return torch.cuda

        def map_python_to_cpp_type(self, kind: str) -> str:
            return kind

        def get_benchmarker(self) -> Any:
            from triton.testing import do_bench

            return do_bench

        def get_empty_cache_for_benchmark(self) -> torch.Tensor:
            return torch.empty(FLUSHED_BYTES // 4, dtype=torch.int32, device="cuda")

        def clear_cache(self, cache: torch.Tensor) -> None:
            cache.zero_()

    return Driver


def _lowering_on(base: type) -> type:
    """Triton's compiler for NVIDIA's devices, as far as nothing depends on which of them it is."""

    class Lowering(base):  # type: ignore[misc]
        def __init__(self, target: Any) -> None:
            super().__init__(target)
            self.binary_ext = FORM

        def hash(self) -> str:
            return f"{FORM}-{ARCHITECTURE}"

        def pack_metadata(self, metadata: Any) -> tuple[()]:
            return ()

        def add_stages(self, stages: dict[str, Any], options: Any, *language: Any) -> None:
            whole: dict[str, Any] = {}
            super().add_stages(whole, options, *language)
            if "ttir" not in whole:
                refuse(
                    "in Gluon",
                    "Gluon is written for one make of device, and the make of the device behind cuda:0 is open; write it in Triton",
                )
            stages["ttir"] = whole["ttir"]
            stages[FORM] = functools.partial(self._finish, options)

        def _finish(self, options: Any, module: Any, metadata: dict[str, Any]) -> bytes:
            metadata["name"], metadata["shared"] = module.get_entry_func_name(), 0
            return encoded(metadata["name"], str(module).encode(), options)

    return Lowering


def take_over(backends: ModuleType) -> None:
    """Gives Triton, as it is loaded, one back end in place of those for this host's GPUs."""
    from triton.backends.driver import DriverBase

    found: Any = backends
    theirs = found.backends["nvidia"]
    found.backends.clear()
    found.backends["nvidia"] = type(theirs)(compiler=_lowering_on(theirs.compiler), driver=_driver_on(DriverBase))
