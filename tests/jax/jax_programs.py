"""Programs in JAX as their users write them: each returns arrays that do not depend on the device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Program = Callable[[], Any]
PROGRAMS: dict[str, Program] = {}
RANDOM = np.random.default_rng(7)
MATRIX = RANDOM.standard_normal((6, 6)).astype(np.float32)
SYMMETRIC = MATRIX @ MATRIX.T + 6 * np.eye(6, dtype=np.float32)
IMAGES = RANDOM.standard_normal((2, 9, 9, 3)).astype(np.float32)
FILTERS = RANDOM.standard_normal((3, 3, 3, 4)).astype(np.float32)
TOKENS = RANDOM.standard_normal((2, 5, 4, 8)).astype(np.float32)


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


def loss(weights: jax.Array, inputs: jax.Array) -> jax.Array:
    return jnp.mean(jnp.tanh(inputs @ weights) ** 2)


# Transformations


@program
def eager() -> Any:
    x = jnp.arange(12.0).reshape(3, 4)
    return x.sum(), (x + 1) * 2, x.T[1], jnp.concatenate([x, x]), x.at[1].set(0)


@program
def jit() -> Any:
    return jax.jit(lambda a: {"sum": a.sum(), "self": a, "pair": (a + 1, a.astype(jnp.int32))})(MATRIX)


@program
def grad() -> Any:
    return jax.grad(loss)(MATRIX, SYMMETRIC), jax.value_and_grad(loss)(MATRIX, SYMMETRIC)


@program
def vmap() -> Any:
    return jax.vmap(loss, in_axes=(None, 0))(MATRIX, jnp.stack([SYMMETRIC, 2 * SYMMETRIC]))


@program
def hessian() -> Any:
    return jax.hessian(lambda x: jnp.sum(jnp.sin(x) * x**2))(jnp.arange(4.0))


@program
def jvp_and_vjp() -> Any:
    x = jnp.arange(4.0)
    out, pull = jax.vjp(jnp.cos, x)
    return jax.jvp(jnp.sin, (x,), (jnp.ones(4),)), out, pull(jnp.ones(4))


@program
def jacobians() -> Any:
    return jax.jacfwd(jnp.tanh)(jnp.arange(3.0)), jax.jacrev(jnp.tanh)(jnp.arange(3.0))


@program
def custom_gradient() -> Any:
    clipped = jax.custom_vjp(lambda x: x**2)
    clipped.defvjp(lambda x: (x**2, x), lambda x, g: (jnp.clip(2 * x * g, -1, 1),))
    return jax.grad(lambda x: clipped(x).sum())(jnp.linspace(-2, 2, 5))


@program
def remat() -> Any:
    return jax.grad(jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)).sum()))(jnp.arange(5.0))


@program
def nested_jit() -> Any:
    return jax.jit(lambda x: jax.jit(jnp.sin)(x) + jax.jit(jnp.sin)(2 * x))(jnp.arange(5.0))


@program
def static_arguments() -> Any:
    power = functools.partial(jax.jit, static_argnums=1)(lambda x, n: x**n)
    return power(jnp.arange(4.0), 2), power(jnp.arange(4.0), 3)


# Control flow


@program
def scan() -> Any:
    return lax.scan(lambda carry, x: (carry * 0.9 + x, carry), jnp.zeros(3), jnp.ones((7, 3)))


@program
def while_loop() -> Any:
    return lax.while_loop(lambda x: x[0] < 100, lambda x: (x[0] * 2 + 1, x[1] + 1), (jnp.int32(1), jnp.int32(0)))


@program
def fori_loop() -> Any:
    return lax.fori_loop(0, 10, lambda i, x: x.at[i % 3].add(i), jnp.zeros(3))


@program
def cond_and_switch() -> Any:
    branch = jax.jit(lambda i, x: lax.switch(i, [jnp.sin, jnp.cos, jnp.negative], x))
    return lax.cond(True, jnp.sin, jnp.cos, jnp.ones(2)), [branch(i, jnp.arange(3.0)) for i in range(3)]


@program
def associative_scan() -> Any:
    return lax.associative_scan(jnp.multiply, jnp.linspace(0.5, 1.5, 9))


@program
def grad_of_scan() -> Any:
    return jax.grad(lambda w: lax.scan(lambda c, x: (jnp.tanh(c * w + x), c), 0.0, jnp.arange(5.0))[0])(0.5)


# Operations


@program
def sort_and_search() -> Any:
    x = jnp.array([3.0, 1.0, 2.0, 5.0])
    return jnp.sort(x), jnp.argsort(-x), lax.top_k(x, 2), jnp.searchsorted(jnp.sort(x), 2.5), jnp.unique(x, size=4)


@program
def fft() -> Any:
    return jnp.fft.fft(jnp.arange(8.0)), jnp.fft.rfft2(MATRIX), jnp.fft.ifft(jnp.arange(6.0))


@program
def convolution() -> Any:
    out = lax.conv_general_dilated(IMAGES, FILTERS, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return out, lax.reduce_window(IMAGES, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


@program
def grad_of_convolution() -> Any:
    def total(filters: jax.Array) -> jax.Array:
        out = lax.conv_general_dilated(IMAGES, filters, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jnp.sum(lax.reduce_window(out, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"))

    return jax.grad(total)(FILTERS)


@program
def gather_and_scatter() -> Any:
    x = jnp.arange(10.0)
    index = jnp.array([1, 1, 3])
    return x[index], x.at[index].add(1.0), x[100], x.at[jnp.array([99])].set(1.0), jnp.take(MATRIX, index, axis=1)


@program
def attention() -> Any:
    return jax.nn.dot_product_attention(TOKENS, TOKENS, TOKENS, is_causal=True)


@program
def numpy_functions() -> Any:
    x = jnp.arange(3.0)
    counted = jnp.histogram(MATRIX, 4)
    return jnp.einsum("ij,kj->ik", MATRIX, MATRIX), jnp.cumsum(MATRIX, 1), jnp.median(MATRIX), counted, jnp.interp(0.5, x, x)


@program
def special_functions() -> Any:
    x = jnp.linspace(0.1, 3, 7)
    special = jax.scipy.special
    return special.gammaln(x), special.erf(x), special.digamma(x), special.logsumexp(x), lax.erf_inv(x / 4)


# Types


@program
def bfloat16() -> Any:
    x = jnp.asarray(MATRIX, jnp.bfloat16)
    return x @ x, jax.nn.softmax(x), x.astype(jnp.float16)


@program
def float8() -> Any:
    return [jnp.asarray(MATRIX, kind).astype(jnp.float32) for kind in (jnp.float8_e4m3fn, jnp.float8_e5m2)], jnp.ones(3, jnp.float8_e4m3fn)


@program
def complex_numbers() -> Any:
    x = MATRIX + 1j * MATRIX.T
    return jnp.abs(x), jnp.conj(x) @ x, jnp.angle(x)


@program
def integers() -> Any:
    x = jnp.arange(-4, 4)
    wraps = jnp.int8(100) + jnp.int8(100)
    return x // 3, x % 3, x << 2, jnp.bitwise_xor(x, 5), x.astype(jnp.uint8), jnp.array([True, False]), lax.population_count(x), wraps


@program
def double_precision() -> Any:
    with jax.enable_x64(True):
        return jnp.arange(3.0, dtype=jnp.float64) / 3, jnp.int64(2**40) * 3, jnp.linalg.inv(jnp.asarray(SYMMETRIC, jnp.float64))


@program
def empty_and_scalar() -> Any:
    return jnp.zeros((0, 3)) + 1, jnp.float32(2) * 3, jax.jit(lambda: jnp.ones(()))(), jnp.zeros((3, 0)).sum(), jnp.array(True)


# Linear algebra


@program
def cholesky_and_solve() -> Any:
    factor = jnp.linalg.cholesky(SYMMETRIC)
    return factor, jnp.linalg.solve(SYMMETRIC, MATRIX), jax.scipy.linalg.solve_triangular(factor, MATRIX, lower=True)


@program
def lu_and_determinant() -> Any:
    return jax.scipy.linalg.lu(MATRIX), jnp.linalg.det(MATRIX), jnp.linalg.slogdet(SYMMETRIC), jnp.linalg.inv(MATRIX)


@program
def qr() -> Any:
    return jnp.linalg.qr(MATRIX)


@program
def svd() -> Any:
    return jnp.linalg.svd(MATRIX), jnp.linalg.pinv(MATRIX), jnp.linalg.matrix_rank(MATRIX)


@program
def eigh() -> Any:
    return jnp.linalg.eigh(SYMMETRIC), jax.grad(lambda x: jnp.linalg.eigvalsh(x).sum())(SYMMETRIC)


@program
def matrix_functions() -> Any:
    solved, *_ = jnp.linalg.lstsq(MATRIX, SYMMETRIC)
    return jax.scipy.linalg.expm(MATRIX), jnp.linalg.matrix_power(MATRIX, 3), jnp.linalg.norm(MATRIX, 2), solved


# Random numbers


@program
def random_numbers() -> Any:
    key = jax.random.key(3)
    one, other = jax.random.split(key)
    drawn = jax.random.permutation(one, 9), jax.random.categorical(one, jnp.ones(4))
    return jax.random.normal(one, (5,)), jax.random.uniform(other, (5,)), drawn


@program
def more_random_numbers() -> Any:
    key = jax.random.PRNGKey(5)
    drawn = jax.random.bernoulli(key, 0.3, (9,)), jax.random.choice(key, 9, (3,), replace=False)
    return jax.random.gamma(key, 2.0, (4,)), jax.random.poisson(key, 3.0, (4,)), drawn


# Arrays


@program
def donation() -> Any:
    step = jax.jit(lambda state, x: (state + x, x * 2), donate_argnums=0)
    state = jnp.zeros(5)
    for _ in range(3):
        given = state
        state, out = step(state, jnp.ones(5))
        assert given.is_deleted()
    return state, out


@program
def host_arrays_of_any_layout() -> Any:
    x = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
    views = (x, x.T, x[:, ::2], x[::-1], x[..., 1], np.broadcast_to(x[0, 0], (5, 4)), np.asfortranarray(x[0]))
    return [jnp.asarray(view) for view in views]


@program
def copies() -> Any:
    x = jnp.arange(1000.0)
    return jnp.array(x, copy=True), jax.device_put(x, jax.devices("cpu")[0]), jax.device_put(np.arange(3.0)), x.copy()


@program
def export() -> Any:
    exported = jax.export.export(jax.jit(jnp.sin), platforms=("cpu", "cuda"))(jax.ShapeDtypeStruct((4,), jnp.float32))
    return jax.export.deserialize(exported.serialize()).call(jnp.arange(4.0))


@program
def tokens() -> Any:
    count = jax.jit(lambda token, x: (lax.after_all(token), x + 1))
    token, x = count(jax.jit(lax.create_token)(), jnp.arange(3.0))
    return count(token, x)[1]


@program
def sharding_over_one_device() -> Any:
    (device,) = jnp.zeros(1).devices()
    mesh = jax.sharding.Mesh(np.array([device]), ("x",))
    sharded = jax.device_put(jnp.arange(8.0), jax.NamedSharding(mesh, jax.P("x")))
    total = jax.shard_map(lambda x: lax.psum(x, "x"), mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P())
    return sharded * 2, total(sharded)


@program
def large_arrays() -> Any:
    x = jnp.asarray(np.arange(1 << 20, dtype=np.float32).reshape(1024, 1024))
    return x.sum(axis=0), x[3:5] * 2


@program
def checked_errors() -> Any:
    from jax.experimental import checkify

    error, out = checkify.checkify(lambda x: jnp.log(x), errors=checkify.float_checks)(jnp.float32(-1))
    assert "nan" in str(error.get())
    return jnp.isnan(out)
