"""Kernels that programs bring of their own, in Triton's intermediate representation: compiled apart, loaded and launched here.

A kernel reaches every address of the device that this process has. So they are taken where the operator allows it, on a device that is the
session's own, and nothing of the host's memory can be reached (``docs/operators/threat-model.md``).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import json
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from forebay_worker.compile_queue import INHERITED, OfferKind
from forebay_worker.confinement import Watch
from forebay_worker.pytorch import HOST_KINDS, SeenDevice, device_module
from forebay_worker.user_code import kernel_compiler
from forebay_worker.user_code.kernel_compiler import Compiled

if TYPE_CHECKING:
    from forebay_worker._executor import Server

LOG = logging.getLogger("forebay.worker")

COMPILER = (sys.executable, "-m", kernel_compiler.__name__)
COMPILE_SECONDS_MAX = 300.0
ANSWER_BYTES_MAX = 64 << 20
OWN_SHARE = 0.9
"""A session that may hold so much of a device's memory leaves no room for another's."""
FAILED, OUT_OF_RESOURCES, UNSUPPORTED = 1, 2, 4
"""Codes of failures on the wire."""

SWITCHED_OFF = "this installation runs PyTorch's own operators alone; its operator can allow kernels of programs (the setting user_kernels)"
TOO_LITTLE = "kernels of programs run where the device is the session's alone; choose a flavor of a whole device"
ON_HOST = (
    "the device behind cuda:0 is the host's processor, which runs no GPU kernels; "
    "write it with PyTorch's operators, or choose a flavor of a GPU"
)
OTHER_MAKE = "the device behind cuda:0 is of a make for which kernels of programs were never tried; write it with PyTorch's operators"
NO_TRITON = "its worker has no Triton; ask its operator to install there the release that its PyTorch asks for"
READS_HOST = "its GPU can read all memory of its worker's process (HMM or ATS); its operator can switch that off (uvm_disable_hmm=1)"
SHARED_CONTEXT = "its GPU is shared through MPS, where one process's fault ends all others; ask for one without"

Grid = tuple[int, int, int]
Launch = Callable[[Grid, bytes], None]


class KernelDriver(Protocol):
    """Loads what the compiler made, and launches it. An out-of-tree back end may bring one, as ``triton_kernels()`` of its module."""

    @property
    def target(self) -> tuple[str, int, int]:
        """As Triton names it: kind, architecture, threads of a warp."""

    @property
    def form(self) -> str:
        """Which of the compiler's forms it loads: ``cubin``, ``hsaco``, …"""

    def refused(self) -> str:
        """Why it launches nothing; empty: it does."""

    def load(self, kernel: Compiled) -> Launch:
        """What launches the kernel, on the calling thread's stream. Raises RuntimeError."""


