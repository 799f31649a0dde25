"""Random eager programs on the virtual device and on the CPU: views, writes in place, ``out=``, dtypes, modes, indexing, autograd, saving.

``random_eager.py ADDRESS TICKET COUNT SEED`` runs so many programs of 30 to 200 calls on 3 to 8 tensors on both, and prints as JSON what
differs: after each call the tensors' sizes, strides, dtypes, versions and ``requires_grad``, and the class of an error; now and then,
and at the end, all values. A program that differs is cut down to the calls that the difference needs.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from operator_sweep import attach

if __name__ == "__main__":
    attach(sys.argv[1], sys.argv[2])

import torch
from torch import Tensor

Tensors = list[Tensor]
Step = Callable[[Tensors, str], Tensor | None]
"""Carries a call out on tensors of a device; what it returns takes the place of one of them, or comes to them."""
Make = Callable[["Program"], Step]

TENSORS_MAX = 8
ELEMENTS_MAX = 512
CALLS = (30, 200)
LOOKS = 12
"""Calls from one look at all values to the next."""
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64)
SCALARS = (2, -1, 0, 1.5, -0.25, True, 3)
UNARY = """
    abs neg exp sin tanh sigmoid sqrt square relu sign floor round reciprocal log1p isnan logical_not bitwise_not
    cos erf rsqrt sgn
""".split()
BINARY = """
    add sub mul div true_divide maximum minimum eq lt ge ne pow atan2 fmod remainder logical_and bitwise_xor
    where_ floor_divide hypot copysign
""".split()
INPLACE = """
    abs_ neg_ sin_ tanh_ sigmoid_ relu_ sqrt_ exp_ floor_ zero_ square_ logical_not_
""".split()
REDUCTIONS = "sum mean amax amin argmax argmin prod any all logsumexp std var count_nonzero nansum".split()
SCANS = "cumsum cumprod softmax log_softmax sort flip argsort".split()


class Program:
    """Draws calls that fit the tensors as they are on the CPU."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        generator = torch.Generator().manual_seed(seed)
        ranks = [self.chance.randint(0, 3) for _ in range(self.chance.randint(3, 5))]
        shapes = [tuple(self.chance.choice((1, 2, 3, 4, 6)) for _ in range(rank)) for rank in ranks]
        self.start = [(3 * torch.randn(shape, generator=generator)).to(self.chance.choice(DTYPES[:6])) for shape in shapes]
        self.tensors = [tensor.clone() for tensor in self.start]

    def pick(self) -> int:
        return self.chance.randrange(len(self.tensors))

    def dim(self, place: int) -> int:
        rank = self.tensors[place].dim()
        return self.chance.randint(-rank, rank - 1) if rank else self.chance.choice((0, -1))

    def seed(self) -> int:
        return self.chance.getrandbits(32)


def view(program: Program) -> Step:
    chance, place = program.chance, program.pick()
    tensor, one, two = program.tensors[place], program.dim(place), program.dim(place)
    size = tensor.size(one) if tensor.dim() else 1
    begin = chance.randrange(size) if size else 0
    length = chance.randint(0, size - begin)
    kind = chance.randrange(12)
    views: list[Callable[[Tensor], Tensor]] = [
        lambda x: x.transpose(one, two),
        lambda x: x.narrow(one, begin, length),
        lambda x: x.select(one, begin),
        lambda x: x.unsqueeze(one),
        lambda x: x.squeeze(one),
        lambda x: x.expand(2, *x.shape),
        lambda x: x.flatten(),
        lambda x: x.view(-1),
        lambda x: x.diagonal() if x.dim() > 1 else x.unfold(0, 1, 1),
        lambda x: x.permute(*reversed(range(x.dim()))),
        lambda x: x[..., begin:],
        lambda x: x.detach(),
    ]
    return lambda tensors, _: views[kind](tensors[place])


def unary(program: Program) -> Step:
    name, place = program.chance.choice(UNARY), program.pick()
    return lambda tensors, _: getattr(torch, name)(tensors[place])


def binary(program: Program) -> Step:
    name, one, two = program.chance.choice(BINARY), program.pick(), program.pick()
    if name == "where_":
        return lambda tensors, _: torch.where(tensors[one] > 0, tensors[one], tensors[two])
    return lambda tensors, _: getattr(torch, name)(tensors[one], tensors[two])


