"""Programs in JAX over several devices, as their users write them: each returns arrays that do not depend on what the devices are.

Run as ``sharded_programs.py FILE``: writes what each program gives on all of JAX's devices, or the error that it raises, to a file for
``numpy.load``. Lines on the output tell what the devices were.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

Program = Callable[[], Any]
PROGRAMS: dict[str, Program] = {}
ROWS = P("x")
SPECIAL = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-38, 3e38, -1.5], np.float32)


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


def count() -> int:
    return jax.device_count()


def line() -> Mesh:
    return Mesh(np.array(jax.devices()), ("x",))


def sharding(*spec: Any) -> NamedSharding:
    return NamedSharding(line(), P(*spec))


def rows(columns: int = 3, each: int = 2, dtype: Any = jnp.float32) -> jax.Array:
    """Sharded by rows; no two are alike."""
    values = np.arange(count() * each * columns).reshape(count() * each, columns) - 5
    return jax.device_put(jnp.asarray(values, dtype), sharding("x"))


def numbers(*sizes: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(sizes)).standard_normal(sizes).astype(np.float32)


def parts(array: jax.Array) -> list[Any]:
    """What each device holds of it, in the devices' order, and which part that is."""
    shards = sorted(array.addressable_shards, key=lambda one: one.device.id)
    places = [[0 if part.start is None else part.start for part in one.index] for one in shards]
    return [np.array(places), [one.data for one in shards]]


def mapped(function: Any, made: Any = ROWS, **settings: Any) -> Any:
    """Of arrays in rows."""
    return jax.jit(jax.shard_map(function, mesh=line(), in_specs=ROWS, out_specs=made, **settings))


# Arrays


@program
def an_array_in_rows() -> Any:
    x = rows()
    return x, parts(x), x + 1, x.sum(), x.T


@program
def an_array_on_each_device() -> Any:
    held = [jax.device_put(jnp.arange(3.0) + place, device) for place, device in enumerate(jax.devices())]
    assert [one.devices() for one in held] == [{device} for device in jax.devices()]
    sums = [jax.jit(lambda x: x * 2 + x.sum())(one) for one in held]
    assert [one.devices() for one in sums] == [{device} for device in jax.devices()]
    return sums, jax.device_put(sums[-1], jax.devices()[0]) + sums[0]


@program
def arrays_of_two_devices_in_one_call() -> Any:
    first, last = (jax.device_put(jnp.ones(3), device) for device in (jax.devices()[0], jax.devices()[-1]))
    return first + last


@program
def arrays_made_from_parts() -> Any:
    values = np.arange(count() * 6.0, dtype=np.float32).reshape(count() * 2, 3)
    by_callback = jax.make_array_from_callback(values.shape, sharding("x"), lambda index: values[index])
    pieces = [jax.device_put(values[2 * place : 2 * place + 2], device) for place, device in enumerate(jax.devices())]
    of_pieces = jax.make_array_from_single_device_arrays(values.shape, sharding("x"), pieces)
    of_data = jax.make_array_from_process_local_data(sharding("x"), values)
    return by_callback, of_pieces, of_data, by_callback + of_pieces - of_data


@program
def arrays_that_move() -> Any:
    x = rows(columns=4 * count())
    columns = jax.device_put(x, sharding(None, "x"))
    whole = jax.device_put(columns, sharding())
    back = jax.device_put(whole, sharding("x"))
    return parts(columns), parts(whole), parts(back), jax.device_put(back, jax.devices()[-1])


@program
def devices_in_another_order() -> Any:
    mesh = Mesh(np.array(jax.devices()[::-1]), ("x",))
    x = jax.device_put(jnp.arange(2.0 * count()), NamedSharding(mesh, P("x")))

    def each(x: jax.Array) -> jax.Array:
        return lax.cumsum(lax.all_gather(x, "x", tiled=True)) + lax.axis_index("x")

    return parts(x), parts(jax.jit(jax.shard_map(each, mesh=mesh, in_specs=ROWS, out_specs=ROWS))(x))