class CudaDriver:
    """NVIDIA's driver, which PyTorch has loaded."""

    form = "cubin"
    _DYNAMIC_SHARED_BYTES, _SHARED_BYTES = 8, 1
    _SHARED_OPTIN, _PAGEABLE_MEMORY, _MPS = 97, 88, 133
    _BUFFER, _BUFFER_BYTES, _END = 1, 2, 0
    _SHARED_WITHOUT_ASKING = 48 << 10

    def __init__(self, index: int) -> None:
        torch = importlib.import_module("torch")
        self._cuda = torch.cuda
        self._index = index
        self._driver = ctypes.CDLL("libcuda.so.1")
        major, minor = torch.cuda.get_device_capability(index)
        self.target = ("cuda", 10 * major + minor, 32)

    def refused(self) -> str:
        """Where the device, or what it shares, is not the session's own."""
        if self._attribute(self._PAGEABLE_MEMORY) != 0:
            return READS_HOST
        return SHARED_CONTEXT if self._attribute(self._MPS) != 0 else ""

    def load(self, kernel: Compiled) -> Launch:
        function = ctypes.c_void_p()
        optin = self._attribute(self._SHARED_OPTIN)
        if kernel.shared_bytes > optin:
            raise MemoryError(f"it needs {kernel.shared_bytes} bytes of shared memory, and the device has {optin}")
        with self._cuda.device(self._index):
            self._cuda.current_stream().synchronize()  # its context is this thread's, too
            module = ctypes.c_void_p()
            self._check(self._driver.cuModuleLoadData(ctypes.byref(module), kernel.binary))
            self._check(self._driver.cuModuleGetFunction(ctypes.byref(function), module, kernel.name.encode()))
            if kernel.shared_bytes > self._SHARED_WITHOUT_ASKING:
                own = ctypes.c_int()
                self._check(self._driver.cuFuncGetAttribute(ctypes.byref(own), self._SHARED_BYTES, function))
                self._check(self._driver.cuFuncSetAttribute(function, self._DYNAMIC_SHARED_BYTES, optin - own.value))
        return lambda grid, parameters: self._launch(function, kernel, grid, parameters)

    def _launch(self, function: ctypes.c_void_p, kernel: Compiled, grid: Grid, parameters: bytes) -> None:
        """The driver reads as many bytes as the buffer has, whatever the binary says."""
        stream = ctypes.c_void_p(self._cuda.current_stream(self._index).cuda_stream)
        buffer, size = ctypes.create_string_buffer(parameters, len(parameters)), ctypes.c_size_t(len(parameters))
        extra = (ctypes.c_void_p * 5)(self._BUFFER, ctypes.addressof(buffer), self._BUFFER_BYTES, ctypes.addressof(size), self._END)
        block = (kernel.threads, 1, 1)
        self._check(self._driver.cuLaunchKernel(function, *grid, *block, kernel.shared_bytes, stream, None, extra))

    def _attribute(self, number: int) -> int:
        """Of the device; one that this driver does not know counts as true."""
        found, device = ctypes.c_int(1), ctypes.c_int()
        self._check(self._driver.cuInit(0))
        self._check(self._driver.cuDeviceGet(ctypes.byref(device), self._index))
        self._driver.cuDeviceGetAttribute(ctypes.byref(found), number, device)
        return found.value

    def _check(self, status: int) -> None:
        if status == 0:
            return
        words = ctypes.c_char_p()
        self._driver.cuGetErrorString(status, ctypes.byref(words))
        raise RuntimeError(f"CUDA error {status}: {(words.value or b'unknown').decode()}")


def driver_of(device: SeenDevice) -> KernelDriver | str:
    """The device's driver, or why there is none."""
    if device.kind in HOST_KINDS:
        return ON_HOST
    if importlib.util.find_spec("triton") is None:
        return NO_TRITON
    if device.kind == "cuda":
        return CudaDriver(device.index)
    made: Callable[[int], KernelDriver] | None = getattr(device_module(device.kind), "triton_kernels", None)
    return OTHER_MAKE if made is None else made(device.index)