def with_number(program: Program) -> Step:
    name, place, number = program.chance.choice(BINARY[:9]), program.pick(), program.chance.choice(SCALARS)
    if name in ("maximum", "minimum"):
        return lambda tensors, _: tensors[place].clamp(number)
    return lambda tensors, _: getattr(torch, name)(tensors[place], number)


def in_place(program: Program) -> Step:
    chance, one, two = program.chance, program.pick(), program.pick()
    number, name = chance.choice(SCALARS), chance.choice(INPLACE)
    writes: list[Callable[[Tensors], object]] = [
        lambda x: getattr(x[one], name)(),
        lambda x: x[one].add_(x[two]),
        lambda x: x[one].mul_(number),
        lambda x: x[one].copy_(x[two]),
        lambda x: x[one].fill_(number),
        lambda x: x[one].masked_fill_(x[one] > 0, number),
        lambda x: x[one].sub_(x[two], alpha=2),
        lambda x: x[one].clamp_(0, 1),
    ]
    kind = chance.randrange(len(writes))

    def step(tensors: Tensors, _: str) -> None:
        writes[kind](tensors)

    return step


def to_out(program: Program) -> Step:
    one, two, out = program.pick(), program.pick(), program.pick()
    name = program.chance.choice(("add", "mul", "maximum", "div", "atan2"))

    if not _takes(program.tensors[out], program.tensors[one], program.tensors[two]):
        return lambda tensors, _: getattr(torch, name)(tensors[one], tensors[two])

    def step(tensors: Tensors, _: str) -> None:
        getattr(torch, name)(tensors[one], tensors[two], out=tensors[out].detach())

    return step


def _takes(out: Tensor, one: Tensor, two: Tensor) -> bool:
    """Whether it need not grow, and is none of what is read: what the CPU gives then is no result."""
    if out.untyped_storage().data_ptr() in (one.untyped_storage().data_ptr(), two.untyped_storage().data_ptr()):
        return False
    with contextlib.suppress(RuntimeError):
        return out.shape == torch.broadcast_shapes(one.shape, two.shape)
    return False


def convert(program: Program) -> Step:
    place, dtype = program.pick(), program.chance.choice(DTYPES)
    return lambda tensors, _: tensors[place].to(dtype)


def index(program: Program) -> Step:
    chance, one, two = program.chance, program.pick(), program.pick()
    size = program.tensors[one].size(0) if program.tensors[one].dim() else 1
    places = [chance.randrange(-size, size) for _ in range(chance.randint(0, 4))] if size else []
    reads: list[Callable[[Tensors, str], Tensor | None]] = [
        lambda x, device: x[one][torch.tensor(places, dtype=torch.int64, device=device)],
        lambda x, _: x[one][x[one] > 0],
        lambda x, _: x[one][::2],
        lambda x, _: x[one][None, ..., None],
        lambda x, device: x[one].index_select(0, torch.tensor(places, dtype=torch.int64, device=device)),
        lambda x, device: x[one].__setitem__(torch.tensor(places, dtype=torch.int64, device=device), 2),  # type: ignore[func-returns-value]
        lambda x, _: x[one].__setitem__(x[one] < 0, 1),  # type: ignore[func-returns-value]
        lambda x, _: x[one].__setitem__(slice(None, None, 2), x[two].clone()),  # type: ignore[func-returns-value]
    ]
    kind = chance.randrange(len(reads))
    return lambda tensors, device: reads[kind](tensors, device)


def reduce(program: Program) -> Step:
    name, place, keeps = program.chance.choice(REDUCTIONS), program.pick(), program.chance.random() < 0.5
    dim = program.dim(place)
    if program.chance.random() < 0.3 and name not in ("logsumexp", "count_nonzero"):
        return lambda tensors, _: getattr(torch, name)(tensors[place])
    if name == "count_nonzero":
        return lambda tensors, _: torch.count_nonzero(tensors[place], dim)
    return lambda tensors, _: getattr(torch, name)(tensors[place], dim, keepdim=keeps)