@program
def some_of_the_devices() -> Any:
    mesh = Mesh(np.array(jax.devices()[1:]), ("x",))
    x = jax.device_put(jnp.arange(3.0 * (count() - 1)), NamedSharding(mesh, P("x")))
    return parts(x * 2), jax.jit(lambda x: x - x.mean())(x)


@program
def rows_that_the_devices_cannot_have_equal_parts_of() -> Any:
    return jax.device_put(jnp.arange(count() * 2.0 + 1), sharding("x"))


@program
def uneven_arrays_within_a_program() -> Any:
    def pad(x: jax.Array) -> jax.Array:
        longer = lax.with_sharding_constraint(jnp.concatenate([x, jnp.ones((1, x.shape[1]))]), sharding("x"))
        return jnp.sort(longer, axis=0)[1:] * longer.sum()

    return jax.jit(pad)(rows())


@program
def empty_arrays_and_scalars() -> Any:
    nothing = jax.device_put(jnp.zeros((0, 3)), sharding(None, None))
    thin = jax.device_put(jnp.zeros((count(), 0)), sharding("x"))
    scalar = jax.device_put(jnp.float32(-0.0), sharding())
    return nothing + 1, parts(thin + 1), thin.sum(axis=1), parts(scalar), mapped(lambda x: x.sum()[None], made=P("x"))(thin)


# Programs that XLA divides


@program
def products_and_sorts() -> Any:
    x = rows(columns=4)
    return jax.jit(lambda x: (x @ x.T, jnp.sort(x[::-1], axis=0), jnp.argmax(x, axis=0), x[::-1], jnp.cumsum(x, axis=0)))(x)


@program
def given_and_made_shardings() -> Any:
    step = jax.jit(lambda x, w: x @ w, in_shardings=(sharding("x", None), sharding(None, "x")), out_shardings=sharding(None, "x"))
    made = step(numbers(2 * count(), 5), numbers(5, 3 * count()))
    return parts(made)


@program
def constraints_within_a_program() -> Any:
    @jax.jit
    def step(x: jax.Array) -> Any:
        turned = lax.with_sharding_constraint(x.T @ x, sharding("x"))
        return turned, lax.with_sharding_constraint(turned.sum(axis=0), sharding())

    return [parts(one) for one in step(jax.device_put(numbers(count(), 2 * count()), sharding("x")))]


@program
def two_axes() -> Any:
    if count() % 2:
        return ()
    mesh = Mesh(np.array(jax.devices()).reshape(2, -1), ("data", "model"))
    x = jax.device_put(numbers(4, 6), NamedSharding(mesh, P("data", None)))
    w = jax.device_put(numbers(6, 2 * count()), NamedSharding(mesh, P(None, "model")))
    spec = P("data", "model")
    both = jax.shard_map(lambda x: lax.psum(x, "data") + lax.pmax(x, "model"), mesh=mesh, in_specs=spec, out_specs=spec)
    return parts(jax.jit(lambda x, w: jnp.tanh(x @ w))(x, w)), parts(jax.jit(both)(x @ w))


