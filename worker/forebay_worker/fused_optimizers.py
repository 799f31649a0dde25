"""Optimizers that are one operator, and what scales gradients for them, made of operators that a graph has: what they write, one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import Node

ATEN = torch.ops.aten
Add = Callable[..., Any]
"""Adds a node to the graph, and returns it."""
Written = Iterator[tuple[Any, Node]]
"""Tensors that are written to, and what with."""


class _Step:
    """A step of one parameter. Numbers are Python's, or nodes without dimensions where they change."""

    def __init__(self, add: Add, scale: Any, found: Any) -> None:
        self._add, self._scale, self._found = add, scale, found

    def kept(self, target: Any, value: Node) -> tuple[Any, Node]:
        """The value, or the old one where a gradient was not finite."""
        if self._found is None:
            return target, value
        flat = self._add(ATEN.reshape.default, self._found.node, [])
        return target, self._add(ATEN.where.self, self._add(ATEN.eq.Scalar, flat, 1), target.node, value)

    def unscaled(self, gradient: Any) -> Node:
        if self._scale is None:
            return self.wide(gradient.node)
        return self.over(self.wide(gradient.node), self._add(ATEN.reshape.default, self._scale.node, []))

    def wide(self, value: Node) -> Node:
        """In single precision at least."""
        low = value.meta["val"].dtype in (torch.float16, torch.bfloat16)
        wide: Node = self._add(ATEN._to_copy.default, value, dtype=torch.float32) if low else value
        return wide

    def times(self, one: Any, other: Any) -> Any:
        if not isinstance(one, Node) and not isinstance(other, Node):
            return one * other
        one, other = (one, other) if isinstance(one, Node) else (other, one)
        return self._add(ATEN.mul.Tensor if isinstance(other, Node) else ATEN.mul.Scalar, one, other)

    def over(self, one: Node, other: Node) -> Node:
        divided: Node = self._add(ATEN.div.Tensor, one, other)
        return divided

    def plus(self, one: Node, other: Node) -> Node:
        sum_: Node = self._add(ATEN.add.Tensor, one, other)
        return sum_

    def minus(self, one: Node, other: Node) -> Node:
        difference: Node = self._add(ATEN.sub.Tensor, one, other)
        return difference

    def root(self, one: Node) -> Node:
        root: Node = self._add(ATEN.sqrt.default, one)
        return root

    def correction(self, beta: float, step: Any) -> Node:
        """1 - beta ** step, in double precision."""
        count = self._add(ATEN._to_copy.default, self._add(ATEN.reshape.default, step.node, []), dtype=torch.float64)
        correction: Node = self._add(ATEN.rsub.Scalar, self._add(ATEN.pow.Scalar, beta, count), 1)
        return correction


def _adam(is_decoupled: bool, add: Add, arguments: Sequence[Any]) -> Written:
    parameters, gradients, means, squares, largest, steps, rate, beta1, beta2, decay, eps, amsgrad, maximize, scale, found = arguments
    rate, numbers = _number(rate), [beta1, beta2, decay, eps]
    if not all(isinstance(one, float) for one in numbers):
        raise ValueError("a number of it changes that is not the learning rate")
    make = _Step(add, scale, found)
    for index, parameter in enumerate(parameters):
        value, gradient = make.wide(parameter.node), make.unscaled(gradients[index])
        if scale is not None:
            yield make.kept(gradients[index], gradient)
        gradient = make.times(gradient, -1) if maximize else gradient
        if decay != 0 and is_decoupled:
            value = make.minus(value, make.times(value, make.times(rate, decay)))
        elif decay != 0:
            gradient = make.plus(gradient, make.times(value, decay))
        mean = make.plus(make.times(make.wide(means[index].node), beta1), make.times(gradient, 1 - beta1))
        square = make.plus(make.times(make.wide(squares[index].node), beta2), make.times(make.times(gradient, gradient), 1 - beta2))
        yield make.kept(means[index], mean)
        yield make.kept(squares[index], square)
        if amsgrad:
            square = add(ATEN.maximum.default, make.wide(largest[index].node), square)
            yield make.kept(largest[index], square)
        size = make.times(add(ATEN.reciprocal.default, make.correction(beta1, steps[index])), rate)
        root = make.over(make.root(square), make.root(make.correction(beta2, steps[index])))
        yield make.kept(parameter, make.minus(value, make.times(make.over(mean, add(ATEN.add.Scalar, root, eps)), size)))


