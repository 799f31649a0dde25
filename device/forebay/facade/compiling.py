"""``torch.compile``: kernels are not generated here, since the make of the physical device is open. The worker optimises what repeats."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import _compile
from torch.utils import _triton

from forebay.errors import NotOnVirtualDevice
from forebay.facade import regions

_MAKERS_OF_KERNELS = ("inductor", "cudagraphs")
"""Backends that would make code or graphs for a physical GPU; the others run PyTorch's own operators."""
_INTERPRETERS = ("eager", "eager_noexcept", "eager_debug")
"""Backends that call the operators of a graph as they stand in it."""
_OWN_GENERATORS = "graphsafe_rng_functionalization"
"""The setting of AOTAutograd that :func:`_generators_of_programs` turns off."""


_DYNAMO = "torch._dynamo"
_KEPT_OUT = "__dynamo_disable"
"""Where PyTorch keeps what it calls in place of a function that TorchDynamo is not to trace."""
_REFERENCES = ("torch._refs", "torch._refs.nn.functional", "torch._refs.special", "torch._decomp.decompositions")
"""Modules with PyTorch's kernels for meta tensors that are written in Python."""


def _untraced() -> list[FunctionType]:
    """The functions that those modules have TorchDynamo not trace, within whatever they are wrapped in."""
    modules = [sys.modules[name] for name in _REFERENCES if name in sys.modules]
    left = [value for module in modules for value in vars(module).values() if isinstance(value, FunctionType)]
    seen, found = set[int](), list[FunctionType]()
    keeper = _compile._disable_dynamo.__code__.co_filename
    while left:
        function = left.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        inner = [value for value in _closed_over(function) if isinstance(value, FunctionType)]
        left += inner
        if function.__code__.co_filename == keeper:
            found += inner
    return found


def _closed_over(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # an empty one
            yield cell.cell_contents


def _spare_dynamo() -> None:
    """At its first call each of them would import all of TorchDynamo, to be kept out of its traces: as long as nobody else has imported
    it nothing is traced, and they are called as they are. A second of a processor, for a program's first result."""
    if _DYNAMO not in sys.modules:
        for function in _untraced():
            vars(function).setdefault(_KEPT_OUT, function)


def keep_out_of_traces(dynamo: ModuleType) -> None:
    """TorchDynamo is there: from their next call on it is told of them."""
    for function in _untraced():
        if vars(function).get(_KEPT_OUT) is function:
            delattr(function, _KEPT_OUT)


def _values(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Iterator[Any]:
    """What a graph reads, and what each of its nodes makes."""
    from torch.utils._pytree import tree_leaves

    yield from inputs
    yield from graph.parameters()
    yield from graph.buffers()
    for module in graph.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                yield from tree_leaves((node.meta.get("example_value"), node.meta.get("val")))


def _is_on_device(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> bool:
    return any(isinstance(value, torch.Tensor) and value.device.type == "cuda" for value in _values(graph, inputs))


def _refusing(refusal: NotOnVirtualDevice) -> Callable[..., Any]:
    """A compiled graph that says at its call why there is none: what a backend raises reaches the program in PyTorch's words."""

    def refuse(*args: Any) -> Any:
        raise refusal

    return refuse


def _for_host_alone(compile_graph: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(compile_graph)
    def compile_for_host(self: Any, graph: torch.fx.GraphModule, inputs: Sequence[Any], **settings: Any) -> Callable[..., Any]:
        if not _is_on_device(graph, inputs):
            return compile_graph(self, graph, inputs, **settings)  # type: ignore[no-any-return]
        refusal = regions.refusal(graph)
        if refusal is not None:
            return _refusing(refusal)
        with _generators_of_programs():
            if self.compiler_name in _MAKERS_OF_KERNELS:
                return _traced(graph, inputs) if regions.needs_tracing(graph) else graph.forward
            if self.compiler_name in _INTERPRETERS and regions.needs_tracing(graph, regions.TRACED):
                return _traced(graph, inputs)
            return compile_graph(self, graph, inputs, **settings)  # type: ignore[no-any-return]

    return compile_for_host


def _generators_of_programs() -> AbstractContextManager[None]:
    """Has AOTAutograd draw a checkpoint's numbers from the program's generators, so that seeds count.

    For CUDA graphs it would make generators of its own; nothing captures them here.
    """
    from torch._functorch import config

    settings: Any = config
    return nullcontext() if not hasattr(config, _OWN_GENERATORS) else settings.patch(_OWN_GENERATORS, False)


def _traced(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """PyTorch's own operators, in the forward and the backward pass that AOTAutograd makes of a graph."""
    from torch._dynamo.backends.registry import lookup_backend

    backend: Any = lookup_backend("aot_eager")
    compiled: Callable[..., Any] = backend(graph, inputs)
    return compiled


def _leave_gpus_alone() -> None:
    """Has PyTorch's compilers make nothing for the GPU that a build with CUDA takes ``cuda:0`` for: its driver is not on this host."""
    core: Any = torch._C
    triton: Any = _triton
    triton.has_triton = lambda **which: False  # asked wherever there is a CUDA device, for graphs of the CPU as well
    if hasattr(core, "_jit_override_can_fuse_on_gpu"):
        core._jit_override_can_fuse_on_gpu(False)
        core._jit_override_can_fuse_on_gpu = lambda enabled: None  # torch.jit.fuser, and programs by themselves, would turn it on again


def trace_kernels(builder: ModuleType) -> None:
    """Has a graph take the program's kernels in Triton as such, which PyTorch does where it has a GPU to compile for."""
    tracer: Any = builder
    wrap = tracer.VariableBuilder._wrap

    def wrap_kernel(self: Any, value: Any) -> Any:
        runtime: Any = sys.modules.get("triton.runtime")
        if runtime is None or not isinstance(value, runtime.JITFunction | runtime.Autotuner):
            return wrap(self, value)
        triton: Any = _triton
        before, triton.has_triton = triton.has_triton, lambda **which: True
        try:
            return wrap(self, value)
        finally:
            triton.has_triton = before

    tracer.VariableBuilder._wrap = wrap_kernel


def install() -> None:
    """Runs as it is what a backend would compile for the device; graphs on the CPU are compiled as ever."""
    core: Any = torch
    for wrapper in (core._TorchCompileInductorWrapper, core._TorchCompileWrapper):
        wrapper.__call__ = _for_host_alone(wrapper.__call__)
    _leave_gpus_alone()
    _spare_dynamo()
