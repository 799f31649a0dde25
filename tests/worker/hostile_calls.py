"""Calls of allowed operators whose arguments lie: those of PyTorch's operator database, with geometry, indices and numbers changed."""

from __future__ import annotations

import random
import warnings
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

SAMPLES = 6
SAMPLES_TRIED = 2
CALLS_KEPT = 5
ELEMENTS_MAX = 1500
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64)
INTS = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 5, 64, 1000, 2**20, 2**31, 2**40, 2**63 - 1)
FLOATS = (float("nan"), float("inf"), -1.0, 0.0, 0.5, 1e30)


@dataclass(frozen=True)
class HostileCall:
    """An operator and the values of its arguments, in the schema's order."""

    op: Any
    values: tuple[Any, ...]


def values_of(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    values = []
    for index, argument in enumerate(op._schema.arguments):
        default = argument.default_value if argument.has_default_value() else None
        values.append(args[index] if index < len(args) else kwargs.get(argument.name, default))
    return values


def kept(value: Any) -> Any:
    """The value as it is now; its tensors do not share memory with others."""
    if isinstance(value, torch.Tensor):
        plain = value.detach()
        return torch.empty_strided(plain.shape, plain.stride(), dtype=plain.dtype).copy_(plain)
    return [kept(item) for item in value] if isinstance(value, (list, tuple)) else value


def is_small(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        strided = value.layout == torch.strided and not value.is_quantized and not value.is_conj() and not value.is_neg()
        return strided and value.numel() <= ELEMENTS_MAX and all(stride < ELEMENTS_MAX for stride in value.stride())
    return all(is_small(item) for item in value) if isinstance(value, (list, tuple)) else True


class Listener(TorchDispatchMode):
    """Keeps a few calls of each operator that is on the list."""

    def __init__(self, allowed: set[str]) -> None:
        super().__init__()
        self.allowed = allowed
        self.calls: dict[str, list[HostileCall]] = defaultdict(list)
        self.seen: set[str] = set()
        self.heard = 0
        """How many calls of these operators came, kept or not."""

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(op._schema.name) + ("." + op._schema.overload_name if op._schema.overload_name else "")
        if name in self.allowed:
            self.heard += 1
            if len(self.calls[name]) < CALLS_KEPT:
                self._keep(name, op, values_of(op, args, kwargs or {}))
        return op(*args, **(kwargs or {}))

    def _keep(self, name: str, op: Any, values: list[Any]) -> None:
        shape = name + repr([getattr(v, "shape", v) if not isinstance(v, float) else 0 for v in values])[:400]
        if shape not in self.seen and is_small(values):
            self.seen.add(shape)
            self.calls[name].append(HostileCall(op, tuple(kept(values))))


def record(allowed: set[str]) -> dict[str, list[HostileCall]]:
    """Calls, none of them hostile yet, by operator. What an entry cannot do on the CPU is left out."""
    from torch.testing._internal.common_methods_invocations import op_db

    listener = Listener(allowed)
    torch.manual_seed(0)
    in_no_test_case = patch("torch.testing._internal.common_utils.extract_test_fn", return_value=None)  # it reads the whole stack's source
    with in_no_test_case, warnings.catch_warnings(), listener:
        warnings.simplefilter("ignore")
        for entry in op_db:
            for dtype in (torch.float32, torch.int64):
                if dtype in entry.supported_dtypes("cpu"):
                    with suppress(Exception):
                        run(entry, dtype, listener)
    return listener.calls


def run(entry: Any, dtype: torch.dtype, listener: Listener) -> None:
    """All samples of an entry, or the first ones if those call none of the operators that the listener is for."""
    gradient, before = entry.supports_autograd and dtype == torch.float32, listener.heard
    for number, sample in enumerate(islice(entry.sample_inputs("cpu", dtype, requires_grad=gradient), SAMPLES)):
        if number == SAMPLES_TRIED and listener.heard == before:
            return
        result = entry(sample.input, *sample.args, **sample.kwargs)
        if gradient:
            backward(result)


def backward(result: Any) -> None:
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if leaves:
        torch.autograd.backward(leaves, [torch.ones_like(leaf) for leaf in leaves])


# Calls that nobody makes: by the schema alone


def invented(op: Any, chance: random.Random) -> HostileCall | None:
    n = chance.choice((2, 3, 4))
    dims = chance.choice((1, 2, 2, 3, 4, 5))
    values = []
    for argument in op._schema.arguments:
        kind = str(argument.type)
        optional = kind.startswith("Optional[")
        kind = kind.removeprefix("Optional[").removesuffix("]") if optional else kind
        if optional and chance.random() < 0.4:
            values.append(None)
        elif argument.has_default_value() and chance.random() < 0.5:
            values.append(argument.default_value)
        else:
            try:
                values.append(invent(kind, argument.name, n, dims, chance))
            except NotImplementedError:
                return None
    return HostileCall(op, tuple(values))


def invent(kind: str, name: str, n: int, dims: int, chance: random.Random) -> Any:
    if kind == "Tensor":
        integral = any(word in name for word in ("ind", "offset", "lengths", "target", "batch_sizes", "pivots", "count", "bag", "cum_seq"))
        if chance.random() < 0.2:
            dims = chance.randint(0, 5)
        shape = [n if chance.random() < 0.85 else chance.randint(0, 5) for _ in range(dims)]
        return torch.randint(0, n, shape) if integral else torch.rand(shape)
    if kind.startswith("List[Tensor") or kind.startswith("List[Optional[Tensor"):
        return [invent("Tensor", name, n, dims, chance) for _ in range(chance.randint(1, 4))]
    if kind.startswith("List[int"):
        return [chance.choice((0, 1, 1, 2, n)) for _ in range(chance.randint(1, 6))]
    if kind.startswith("List[bool"):
        return [chance.random() < 0.8 for _ in range(chance.randint(1, 4))]
    if kind.startswith("List[float") or kind.startswith("List[number"):
        return [chance.random() for _ in range(chance.randint(1, 4))]
    if kind == "number":
        return chance.choice((1, 2, 0.5))
    if kind == "int":
        if name in ("dtype",):
            return chance.choice((torch.float32, torch.int64, torch.float64, torch.bfloat16))
        return 0 if name == "layout" else chance.choice((-1, 0, 1, 2, n))
    if kind == "float":
        return chance.choice((0.0, 0.5, 1.0))
    if kind == "bool":
        return chance.random() < 0.5
    if kind == "str":
        return chance.choice(("mean", "sum", "none", "linear", "zeros", "reflect", "amax", "left"))
    if kind == "Generator":
        return None
    raise NotImplementedError(kind)


# Lies


def cut(tensor: torch.Tensor, chance: random.Random) -> torch.Tensor:
    if tensor.numel() == 0 or tensor.dim() == 0:
        return tensor
    dim = chance.randrange(tensor.dim())
    size = tensor.shape[dim]
    return tensor.narrow(dim, 0, chance.choice((0, 1, size // 2, size - 1))).contiguous()


def grown(tensor: torch.Tensor, chance: random.Random) -> torch.Tensor:
    if tensor.dim() == 0 or tensor.numel() > 400:
        return tensor
    return torch.cat([tensor] * chance.choice((2, 3)), chance.randrange(tensor.dim()))


def turned(tensor: torch.Tensor, chance: random.Random) -> torch.Tensor:
    """The same shape and values, other strides."""
    dims = list(range(tensor.dim()))
    chance.shuffle(dims)
    back = [dims.index(dim) for dim in range(tensor.dim())]
    return tensor.permute(dims).contiguous().permute(back)


def swapped(tensor: torch.Tensor, chance: random.Random) -> torch.Tensor:
    dims = list(range(tensor.dim()))
    chance.shuffle(dims)
    return tensor.permute(dims) if chance.random() < 0.5 else tensor.permute(dims).contiguous()


def spread(tensor: torch.Tensor, chance: random.Random) -> torch.Tensor:
    return tensor.reshape(-1)[:1].reshape([1] * tensor.dim()).expand(tensor.shape) if tensor.numel() else tensor


def spaced(tensor: torch.Tensor, chance: random.Random) -> torch.Tensor:
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


def flattened(tensor: torch.Tensor, chance: random.Random) -> torch.Tensor:
    return tensor.reshape(-1)


def raised(tensor: torch.Tensor, chance: random.Random) -> torch.Tensor:
    return tensor.unsqueeze(chance.randint(0, tensor.dim()))


def lowered(tensor: torch.Tensor, chance: random.Random) -> torch.Tensor:
    return tensor if tensor.dim() == 0 or tensor.numel() == 0 else tensor.select(chance.randrange(tensor.dim()), 0).clone()


def retyped(tensor: torch.Tensor, chance: random.Random) -> torch.Tensor:
    return tensor.to(chance.choice(DTYPES))


def emptied(tensor: torch.Tensor, chance: random.Random) -> torch.Tensor:
    return tensor.new_zeros(chance.choice(((0,), (0, 0), (1,), ())))


def pointed(tensor: torch.Tensor, chance: random.Random) -> torch.Tensor:
    """Some of the whole numbers lead elsewhere."""
    if tensor.dtype not in (torch.int64, torch.int32) or tensor.numel() == 0:
        return cut(tensor, chance)
    changed = tensor.clone(memory_format=torch.contiguous_format)
    info = torch.iinfo(tensor.dtype)
    for _ in range(chance.randint(1, 3)):
        number = chance.choice((-1, -5, -1000, 5, 17, 300, 5000, 2**20, 2**31 - 1, 2**40, 2**63 - 1, -(2**63)))
        changed.view(-1)[chance.randrange(changed.numel())] = max(info.min, min(info.max, number))
    return changed


TENSOR_LIES: tuple[Callable[[torch.Tensor, random.Random], torch.Tensor], ...] = (
    cut, cut, grown, turned, swapped, spread, spaced, flattened, raised, lowered, retyped, emptied, pointed, pointed,
)  # fmt: skip


def lie(value: Any, chance: random.Random) -> Any:
    if isinstance(value, torch.Tensor):
        return chance.choice(TENSOR_LIES)(value, chance)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return chance.choice(INTS)
    if isinstance(value, float):
        return chance.choice(FLOATS)
    if isinstance(value, list):
        changed = list(value)
        if not changed:
            return changed
        where = chance.randrange(len(changed))
        match chance.randrange(5):
            case 0:
                del changed[where]
            case 1:
                changed.append(changed[where])
            case _:
                changed[where] = lie(changed[where], chance)
        return changed
    return value


def lying(call: HostileCall, chance: random.Random) -> HostileCall:
    values = list(call.values)
    places = [index for index, value in enumerate(values) if value is not None and not isinstance(value, (str, torch.dtype))]
    tensors = [index for index in places if isinstance(values[index], (torch.Tensor, list))]
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        among = tensors if tensors and chance.random() < 0.7 else places
        if not among:
            break
        where = chance.choice(among)
        optional = str(call.op._schema.arguments[where].type).startswith("Optional")
        values[where] = None if optional and chance.random() < 0.1 else lie(values[where], chance)
    return HostileCall(call.op, tuple(values))