class Compiler:
    """The process that compiles kernels, one after the other; it starts with the first one, and again after one that it did not survive."""

    def __init__(self, driver: KernelDriver) -> None:
        self._driver = driver
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[str] | None = None

    async def compile(self, described: bytes) -> dict[str, object]:
        """What it says. Raises OSError, ValueError, TimeoutError."""
        try:
            async with asyncio.timeout(COMPILE_SECONDS_MAX):
                process = self._process or await self._start()
                if process.stdin is None or process.stdout is None:
                    raise OSError("it has no pipes")
                process.stdin.write(len(described).to_bytes(4, "little") + described)
                await process.stdin.drain()
                answer = json.loads(await process.stdout.readline())
        except BaseException:
            self.stop()
            raise
        if not isinstance(answer, dict):
            raise ValueError("it said what is no answer")
        return answer

    async def _start(self) -> asyncio.subprocess.Process:
        """Nothing of this process's environment but what a compiler needs goes along."""
        self._folder = tempfile.TemporaryDirectory(prefix="forebay-kernels-", ignore_cleanup_errors=True)
        environ = {name: os.environ[name] for name in INHERITED if name in os.environ}
        environ |= {"HOME": self._folder.name, "TRITON_CACHE_DIR": str(Path(self._folder.name, "cache"))}
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *COMPILER,
            ":".join(map(str, self._driver.target)),
            self._driver.form,
            stdin=pipe,
            stdout=pipe,
            stderr=asyncio.subprocess.DEVNULL,
            env=environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
            cwd=self._folder.name,
            start_new_session=True,
            limit=ANSWER_BYTES_MAX,
        )
        self._watch = asyncio.create_task(Watch(self._process.pid, Path(self._folder.name)).run())
        return self._process

    def stop(self) -> None:
        """Ends the process with what it has started, and what it wrote is gone."""
        if self._watch is not None:
            self._watch.cancel()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        if self._folder is not None:
            self._folder.cleanup()
        self._process = self._folder = None


class Kernels:
    """Hears which kernels a session defines, and has them compiled, one at a time."""

    def __init__(self, executor: Server, device: SeenDevice, allowed: bool) -> None:
        self._executor = executor
        found = driver_of(device)
        refused = found if isinstance(found, str) else "" if allowed else SWITCHED_OFF
        self._driver = None if isinstance(found, str) else found
        self._compiler = None if isinstance(found, str) else Compiler(found)
        self._launches: dict[int, Launch] = {}
        self._defined: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        if self._driver is not None and allowed:
            refused = self._driver.refused()
        executor.take_kernels(refused, int(OWN_SHARE * device.memory_bytes), TOO_LITTLE, self._launch)

    def _launch(self, number: int, grid: Grid, parameters: bytes) -> None:
        """Called by the thread that computes."""
        self._launches[number](grid, parameters)

    def hear(self) -> None:
        """To be called whenever the executor rings."""
        for kind, number, body in self._executor.take_offers():
            if kind == OfferKind.KERNEL:
                self._defined.put_nowait((number, body))

    async def run(self) -> None:
        """Compiles until it is cancelled."""
        while True:
            number, body = await self._defined.get()
            code, why = await self._make(number, body)
            if why:
                self._executor.refuse_kernel(number, code, why)
            LOG.info("kernel %d: %s", number, why or "it is compiled", extra={"action": "kernel_made"})

    async def _make(self, number: int, body: bytes) -> tuple[int, str]:
        """The code and the reason where there is no kernel."""
        if self._driver is None or self._compiler is None:
            return UNSUPPORTED, ON_HOST
        try:
            said = await self._compiler.compile(body)
        except (OSError, ValueError, TimeoutError) as error:
            return FAILED, f"its compiler did not answer: {error or type(error).__name__}"
        if "refused" in said:
            return FAILED if said.get("failed") else UNSUPPORTED, str(said["refused"])
        try:
            kernel = Compiled.decoded(said)
            self._launches[number] = _with_hidden(self._driver.load(kernel), kernel.hidden)
            self._executor.give_kernel(number, kernel.name, kernel.parameters)
        except MemoryError as error:
            return OUT_OF_RESOURCES, str(error)
        except Exception as error:  # whatever a driver trips over, the session goes on
            return FAILED, f"the device does not load it: {error}"
        return 0, ""

    def close(self) -> None:
        """Nothing of it runs any more."""
        if self._compiler is not None:
            self._compiler.stop()


def _with_hidden(launch: Launch, hidden: int) -> Launch:
    """Pointers to nothing behind the parameters that are given."""

    def launch_with_more(grid: Grid, parameters: bytes) -> None:
        aligned = -(-len(parameters) // 8) * 8
        launch(grid, parameters.ljust(aligned if hidden else len(parameters), b"\0") + bytes(8 * hidden))

    return launch_with_more
