"""CUDA graphs: what is recorded in a capture is kept as the operators that were called, and called again by each replay.

A GPU carries nothing out while it captures. Here the calls of a capture are carried out, since their results' geometry is needed, and
what they changed outside the graph is put back at its end, the generator's state with it. A replay writes its results where the
captured ones were, so that programs find them in the tensors that they kept.
"""

from __future__ import annotations

import importlib
import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from forebay import _C
from forebay.errors import NotOnVirtualDevice

MAKES_NOTHING = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_efficientzerotensor"})
READS = frozenset(
    {"_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive"}
)
"""Operators for which a GPU waits, which it refuses in a capture."""

_pools = itertools.count(1)
_capturing: list[Capture] = []
"""The capture that is under way in this process, if any: operators of autograd's threads belong to it, too."""


def _on_device(values: object) -> list[torch.Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor) and value.device.type == "cuda"]


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


@dataclass(frozen=True)
class _Call:
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    made: Sequence[tuple[int, torch.Tensor]]
    """Those of the results (by their place among all) that are tensors of the graph's own."""

    def again(self) -> None:
        results = tree_leaves(self.function(*self.arguments, **self.keywords))
        for place, tensor in self.made:
            tensor.copy_(results[place])


_DispatchMode: Any = TorchDispatchMode
_preserve_versions: Any = torch.autograd._unsafe_preserve_version_counter  # type: ignore[attr-defined]


