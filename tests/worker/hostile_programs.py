"""``hostile_programs.py SEED COUNT``: prints programs that no compiler of JAX's makes, as a JSON list of base64.

True ones whose numbers, types, names or bytes are changed by chance. In a process of its own, since JAX minds forks of one that has it.
"""

from __future__ import annotations

import base64
import functools
import json
import random
import re
import sys
from collections.abc import Iterator

NUMBERS = ("-1", "0", "1", "2", "7", "64", "65537", "2147483648", "9223372036854775807", "-9223372036854775808")
TYPES = ("f32", "f64", "bf16", "i1", "i8", "i32", "i64", "ui8", "complex<f32>", "f8E4M3FN")
NUMBER = re.compile(r"(?<![\w.%#@])-?\d+(?![\w.])")
SIZE = re.compile(r"(?<=<)\d+(?=x)|(?<=x)\d+(?=x)")
TYPE = re.compile(r"\b(?:f32|f64|bf16|i1|i32|i64|ui32|ui8)\b")
OPERATION = re.compile(r"stablehlo\.\w+")
VALUE = re.compile(r"%\w+")
MODULE_BYTES_MAX = 1 << 20


@functools.cache
def true_modules() -> tuple[str, ...]:
    """Texts of programs, as JAX lowers them for the processor."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax

    jax.config.update("jax_platforms", "cpu")  # the virtual device is no part of this
    square, row = np.ones((8, 8), np.float32), np.arange(8, dtype=np.float32)
    made = (
        (lambda x: x @ x + x.T, (square,)),
        (lambda x: jnp.sort(x, axis=1)[:, ::-1], (square,)),
        (lambda x: jnp.fft.fft(x).real, (square,)),
        (lambda x: lax.fori_loop(0, 5, lambda i, v: v * 0.5 + i, x), (row,)),
        (lambda x: lax.scan(lambda c, v: (c + v, c * v), 0.0, x), (row,)),
        (lambda x: lax.cond(x.sum() > 3, jnp.sin, jnp.cos, x), (row,)),
        (lambda x: x[jnp.array([1, 3, 99, -5])].at[2].set(4.0), (row,)),
        (lambda x: lax.dynamic_slice(x, (2, 3), (4, 4)), (square,)),
        (lambda x: lax.conv_general_dilated(x[None, None], x[None, None, :3, :3], (1, 1), "SAME"), (square,)),
        (lambda x: lax.reduce_window(x, -np.inf, lax.max, (2, 2), (2, 2), "VALID"), (square,)),
        (lambda x: jnp.linalg.cholesky(x @ x.T + 8 * jnp.eye(8)), (square,)),
        (lambda x: jnp.pad(x, ((1, 2), (3, 0))).reshape(-1).cumsum(), (square,)),
        (lambda x: lax.top_k(x, 3), (row,)),
        (lambda x: jax.random.normal(jax.random.key(3), (16,)) + x[0], (row,)),
        (jax.grad(lambda x: jnp.tanh(x).prod() + jnp.where(x > 3, x, x**2).sum()), (row,)),
    )
    return tuple(jax.jit(function).lower(*given).as_text() for function, given in made)


def hostile(chance: random.Random) -> bytes:
    """One module, in MLIR's text, as an artifact, or in HLO."""
    text = chance.choice(true_modules())
    form = chance.random()
    if form < 0.7:
        return changed_text(text, chance).encode()
    data = artifact_of(text) if form < 0.85 else hlo_of(text)
    return changed_bytes(data, chance)


@functools.cache
def artifact_of(text: str) -> bytes:
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    with mlir.make_ir_context():
        return mlir.module_to_bytecode(ir.Module.parse(text))


@functools.cache
def hlo_of(text: str) -> bytes:
    from jaxlib import _jax

    computation = _jax.mlir.mlir_module_to_xla_computation(text, use_tuple_args=False, return_tuple=False)
    return bytes(computation.as_serialized_hlo_module_proto())


def changed_bytes(data: bytes, chance: random.Random) -> bytes:
    made = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        where = chance.randrange(len(made) or 1)
        what = chance.randrange(4)
        if what == 0 and made:
            made[where] ^= 1 << chance.randrange(8)
        elif what == 1:
            made[where:where] = chance.choice((b"\xff" * 9, b"\0" * 4, made[:16]))
        elif what == 2:
            del made[where : where + chance.choice((1, 4, 64))]
        elif made:
            made[where] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
    return bytes(made[:MODULE_BYTES_MAX])


def changed_text(text: str, chance: random.Random) -> str:
    for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
        pattern, others = chance.choice(tuple(_changes(text)))
        found = list(pattern.finditer(text))
        if found:
            one, new = chance.choice(found), chance.choice(others)
            if chance.random() < 0.5:  # wherever it stands, so that what is checked against one another stays so
                text = re.sub(rf"(?<![\w.%-]){re.escape(one[0])}(?!\w)", lambda _match, new=new: new, text)
            else:
                text = text[: one.start()] + new + text[one.end() :]
    return text[:MODULE_BYTES_MAX]


def _changes(text: str) -> Iterator[tuple[re.Pattern[str], tuple[str, ...]]]:
    yield NUMBER, NUMBERS
    yield SIZE, tuple(number.lstrip("-") for number in NUMBERS)
    yield TYPE, TYPES
    yield OPERATION, tuple(sorted(set(OPERATION.findall(text))))
    yield VALUE, tuple(sorted(set(VALUE.findall(text))))


if __name__ == "__main__":
    seed, count = map(int, sys.argv[1:])
    print(json.dumps([base64.b64encode(hostile(random.Random(seed + number))).decode() for number in range(count)]))