def _sgd(add: Add, arguments: Sequence[Any]) -> Written:
    parameters, gradients, buffers, decay, momentum, rate, dampening, nesterov, maximize, is_first, scale, found = arguments
    rate = _number(rate)
    if not all(isinstance(one, float) for one in (decay, momentum, dampening)):
        raise ValueError("a number of it changes that is not the learning rate")
    make = _Step(add, scale, found)
    for index, parameter in enumerate(parameters):
        value, gradient = make.wide(parameter.node), make.unscaled(gradients[index])
        if scale is not None:
            yield make.kept(gradients[index], gradient)
        gradient = make.times(gradient, -1) if maximize else gradient
        gradient = make.plus(gradient, make.times(value, decay)) if decay != 0 else gradient
        if momentum != 0:
            moved = gradient
            if not is_first:
                moved = make.plus(make.times(make.wide(buffers[index].node), momentum), make.times(gradient, 1 - dampening))
            yield make.kept(buffers[index], moved)
            gradient = make.plus(gradient, make.times(moved, momentum)) if nesterov else moved
        yield make.kept(parameter, make.minus(value, make.times(gradient, rate)))


def _unscale(add: Add, arguments: Sequence[Any]) -> Written:
    gradients, found, factor = arguments
    any_found = found.node
    for gradient in gradients:
        odd = add(
            ATEN.any.default, add(ATEN.logical_or.default, add(ATEN.isinf.default, gradient.node), add(ATEN.isnan.default, gradient.node))
        )
        any_found = add(ATEN.where.ScalarSelf, odd, 1.0, any_found)
        yield gradient, add(ATEN.mul.Tensor, gradient.node, add(ATEN.reshape.default, factor.node, []))
    yield found, any_found


def _update_scale(add: Add, arguments: Sequence[Any]) -> Written:
    scale, steps, found, growth, backoff, interval = arguments
    if not isinstance(growth, float) or not isinstance(backoff, float):
        raise ValueError("a number of it changes")
    is_found = add(ATEN.gt.Scalar, add(ATEN.reshape.default, found.node, list(scale.geometry.sizes)), 0)
    count = add(ATEN.add.Scalar, steps.node, 1)
    is_due, larger = add(ATEN.eq.Scalar, count, interval), add(ATEN.mul.Scalar, scale.node, growth)
    grown = add(ATEN.where.self, add(ATEN.logical_and.default, is_due, add(ATEN.ne.Scalar, larger, math.inf)), larger, scale.node)
    yield scale, add(ATEN.where.self, is_found, add(ATEN.mul.Scalar, scale.node, backoff), grown)
    yield steps, add(ATEN.where.ScalarSelf, add(ATEN.logical_or.default, is_found, is_due), 0, count)


def _number(rate: Any) -> Any:
    """The learning rate: a number, or a node where it is a tensor or changes."""
    return rate if isinstance(rate, (int, float)) else rate.node


MADE_OF: dict[str, Callable[[Add, Sequence[Any]], Written]] = {
    "_fused_adam_": lambda add, arguments: _adam(False, add, arguments),
    "_fused_adamw_": lambda add, arguments: _adam(True, add, arguments),
    "_fused_sgd_": _sgd,
    "_amp_foreach_non_finite_check_and_unscale_": _unscale,
    "_amp_update_scale_": _update_scale,
}
"""By operator: of its arguments, in the order of its schema."""