class Capture(_DispatchMode):  # type: ignore[misc]
    """Keeps the calls on the device while it is the mode."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Call] = []
        self._own: set[int] = set()
        self._before: list[tuple[torch.UntypedStorage, torch.Tensor]] = []

    def __torch_dispatch__(
        self, func: torch._ops.OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        keywords = dict(kwargs or {})
        name = func.overloadpacket.__name__
        given = _on_device((args, keywords))
        if given and (name in READS or (name == "_to_copy" and torch.device(keywords.get("device") or "cuda").type == "cpu")):
            raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing: {func} waits for the device")
        self._keep_what_changes(func, args, keywords)
        results = func(*args, **keywords)
        inputs = {tensor.untyped_storage()._cdata for tensor in given}
        made = [
            (place, value)
            for place, value in enumerate(tree_leaves(results))
            if isinstance(value, torch.Tensor) and value.device.type == "cuda" and value.untyped_storage()._cdata not in inputs
        ]
        self._own |= {tensor.untyped_storage()._cdata for _, tensor in made}
        if (given or made) and name not in MAKES_NOTHING and (made or func._schema.is_mutable):  # all else are views
            self.calls.append(_Call(func, args, keywords, made))
        return results

    def keep_launch(self, launch: Callable[..., None], arguments: Sequence[torch.Tensor | int]) -> None:
        """A kernel's launch is one of the calls; it is told before it comes."""
        self._keep_storages(_on_device(arguments))
        self.calls.append(_Call(launch, tuple(arguments), {}, ()))

    def _keep_what_changes(self, func: torch._ops.OpOverload, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        for index, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self._keep_storages(_on_device(args[index] if index < len(args) else keywords.get(argument.name)))

    def _keep_storages(self, written: Sequence[torch.Tensor]) -> None:
        for tensor in written:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._own:
                self._own.add(storage._cdata)
                self._before.append((storage, _bytes(storage).clone()))

    def put_back(self) -> None:
        """Gives what the capture changed its former content."""
        for storage, before in self._before:
            _bytes(storage).copy_(before)
        self._before.clear()


def note_launch(launch: Callable[..., None], arguments: Sequence[torch.Tensor | int]) -> None:
    """A kernel of the program's own is about to be launched, which may write to each tensor that it is given."""
    for capture in _capturing:
        with _disable_current_modes():  # what is kept is no part of the graph
            capture.keep_launch(launch, arguments)


class GraphBase:
    """Base of ``torch.cuda.CUDAGraph``."""

    def __new__(cls, keep_graph: bool = False) -> GraphBase:
        graph = super().__new__(cls)
        graph._capture, graph._pool, graph._states, graph._extra = None, (0, next(_pools)), [], []
        graph._has_graph_exec = False
        return graph

    _capture: Capture | None
    _has_graph_exec: bool
    """Whether it was instantiated, which PyTorch asks from 2.15 on."""
    _pool: tuple[int, int]
    _states: list[tuple[torch.Generator, torch.Tensor]]
    _extra: list[torch.Generator]

    def capture_begin(self, pool: tuple[int, int] | None = None, capture_error_mode: str = "global") -> None:
        """Begins to keep calls. Memory is the worker's, so a pool is a name only."""
        if _capturing:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing: another capture is under way")
        self._pool = pool or self._pool
        generators = [torch.cuda.default_generators[_C.current_device()], *self._extra]
        self._states = [(generator, generator.get_state()) for generator in generators]
        self._capture, self._has_graph_exec = Capture(), False
        self._capture.__enter__()
        _capturing.append(self._capture)

    def capture_end(self) -> None:
        """Both halves of the end, which PyTorch calls itself from 2.15 on."""
        self.capture_end_pre()
        self.capture_end_post()

    def capture_end_pre(self) -> None:
        """Ends the capture, and undoes what it did to tensors from outside."""
        if self._capture is None or self._capture not in _capturing:
            raise RuntimeError("capture_end() without capture_begin() of the same graph")
        _capturing.remove(self._capture)
        self._capture.__exit__(None, None, None)
        with torch.no_grad():
            self._capture.put_back()
        for generator, state in self._states:
            generator.set_state(state)
        if not self._capture.calls:
            warnings.warn("The CUDA Graph is empty: nothing was called on the device in the capture.", stacklevel=3)

    def capture_end_post(self) -> None:
        """Nothing to do: the calls are kept in any case."""

    def instantiate(self) -> None:
        """The calls are ready."""
        self._has_graph_exec = self._capture is not None

    def replay(self) -> None:
        """Calls again what was captured, with what the tensors hold now."""
        if self._capture is None or self._capture in _capturing:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        tensors = tuple(_on_device([(call.arguments, dict(call.keywords), call.made) for call in self._capture.calls]))
        with torch.no_grad(), torch._C._AutoDispatchBelowAutograd(), _preserve_versions(tensors):
            for call in self._capture.calls:
                call.again()

    def reset(self) -> None:
        """Forgets the calls and lets go of their tensors."""
        self._capture, self._has_graph_exec = None, False

    def pool(self) -> tuple[int, int]:
        """The name of the graph's memory."""
        return self._pool

    def pools(self) -> list[tuple[int, int]]:
        """The one name."""
        return [self._pool]

    def _retain_pool(self, pool: tuple[int, int]) -> None:
        """Nothing to do: memory is the worker's."""

    def register_generator_state(self, generator: torch.Generator) -> None:
        """A generator of the program's own, which the capture shall leave as it was."""
        self._extra.append(generator)

    def enable_debug_mode(self) -> None:
        """Nothing to do: the calls are kept in any case."""

    def debug_dump(self, debug_path: str, *, verbose: bool = True) -> None:
        """Writes the captured operators, one a line; there is no more to say where ``verbose``."""
        calls = self._capture.calls if self._capture is not None else []
        with open(debug_path, "w", encoding="utf-8") as file:
            file.writelines(f"{call.function}\n" for call in calls)


def _refuse_raw(name: str) -> Callable[..., Any]:
    def refuse(self: GraphBase) -> Any:
        raise NotOnVirtualDevice(f"torch.cuda.CUDAGraph.{name}", "a graph has no handle of the CUDA runtime here; use replay().")

    return refuse


def install() -> None:
    """Makes ``torch.cuda.graphs`` anew on this base, as it would be in a CUDA build."""
    core: Any = torch._C
    for name in ("raw_cuda_graph", "raw_cuda_graph_exec", "get_graph_data"):
        setattr(GraphBase, name, _refuse_raw(name))
    core._CUDAGraph = GraphBase
    core._graph_pool_handle = lambda: (0, next(_pools))
    core._cuda_isCurrentStreamCapturing = lambda: bool(_capturing)
    module: Any = importlib.reload(torch.cuda.graphs)
    module._dump_graph_dot = GraphBase.debug_dump  # of PyTorch from 2.15 on, which has a graph and its hooks write themselves so
    for name in ("CUDAGraph", "graph", "graph_pool_handle", "is_current_stream_capturing", "make_graphed_callables"):
        setattr(torch.cuda, name, getattr(module, name))
