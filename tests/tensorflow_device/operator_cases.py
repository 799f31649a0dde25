"""Calls of TensorFlow's operators with what is hard to get right: ties, extremes, nothing at all, each type, sizes by values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

Case = Callable[[], Any]
CASES: dict[str, Case] = {}


def case(made: Case) -> Case:
    CASES[made.__name__] = made
    return made


FLOATS = np.array([[0.0, -0.0, 1.0, 1.0, -1.0], [2.5, -2.5, 0.5, 3.0, 3.0]], np.float32)
EXTREMES = np.array([np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-38, 0.0, -0.0], np.float32)
WHOLE = np.array([[3, 1, 3, 0], [-2, 7, 7, -2]], np.int64)
IMAGES = np.linspace(-1, 1, 2 * 6 * 6 * 3, dtype=np.float32).reshape(2, 6, 6, 3)
FILTERS = np.linspace(-1, 1, 3 * 3 * 3 * 4, dtype=np.float32).reshape(3, 3, 3, 4)
DEFINITE = np.array([[4.0, 1.0], [1.0, 3.0]], np.float32)


def made(kind: Any, values: np.ndarray = FLOATS) -> tf.Tensor:
    return tf.cast(tf.constant(values), kind)


KINDS = (tf.float32, tf.float64, tf.bfloat16, tf.float16, tf.int32, tf.int64)


@case
def sums() -> Any:
    return [(made(kind) + made(kind) * 2 - 1, tf.reduce_sum(made(kind), 0), tf.reduce_prod(made(kind), 1)) for kind in KINDS]


@case
def comparisons() -> Any:
    return [(made(kind) > 1, made(kind) == made(kind)[::-1], tf.maximum(made(kind), 1), tf.sign(made(kind))) for kind in KINDS]


@case
def quotients() -> Any:
    whole = [(x // 2, x % 3, tf.truncatemod(x, 3)) for x in (tf.constant(WHOLE), tf.cast(WHOLE, tf.int32))]
    return [*whole, made(tf.float32) / 3, tf.math.divide_no_nan(FLOATS, 0.0), tf.math.floormod(FLOATS, 0.7), made(tf.float32) ** 2]


@case
def extremes() -> Any:
    x = tf.constant(EXTREMES)
    return (
        x + 1,
        tf.exp(x),
        tf.tanh(x),
        tf.math.is_nan(x),
        tf.reduce_max(x[3:]),
        tf.reduce_min(x[3:]),
        tf.sqrt(x),
        tf.nn.relu(x),
        tf.nn.softplus(x),
        tf.math.log1p(x),
    )


@case
def casts() -> Any:
    kinds = (*KINDS, tf.bool, tf.uint8, tf.int8, tf.complex64)
    return [tf.cast(made(one), other) for one in kinds if one != tf.complex64 for other in kinds if other != tf.complex64]


@case
def empty() -> Any:
    nothing = tf.zeros((0, 3))
    return (
        nothing + 1,
        tf.reduce_sum(nothing, 0),
        tf.reduce_max(nothing, 0),
        tf.concat([nothing, nothing], 0),
        nothing @ tf.zeros((3, 2)),
        tf.nn.softmax(nothing),
        tf.zeros((3, 0)) @ tf.zeros((0, 2)),
    )


@case
def logical() -> Any:
    bits = tf.constant([True, False, True])
    return (
        bits & ~bits,
        tf.reduce_any(bits),
        tf.reduce_all(bits),
        tf.bitwise.bitwise_xor(WHOLE, WHOLE + 1),
        tf.bitwise.left_shift(tf.constant([1, 2], tf.int64), 3),
        tf.cast(bits, tf.float32),
    )


@case
def ties() -> Any:
    both = tf.constant(FLOATS), tf.constant(WHOLE)
    found = [(tf.argmax(x, 1), tf.argmin(x, 1), tf.sort(x), tf.argsort(x, stable=True), *tf.math.top_k(x, 3)) for x in both]
    return (
        *found,
        tf.argmax(FLOATS, 1, tf.int32),
        tf.math.in_top_k([2, 0], FLOATS, 2),
        tf.searchsorted([1.0, 1.0, 2.0], [1.0, 3.0]),
        tf.searchsorted([1.0, 1.0, 2.0], [1.0], "right"),
    )


@case
def sizes_by_values() -> Any:
    x = tf.constant(FLOATS)
    unique = tf.unique([3.0, 1.0, 3.0]), tf.unique_with_counts([3, 1, 3]), tf.unique([2, 2, 5])
    return (
        tf.where(x > 0.5),
        tf.boolean_mask(x, x > 0.5),
        unique,
        tf.dynamic_partition(x[0], [0, 1, 0, 1, 0], 2),
        tf.sets.difference([[1, 2]], [[2, 3]]).values,
        tf.where(x > 0, x, 0.0),
    )


@case
def gathered() -> Any:
    x = tf.constant(FLOATS)
    picked = [tf.gather(x, tf.constant([4, 0, 4], kind), axis=1) for kind in (tf.int32, tf.int64)]
    return (
        *picked,
        tf.gather_nd(x, [[0, 1], [1, 4]]),
        tf.one_hot([0, 3, -1], 3),
        x[1, ::2],
        x[..., tf.newaxis, 1:],
        tf.gather(WHOLE, [1, 0], batch_dims=0),
        tf.nn.embedding_lookup(x, [[1, 0]]),
    )


@case
def scattered() -> Any:
    places = tf.constant([[0], [2], [0]])
    added = tf.tensor_scatter_nd_add(tf.zeros((4,)), places, [1.0, 2.0, 3.0])
    return (
        added,
        tf.scatter_nd(places, [1.0, 2.0, 3.0], [4]),
        tf.tensor_scatter_nd_update(tf.zeros((4,)), [[1], [3]], [5.0, 6.0]),
        tf.tensor_scatter_nd_max(tf.zeros((4,)), places, [1.0, -2.0, 3.0]),
    )


@case
def segments() -> Any:
    x, of = tf.constant(FLOATS[0]), tf.constant([0, 0, 1, 1, 3])
    return (
        tf.math.segment_sum(x, of),
        tf.math.unsorted_segment_max(x, of, 4),
        tf.math.unsorted_segment_mean(x, of, 4),
        tf.math.bincount([1, 1, 3]),
        tf.math.segment_max(x, of),
    )


@case
def shapes() -> Any:
    x = tf.constant(FLOATS)
    moved = (
        tf.transpose(x),
        tf.reshape(x, [-1, 2]),
        tf.tile(x, [2, 1]),
        tf.pad(x, [[1, 0], [0, 2]]),
        tf.pad(x, [[1, 0], [0, 2]], "REFLECT"),
        tf.reverse(x, [1]),
        tf.roll(x, 2, 1),
    )
    counted = (
        tf.shape(x),
        tf.size(x),
        tf.rank(x),
        tf.shape(x, tf.int64),
        tf.range(5),
        tf.range(0.0, 1.0, 0.25),
        tf.linspace(0.0, 1.0, 4),
        tf.meshgrid([1.0, 2.0], [3.0]),
    )
    return (
        *moved,
        *counted,
        tf.split(x, [2, 3], 1),
        tf.unstack(x),
        tf.stack([x, x], 1),
        tf.concat([x, x], 0),
        tf.broadcast_to(x[0], (3, 5)),
        tf.fill([2], 7),
        tf.eye(2),
    )


@case
def cumulative() -> Any:
    x = tf.constant(FLOATS)
    return (
        tf.cumsum(x, 1, exclusive=True, reverse=True),
        tf.math.cumprod(x, 1),
        tf.math.cumulative_logsumexp(x, 1),
        tf.reduce_logsumexp(x, 1),
        tf.math.reduce_std(x),
        tf.cumsum(WHOLE, 1),
        tf.reduce_mean(WHOLE, 0),
    )


@case
def products() -> Any:
    x = tf.constant(FLOATS)
    exact = tf.constant(WHOLE) @ tf.transpose(tf.constant(WHOLE)), tf.cast(WHOLE, tf.int32) @ tf.transpose(tf.cast(WHOLE, tf.int32))
    return (
        *exact,
        x @ tf.transpose(x),
        tf.matmul(x, x, transpose_b=True),
        tf.einsum("ij,kj->ik", x, x),
        tf.tensordot(x, x, [[1], [1]]),
        tf.linalg.matvec(x, x[0]),
        made(tf.bfloat16) @ tf.transpose(made(tf.bfloat16)),
    )


@case
def convolved() -> Any:
    forms = [tf.nn.conv2d(IMAGES, FILTERS, strides, padding) for strides in (1, 2) for padding in ("SAME", "VALID")]
    return (
        *forms,
        tf.nn.depthwise_conv2d(IMAGES, FILTERS, [1, 1, 1, 1], "SAME"),
        tf.nn.conv2d_transpose(forms[0], FILTERS, (2, 6, 6, 3), 1),
        tf.nn.conv1d(IMAGES[0], FILTERS[0], 1, "SAME"),
    )


@case
def pooled() -> Any:
    x = tf.constant(np.round(IMAGES, 1))
    spread = tf.nn.space_to_depth(x, 2), tf.nn.depth_to_space(tf.nn.space_to_depth(x, 2), 2)
    return (
        tf.nn.max_pool2d(x, 2, 2, "SAME"),
        tf.nn.avg_pool2d(x, 3, 2, "SAME"),
        tf.nn.lrn(x),
        *spread,
        tf.image.resize(x, (3, 9)),
        tf.image.resize(x, (3, 9), "nearest"),
        tf.image.flip_left_right(x),
    )


@case
def normalized() -> Any:
    x = tf.constant(IMAGES)
    whole = tf.nn.fused_batch_norm if hasattr(tf.nn, "fused_batch_norm") else tf.compat.v1.nn.fused_batch_norm
    return (
        whole(x, tf.ones(3), tf.zeros(3))[:3],
        tf.nn.l2_normalize(x, -1),
        tf.nn.moments(x, [0, 1]),
        tf.nn.bias_add(x, [1.0, 2.0, 3.0]),
        tf.nn.batch_normalization(x, 0.1, 2.0, None, None, 1e-3),
    )


@case
def losses() -> Any:
    x, labels = tf.constant(FLOATS), tf.constant([4, 0])
    sparse = [tf.nn.sparse_softmax_cross_entropy_with_logits(tf.cast(labels, kind), x) for kind in (tf.int32, tf.int64)]
    return (
        *sparse,
        tf.nn.softmax_cross_entropy_with_logits(tf.one_hot(labels, 5), x),
        tf.nn.sigmoid_cross_entropy_with_logits(tf.zeros_like(x), x),
        tf.nn.log_softmax(x),
        tf.nn.softmax(x),
        tf.nn.gelu(x),
        tf.nn.elu(x),
    )


@case
def linear_algebra() -> Any:
    x = tf.constant(DEFINITE)
    return (
        tf.linalg.cholesky(x),
        tf.linalg.inv(x),
        tf.linalg.det(x),
        tf.linalg.solve(x, x),
        tf.linalg.eigh(x)[0],
        tf.linalg.svd(x)[0],
        tf.linalg.band_part(x, 0, 0),
        tf.linalg.diag([1.0, 2.0]),
        tf.linalg.trace(x),
        tf.linalg.norm(x),
    )


@case
def complex_numbers() -> Any:
    x = tf.complex(tf.constant(FLOATS), tf.constant(FLOATS[::-1].copy()))
    return (
        x * x,
        tf.abs(x),
        tf.math.conj(x),
        tf.math.real(x),
        tf.math.angle(x),
        tf.signal.fft(x),
        tf.signal.rfft(FLOATS),
        tf.signal.irfft(tf.signal.rfft(FLOATS)),
        tf.signal.fft2d(x),
        tf.math.acos(x),
        tf.exp(x),
    )


@case
def special_functions() -> Any:
    x = tf.constant([0.1, 0.5, 1.0, 2.5, 7.0])
    return (
        tf.math.lgamma(x),
        tf.math.digamma(x),
        tf.math.erf(x),
        tf.math.erfinv(x / 8),
        tf.math.igamma(x, x),
        tf.math.betainc(x, x, x / 8),
        tf.math.zeta(x + 1, x),
        tf.math.polygamma(1.0, x),
        tf.math.ndtri(x / 8),
        tf.math.rint(x),
    )


@case
def random_numbers() -> Any:
    tf.random.set_seed(3)
    drawn = (
        tf.random.normal((4,)),
        tf.random.uniform((4,)),
        tf.random.truncated_normal((4,), seed=5),
        tf.random.uniform((4,), 0, 9, tf.int32),
        tf.random.shuffle(tf.range(6)),
        tf.random.categorical([[0.5, 0.5]], 4),
    )
    return *drawn, tf.random.stateless_normal((4,), [1, 2]), tf.random.stateless_uniform((4,), [1, 2]), tf.random.gamma((2,), 2.0, seed=1)


@case
def words() -> Any:
    text = tf.constant(["a b", "c"])
    return (
        tf.strings.length(text),
        tf.strings.split(text).to_tensor(),
        tf.strings.to_number(["1.5"]),
        tf.strings.as_string(tf.constant([1.0, 2.5])),
        tf.strings.join([text, text]),
    )


@case
def ragged_and_sparse() -> Any:
    ragged = tf.ragged.constant([[1.0, 2.0], [], [3.0]])
    sparse = tf.sparse.from_dense([[0.0, 1.0], [2.0, 0.0]])
    return (
        tf.reduce_sum(ragged, 1),
        ragged.to_tensor(),
        (ragged * 2).values,
        tf.sparse.to_dense(sparse),
        tf.sparse.sparse_dense_matmul(sparse, tf.ones((2, 2))),
        tf.sequence_mask([1, 3], 4),
    )


@case
def lists() -> Any:
    items = tf.TensorArray(tf.float32, 4)
    for index in tf.range(4):
        items = items.write(index, tf.constant(FLOATS[0]) * tf.cast(index, tf.float32))
    whole = tf.TensorArray(tf.int32, 2).unstack(tf.constant([[1, 2], [3, 4]]))
    return (
        items.stack(),
        items.concat(),
        items.gather([3, 1]),
        whole.read(1),
        tf.map_fn(lambda row: row * 2, tf.constant(FLOATS)),
        tf.scan(lambda total, row: total + row, tf.constant(FLOATS)),
    )


@case
def control_flow() -> Any:
    x = tf.constant(FLOATS)
    doubled = tf.while_loop(lambda index, _: index < 4, lambda index, total: (index + 1, total * 2), (0, x))
    halved = tf.while_loop(lambda total: tf.reduce_sum(tf.abs(total)) > 1, lambda total: (total / 2,), (x,))
    branch = tf.switch_case(tf.constant(1), [lambda: x, lambda: x + 1])
    return (
        doubled,
        halved,
        branch,
        tf.cond(tf.reduce_sum(x) > 0, lambda: x, lambda: -x),
        tf.case([(x[0, 0] > 1, lambda: x)], default=lambda: x * 3),
    )


@case
def gradients() -> Any:
    x, kernels = tf.constant(IMAGES), tf.constant(FILTERS)
    with tf.GradientTape() as tape:
        tape.watch([x, kernels])
        y = tf.nn.relu(tf.nn.conv2d(x, kernels, 1, "SAME"))
        y = tf.nn.max_pool2d(y, 2, 2, "SAME") + tf.nn.avg_pool2d(y, 2, 2, "SAME")
        loss = tf.reduce_mean(tf.nn.softmax(tf.reshape(y, (2, -1))) ** 2) + tf.reduce_sum(tf.gather(x, [0, 0, 1]) ** 2)
    return loss, tape.gradient(loss, [x, kernels])


@case
def gradients_of_loops() -> Any:
    x = tf.constant(FLOATS)
    with tf.GradientTape() as tape:
        tape.watch(x)
        (_, y) = tf.while_loop(lambda index, _: index < 3, lambda index, total: (index + 1, total * x), (0, x))
        loss = tf.reduce_sum(y) + tf.reduce_sum(tf.scan(lambda total, row: total * row, x))
    return tape.gradient(loss, x)


@case
def images() -> Any:
    x = tf.constant((IMAGES + 1) / 2)
    return (
        tf.image.rgb_to_hsv(x),
        tf.image.adjust_contrast(x, 2.0),
        tf.image.adjust_hue(x, 0.1),
        tf.image.adjust_saturation(x, 0.5),
        tf.image.extract_patches(x, [1, 2, 2, 1], [1, 2, 2, 1], [1, 1, 1, 1], "SAME"),
        tf.image.crop_and_resize(x, [[0.0, 0.0, 1.0, 1.0]], [0], (3, 3)),
    )


@case
def python_functions() -> Any:
    x = tf.constant(FLOATS)
    return tf.py_function(lambda given: given * 2, [x], tf.float32), tf.numpy_function(lambda given: given + 1, [x], tf.float32)


@case
def large_whole_numbers() -> Any:
    """Those that no number of single precision is equal to."""
    large = tf.constant([[[[2**24 + 1], [-(2**31) + 1]], [[2**53 + 1], [7]]]], tf.int64)
    doubles = tf.constant([[[[1 / 3], [2**53 - 1]]]], tf.float64)
    return [tf.raw_ops.ResizeNearestNeighbor(images=images, size=[3, 4]) for images in (large, doubles)], tf.reduce_max(large), large * 3


@case
def numbers_that_are_none() -> Any:
    x = tf.constant([[np.nan, 1.0, np.inf], [-np.inf, np.nan, 0.0], [3e38, -0.0, -3e38]], tf.float32)
    found = [(tf.argmax(x, place), tf.argmin(x, place), tf.argmax(tf.cast(x, tf.float64), place)) for place in (0, 1)]
    searched = tf.searchsorted([[3.0, 1.0, 2.0]], [[np.nan, 2.0]])
    images = tf.image.adjust_hue(x[None], 0.3), tf.image.adjust_saturation(x[None], 0.5), tf.image.rgb_to_hsv(x)
    slopes = tf.raw_ops.EluGrad(gradients=tf.ones_like(x), outputs=x)
    return found, searched, images, slopes, tf.math.in_top_k([0, 1, 2], x, 2), tf.math.cumulative_logsumexp(x)


@case
def counts() -> Any:
    values = tf.constant([[3, 2, 1], [0, 0, 3]])
    return tf.math.bincount(values), tf.math.bincount(values, axis=-1), tf.math.bincount(values, tf.ones((2, 3)), minlength=5, axis=None)