@program
def shardings_in_types() -> Any:
    mesh = jax.make_mesh((count(),), ("x",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        x = jax.device_put(numbers(2 * count(), 4), NamedSharding(mesh, P("x", None)))
        made = jax.jit(lambda x: (jnp.sin(x), x.sum(axis=1), x.sum(axis=0)))(x)
    assert [tuple(one.sharding.spec) for one in made[:2]] == [("x", None), ("x",)]
    return [parts(one) for one in made]


@program
def special_numbers() -> Any:
    x = jax.device_put(np.tile(SPECIAL, (count(), 1)), sharding("x"))
    signs = mapped(lambda x: lax.psum(x, "x"), made=P())(jax.device_put(np.full((count(), 2), -0.0, np.float32), sharding("x")))
    return x, x.max(axis=0), jnp.sum(x, axis=0), jnp.sort(x, axis=0), jnp.nanmax(x), x * -1, 1 / signs, lax.sign(x)


@program
def whole_numbers_and_others() -> Any:
    made = []
    for kind in (jnp.int8, jnp.uint8, jnp.int32, jnp.uint32, jnp.bool_, jnp.bfloat16, jnp.float16, jnp.complex64, jnp.float8_e4m3fn):
        x = rows(dtype=jnp.int32).astype(kind)
        made.append(parts(x))
        if kind not in (jnp.bool_, jnp.float8_e4m3fn):
            made.append(mapped(lambda x: lax.psum(x * x, "x"), made=P())(x))
    return made


@program
def double_precision() -> Any:
    with jax.enable_x64(True):
        x = jax.device_put(np.arange(3.0 * count()) / 7, sharding("x"))
        large = jax.device_put(np.arange(count()) + 2**40, sharding("x"))
        return jax.jit(lambda x: (x.sum(), x - x.mean()))(x), large.sum(), large * 3


@program
def linear_algebra() -> Any:
    x = numbers(2 * count(), 4, 4)
    batch = jax.device_put(x @ x.transpose(0, 2, 1) + 4 * np.eye(4, dtype=np.float32), sharding("x"))
    return jax.jit(lambda x: (jnp.linalg.cholesky(x), jnp.linalg.eigh(x)[0], jnp.linalg.solve(x, x[..., :1])))(batch)


@program
def convolutions() -> Any:
    images, filters = jax.device_put(numbers(count(), 6, 6, 3), sharding("x")), numbers(3, 3, 3, 4)
    out = jax.jit(lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
    return parts(out(images, filters)), jax.grad(lambda w: (out(images, w) ** 2).mean())(filters)


@program
def random_numbers() -> Any:
    key = jax.random.key(3)
    draw = jax.jit(lambda key: jax.random.normal(key, (count() * 2, 3)), out_shardings=sharding("x"))
    folded = mapped(lambda x: jax.random.uniform(jax.random.fold_in(key, lax.axis_index("x")), x.shape))
    return parts(draw(key)), folded(rows())


@program
def indices() -> Any:
    x, where = rows(columns=4), jnp.array([0, 2 * count() - 1, 0, 99, -1])
    return x[where], x.at[where].add(1.0), x.at[:, 1].set(7), jnp.take(x, where, axis=0), lax.dynamic_slice(x, (1, 1), (2, 2))


# Programs that say what each device does


@program
def sums_and_others() -> Any:
    def each(x: jax.Array) -> Any:
        return lax.psum(x, "x"), lax.pmean(x, "x"), lax.pmax(x, "x"), lax.pmin(x, "x")

    return mapped(each, made=P())(rows())


@program
def parts_that_are_gathered_and_sent() -> Any:
    ring = [(place, (place + 1) % count()) for place in range(count())]

    def each(x: jax.Array) -> Any:
        sent, once = lax.ppermute(x, "x", ring), lax.ppermute(x, "x", ring[:1])
        return lax.all_gather(x, "x", tiled=True), lax.all_gather(x, "x"), sent, once

    return [parts(one) for one in mapped(each)(rows())]


@program
def parts_that_change_places() -> Any:
    def each(x: jax.Array) -> Any:
        turned = lax.all_to_all(x, "x", split_axis=1, concat_axis=0, tiled=True)
        return turned, lax.psum_scatter(x, "x", scatter_dimension=1, tiled=True)

    return [parts(one) for one in mapped(each)(rows(columns=2 * count()))]


@program
def devices_that_do_something_else() -> Any:
    def each(x: jax.Array) -> jax.Array:
        place = lax.axis_index("x")
        x = lax.cond(place == 0, lambda x: x * 100, lambda x: x - 1, x)
        return lax.fori_loop(0, place + 1, lambda step, x: x + step, x)

    return parts(mapped(each)(rows()))


@program
def whole_results_that_differ() -> Any:
    """What is said to be the same on all devices, and is not: each keeps its own."""
    return parts(mapped(lambda x: x.sum(axis=0) + lax.axis_index("x"), made=P(), check_vma=False)(rows()))


@program
def collectives_in_loops() -> Any:
    def each(x: jax.Array) -> Any:
        def step(carry: jax.Array, _: Any) -> Any:
            carry = carry * 0.5 + lax.ppermute(carry, "x", [(place, (place + 1) % count()) for place in range(count())])
            return carry, lax.psum(carry.sum(), "x")

        return lax.scan(step, x, length=5)

    return mapped(each, made=(P("x"), P()))(rows())


@program
def slopes_of_collectives() -> Any:
    total = jax.shard_map(lambda x: lax.psum((x**2).sum(), "x"), mesh=line(), in_specs=P("x"), out_specs=P())
    gathered = mapped(lambda x: jnp.sin(lax.all_gather(x, "x", tiled=True)).sum()[None])
    return jax.grad(total)(rows()), jax.jit(jax.grad(lambda x: gathered(x).sum()))(rows())


@program
def one_program_a_device() -> Any:
    x = np.arange(count() * 3.0, dtype=np.float32).reshape(count(), 3)
    each = jax.pmap(lambda x: (x / lax.psum(x, "i"), lax.all_gather(x.sum(), "i")), axis_name="i")
    return each(x), jax.pmap(jnp.sin)(x), jax.pmap(lambda x, y: x + y, in_axes=(0, None))(x, 2.0)


# State


@program
def donation() -> Any:
    step = jax.jit(lambda state, x: (state + x, (x * state).sum()), donate_argnums=0)
    state, x, sums = jax.device_put(jnp.zeros((2 * count(), 3)), sharding("x")), rows(), []
    for _ in range(3):
        given = state
        state, out = step(state, x)
        sums.append(out)
        assert given.is_deleted()
    return parts(state), sums


def train(weights: Any, inputs: Any, labels: Any) -> list[Any]:
    import optax

    optimizer = optax.adamw(1e-2)

    def loss(weights: Any, inputs: Any) -> jax.Array:
        hidden = jnp.tanh(inputs @ weights["first"])
        return optax.softmax_cross_entropy_with_integer_labels(hidden @ weights["last"], labels).mean()

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(weights: Any, state: Any, inputs: Any) -> Any:
        value, slopes = jax.value_and_grad(loss)(weights, inputs)
        updates, state = optimizer.update(slopes, state, weights)
        return optax.apply_updates(weights, updates), state, value

    state, losses = optimizer.init(weights), []
    for _ in range(6):
        weights, state, value = step(weights, state, inputs)
        losses.append(value)
    assert losses[-1] < losses[0]
    return [losses, weights]


def problem() -> Any:
    weights = {"first": numbers(8, 4 * count()), "last": numbers(4 * count(), 10)}
    return weights, numbers(4 * count(), 8), np.arange(4 * count()) % 10


@program
def training_with_batches_in_rows() -> Any:
    weights, inputs, labels = problem()
    return train(jax.device_put(weights, sharding()), jax.device_put(inputs, sharding("x")), jax.device_put(labels, sharding("x")))


@program
def training_with_weights_in_rows() -> Any:
    weights, inputs, labels = problem()
    placed = {"first": jax.device_put(weights["first"], sharding(None, "x")), "last": jax.device_put(weights["last"], sharding("x"))}
    return train(placed, jax.device_put(inputs, sharding()), labels)


@program
def a_training_on_the_last_device() -> Any:
    with jax.default_device(jax.devices()[-1]):
        weights, inputs, labels = (jax.tree.map(jnp.asarray, one) for one in problem())
        return train(weights, inputs, labels)


def result_of(function: Program) -> list[np.ndarray[Any, Any]]:
    """Its arrays, or one with the error's first line."""
    try:
        return [np.asarray(one) for one in jax.tree.leaves(function())]
    except AssertionError:
        raise
    except Exception as error:
        words = str(error).splitlines()[0].partition(" on platform")[0]
        return [np.array(f"{type(error).__name__}: {words}")]


def as_bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """As files of NumPy can have it: bfloat16 and its like as bytes, with their name."""
    return array if array.dtype.kind in "biufcU" else np.array(f"{array.dtype.name} {array.shape} {array.tobytes().hex()}")


def main(file: str, *names: str) -> None:
    print(jax.devices())
    results = {
        f"{name}/{index:03}": as_bytes(array) for name in names or PROGRAMS for index, array in enumerate(result_of(PROGRAMS[name]))
    }
    np.savez(file, **results)
    print("written")


if __name__ == "__main__":
    main(*sys.argv[1:])