def scan(program: Program) -> Step:
    name, place = program.chance.choice(SCANS), program.pick()
    dim = program.dim(place)

    def step(tensors: Tensors, _: str) -> Tensor:
        x = tensors[place]
        if name == "flip":
            return x.flip([dim])
        if name in ("sort", "argsort"):  # equal elements keep their order, or the order is theirs to choose
            sorted_ = torch.sort(x, dim=dim, stable=True)
            return sorted_.values if name == "sort" else sorted_.indices
        return getattr(torch, name)(x, dim)  # type: ignore[no-any-return]

    return step


def combine(program: Program) -> Step:
    one, two, dim = program.pick(), program.pick(), program.dim(program.pick())
    kind = program.chance.randrange(4)
    ways: list[Callable[[Tensor, Tensor], Tensor]] = [
        lambda a, b: torch.cat((a, b), dim),
        lambda a, b: torch.stack((a, b), dim),
        lambda a, b: a @ b,
        lambda a, b: torch.matmul(a, a.transpose(-1, -2)) if a.dim() > 1 else torch.outer(a, b),
    ]
    return lambda tensors, _: ways[kind](tensors[one], tensors[two])


def differentiate(program: Program) -> Step:
    one, two, begins = program.pick(), program.pick(), program.chance.random() < 0.5

    def step(tensors: Tensors, _: str) -> Tensor | None:
        x, y = tensors[one], tensors[two]
        if begins and not x.requires_grad:
            return x.detach().clone().requires_grad_()
        roots = [tensor for tensor in (x, y) if tensor.requires_grad and tensor.numel()]
        if not roots or roots[0].is_complex():
            return None
        leaves = [tensor for tensor in tensors if tensor.requires_grad and tensor.is_leaf]
        found = torch.autograd.grad(roots[0].sum(), leaves, allow_unused=True, retain_graph=True) if leaves else ()
        return next((gradient for gradient in found if gradient is not None), None)

    return step


def save(program: Program) -> Step:
    place, kind = program.pick(), program.chance.randrange(3)

    def step(tensors: Tensors, device: str) -> Tensor:
        x = tensors[place].detach()
        if kind == 0:
            return copy.deepcopy(x)
        if kind == 1:
            return x.contiguous().cpu().clone().to(device)
        buffer = io.BytesIO()
        torch.save(x, buffer)
        buffer.seek(0)
        loaded: Tensor = torch.load(buffer, map_location=device)
        return loaded.clone()  # the CPU's own storage could not grow

    return step


def mode(program: Program) -> Step:
    chance = program.chance
    kind, dtype = chance.randrange(4), chance.choice((torch.float32, torch.float64))

    def step(_: Tensors, __: str) -> None:
        if kind < 2:
            torch.set_default_dtype(dtype)
        else:
            torch.set_grad_enabled(kind == 3)

    return step


def draw(program: Program) -> Step:
    """The CPU's numbers are others: only what comes of none of them is kept."""
    place = program.pick()
    return lambda tensors, _: torch.rand_like(tensors[place], dtype=torch.float32).mul_(0)


def create(program: Program) -> Step:
    chance = program.chance
    size, kind = chance.randint(0, 5), chance.randrange(4)
    ways: list[Callable[[str], Tensor]] = [
        lambda device: torch.arange(size, device=device),
        lambda device: torch.linspace(-1, 1, size, device=device),
        lambda device: torch.eye(size, device=device),
        lambda device: torch.full((2, size), 1.5, device=device),
    ]
    return lambda _, device: ways[kind](device)


MAKERS: dict[Make, int] = {
    view: 6,
    unary: 4,
    binary: 5,
    with_number: 4,
    in_place: 5,
    to_out: 2,
    convert: 3,
    index: 4,
    reduce: 3,
    scan: 2,
    combine: 3,
    differentiate: 4,
    save: 1,
    mode: 2,
    draw: 1,
    create: 1,
}
"""How often each is drawn."""


class Side:
    """The tensors of a program on a device, and the modes that it has set."""

    def __init__(self, start: Tensors, device: str) -> None:
        self.tensors, self.device = [tensor.to(device) if device != "cpu" else tensor.clone() for tensor in start], device
        self.default, self.grad = torch.float32, True

    def run(self, step: Step, place: int) -> str:
        """The class of the error, if it raises."""
        before = torch.get_default_dtype(), torch.is_grad_enabled()
        torch.set_default_dtype(self.default)
        torch.set_grad_enabled(self.grad)
        try:
            made = step(self.tensors, self.device)
            if self.device == "cuda":
                torch.cuda.synchronize()  # what values are wrong is known then
        except Exception as error:
            return type(error).__name__
        finally:
            self.default, self.grad = torch.get_default_dtype(), torch.is_grad_enabled()
            torch.set_default_dtype(before[0])
            torch.set_grad_enabled(before[1])
        if isinstance(made, Tensor) and made.numel() <= ELEMENTS_MAX:
            if len(self.tensors) < TENSORS_MAX:
                self.tensors.append(made)
            else:
                self.tensors[place] = made
        return ""

    def looks(self, versions: bool) -> list[str]:
        return [f"{tuple(x.shape)} {steps_of(x)} {x.dtype} v{x._version if versions else '?'} {x.requires_grad}" for x in self.tensors]

    def values(self) -> Tensors:
        return [tensor.detach().cpu() for tensor in self.tensors]


def steps_of(x: Tensor) -> tuple[int, ...] | str:
    """Strides, where none of them may be any number, as those of single elements."""
    return x.stride() if all(size > 1 for size in x.shape) else "any"


def alike(ours: Tensor, theirs: Tensor, tolerance: float) -> bool:
    if not theirs.dtype.is_floating_point and not theirs.dtype.is_complex:
        return torch.equal(ours, theirs)
    half = theirs.dtype in (torch.float16, torch.bfloat16)
    rough = max(tolerance, 1e-2) if half else tolerance
    return torch.allclose(ours, theirs, rtol=rough, atol=rough, equal_nan=True)


Calls = list[tuple[Step, int, str]]
"""With the place that a result takes where there are many, and the name of what made the call."""


def drawn(seed: int) -> tuple[Program, Calls]:
    program, calls = Program(seed), []
    side = Side(program.start, "cpu")
    for _ in range(program.chance.randint(*CALLS)):
        program.tensors = side.tensors
        make = program.chance.choices(list(MAKERS), list(MAKERS.values()))[0]
        step, place = make(program), program.pick()
        side.run(step, place)
        calls.append((step, place, make.__name__))
    return program, calls


def difference(start: Tensors, calls: Calls, tolerance: float) -> str:
    theirs, ours = Side(start, "cpu"), Side(start, "cuda")
    versions = True
    for number, (step, place, name) in enumerate(calls):
        expected, found = theirs.run(step, place), ours.run(step, place)
        if found != expected and {found, expected} != {"IndexError", "RuntimeError"}:  # an index that leads nowhere is known later
            return f"call {number} ({name}): {found or 'no error'}, not {expected or 'no error'}"
        versions = versions and not expected  # a write that fails by a value is counted: that is known after it was recorded
        if (one := ours.looks(versions)) != (other := theirs.looks(versions)):
            return f"call {number} ({name}): " + "; ".join(f"{a}, not {b}" for a, b in zip(one, other, strict=False) if a != b)
        if number % LOOKS and number + 1 < len(calls):
            continue
        for at, (a, b) in enumerate(zip(ours.values(), theirs.values(), strict=True)):
            if not alike(a, b, tolerance):
                return f"by call {number} ({name}): tensor {at} {b.dtype} {a.flatten()[:4].tolist()}, not {b.flatten()[:4].tolist()}"
    return ""


def shrunk(start: Tensors, calls: Calls, tolerance: float) -> Calls:
    """Without calls that the difference does not need."""
    size = max(len(calls) // 2, 1)
    while True:
        begin = 0
        while begin < len(calls):
            fewer = calls[:begin] + calls[begin + size :]
            with contextlib.suppress(Exception):
                if difference(start, fewer, tolerance):
                    calls = fewer
                    continue
            begin += size
        if size == 1:
            return calls
        size = max(size // 2, 1)


def differences(count: int, seed: int, tolerance: float) -> Iterator[str]:
    for number in range(seed, seed + count):
        program, calls = drawn(number)
        if difference(program.start, calls, tolerance):
            fewer = shrunk(program.start, calls, tolerance)
            names = ", ".join(name for _, _, name in fewer)
            yield f"program {number}: {difference(program.start, fewer, tolerance)} [{names}]"


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    tolerance = float(sys.argv[5]) if len(sys.argv) > 5 else 1e-5
    print(json.dumps(list(differences(int(sys.argv[3]), int(sys.argv[4]), tolerance))))
