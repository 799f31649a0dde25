"""Looks for operators that have another value on the device than on the processor, or a value where the processor raises an error.

Every operator that TensorFlow places on the device is tried as its definition says. Types, attributes and inputs are drawn until the
processor takes some. Then the device is given the same, and the same with hard values.

Run as ``operator_search.py SEED TRIES AFTER [OPERATOR…]``: of those that come after this name in the alphabet prints, for each operator, a
line of JSON as it begins, and one with what was tried and each difference.
"""

from __future__ import annotations

import inspect
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import dtypes, kernels, op_def_registry

sys.path.insert(0, str(Path(__file__).parent))  # for the next two

from comparisons import arrays_of, check_same
from operator_samples import samples_of

KINDS = ("float32", "float64", "int32", "int64", "bfloat16", "bool", "uint8", "complex64")
HARD = [np.nan, np.inf, -np.inf, -0.0, 0.0, 3e38, -1e-38, 0.5, 1.0, 1.0, -2.5, 7.0]
SOFT = [0.5, 1.0, 1 / 3, 2.0, 0.25, np.pi, 1.0, 0.7, 2.5, 0.5, np.e, 1.25]
WHOLE = [1, 0, 2, 1, 3, 0, 1, 2]
FAR, NEAR = [99, -99, 2**31 - 1, -(2**31), 2**53 + 1, -1, 3], [99, -99, -1, 3, 0]
"""Whole numbers; and those that may be sizes, of which large ones take the host's memory."""
SIZES = ((), (1,), (4,), (2, 3), (3, 3), (0, 3), (2, 3, 3), (1, 4, 4, 2), (2, 4, 4, 3), (1, 3, 4, 4, 2))
PLACES = (  # names of inputs that are whole numbers of few
    "axis axes dim dims dimension reduction_indices indices index concat_dim split_dim perm shape size sizes begin end "
    "strides segment_ids num_segments multiples paddings padding block_shape crops depth k num start limit delta diagonal "
    "ksize input_sizes filter_sizes num_lower num_upper shift roll seq_lengths labels updates_shape output_shape "
    "orig_input_shape orig_output_shape input_shape tensor_shape new_shape s0 s1 split size_splits offset num_rows num_cols "
    "batch_dims element_shape out_shape sequence_length bins lower_bound upper_bound fft_length "
).split()
INDICES = ("indices", "segment_ids", "labels", "seq_lengths", "axis", "dimension")
"""Of these, what may be far off."""
STARTS_MAX = 80
"""Draws for an operator and a type until the processor takes some."""
SECONDS_MAX = 10.0
"""For these draws: some operators allocate what their arguments ask for before they look at them."""
NOT_TRIED = {"Empty", "Erf", "Complex"}
"""Of no value that somebody promised; no number in TensorFlow for infinity in float64 on a processor; and what is of no type there."""

UNSEEN = {"FusedBatchNormV3": 5}
"""What comes after so many results is for the operator's own slope."""


def renamed(operator: str, given: dict[str, Any]) -> dict[str, Any]:
    """Arguments as the function in Python has them, which calls some otherwise than the definition."""
    parameters = [name for name in inspect.signature(getattr(tf.raw_ops, operator)).parameters if name != "name"]
    others = iter([name for name in parameters if name not in given])
    return {name if name in parameters else next(others, name): value for name, value in given.items()}


def has_slopes(tensor: tf.Tensor) -> bool:
    return bool(tensor.dtype.is_floating or tensor.dtype.is_complex)


class Slot(NamedTuple):
    """A variable that an operator is given, which begins with these values. What it holds afterwards is a result."""

    values: tf.Tensor


class Trial(NamedTuple):
    """A call of an operator."""

    operator: str
    inputs: dict[str, Any]
    attributes: dict[str, Any]

    def on(self, device: str) -> list[np.ndarray[Any, Any]]:
        tf.config.set_soft_device_placement(device != "/CPU:0")  # or the device would be held against itself
        with tf.device(device):
            variables = {name: tf.Variable(value.values) for name, value in self.inputs.items() if isinstance(value, Slot)}
            given = self.inputs | {name: variable.handle for name, variable in variables.items()}
            made = getattr(tf.raw_ops, self.operator)(**renamed(self.operator, given | self.attributes))
            values = [] if made is None or isinstance(made, tf.Operation) else made
            if self.operator in UNSEEN:
                values = values[: UNSEEN[self.operator]]
            return arrays_of([values, [one.read_value() for one in variables.values()]])

    def slopes_on(self, device: str) -> list[np.ndarray[Any, Any]]:
        """The sum of its results' slopes by each input that has fractions. Raises LookupError where TensorFlow defines none."""
        tf.config.set_soft_device_placement(device != "/CPU:0")
        with tf.device(device), tf.GradientTape() as tape:
            given = {name: tf.nest.map_structure(tf.identity, value) for name, value in self.inputs.items()}
            sources = [one for one in tf.nest.flatten(given) if has_slopes(one)]
            tape.watch(sources)
            made = getattr(tf.raw_ops, self.operator)(**renamed(self.operator, given | self.attributes))
            targets = [one for one in tf.nest.flatten(made) if has_slopes(one)]
        if not targets or not sources:
            raise LookupError(self.operator)
        with tf.device(device):
            return arrays_of([one for one in tape.gradient(targets, sources) if one is not None])

    def told(self) -> str:
        def short(value: Any) -> str:
            if isinstance(value, list):
                return "[" + ", ".join(map(short, value)) + "]"
            if isinstance(value, Slot):
                return "variable " + short(value.values)
            if isinstance(value, tf.Tensor):
                return f"{value.dtype.name}{list(value.shape)} {value.numpy().ravel()[:12].tolist()}"
            return str(value)

        return ", ".join(f"{name}={short(value)}" for name, value in (self.inputs | self.attributes).items())


def served() -> Iterator[tuple[Any, list[Any]]]:
    """Definitions of operators that are computed on the device, with their kernels."""
    found: dict[str, list[Any]] = {}
    for kernel in kernels.get_all_registered_kernels().kernel:
        if kernel.device_type == "FOREBAY" and kernel.priority == 1:
            found.setdefault(kernel.op, []).append(kernel)
    for name in sorted(found):
        definition = op_def_registry.get(name)
        if definition is not None and hasattr(tf.raw_ops, name) and name not in NOT_TRIED:
            yield definition, found[name]


class Drawing:
    """Calls of one operator by chance."""

    def __init__(self, definition: Any, kernels_of_it: Sequence[Any], chance: np.random.Generator) -> None:
        self.definition, self.chance = definition, chance
        self.allowed: dict[str, set[str]] = {}
        for kernel in kernels_of_it:
            for constraint in kernel.constraint:
                names = {dtypes.as_dtype(kind).name for kind in constraint.allowed_values.list.type}
                self.allowed.setdefault(constraint.name, set()).update(names)

    def pick(self, items: Sequence[Any]) -> Any:
        return items[int(self.chance.integers(len(items)))]

    def trial(self, kind: str) -> Trial | None:
        """One with this type wherever the operator takes it; None where it takes it nowhere."""
        attributes = {one.name: self.attribute(one, kind) for one in self.definition.attr}
        base = self.pick(SIZES)
        inputs = {one.name: self.input(one, attributes, base) for one in self.definition.input_arg}
        taken = {attributes[one.type_attr] for one in self.definition.input_arg if one.type_attr and not one.type_list_attr}
        fixed = {dtypes.as_dtype(one.type).name for one in self.definition.input_arg if one.type}
        if kind not in taken | fixed | {attributes.get("dtype"), attributes.get("T")}:
            return None
        inferred = {name for one in self.definition.input_arg for name in (one.type_attr, one.number_attr, one.type_list_attr)}
        given = {name: value for name, value in attributes.items() if name not in inferred and value is not None}
        return Trial(self.definition.name, inputs, given)

    def attribute(self, one: Any, kind: str) -> Any:
        if one.type == "type":
            allowed = self.allowed.get(one.name) or {dtypes.as_dtype(each).name for each in one.allowed_values.list.type} or set(KINDS)
            index = [each for each in sorted(allowed) if each in ("int32", "int64")]
            if kind in allowed and (len(allowed) > 2 or not index):
                return kind
            return self.pick(index or sorted(allowed))
        if one.allowed_values.list.s:
            return self.pick([each.decode() for each in one.allowed_values.list.s])
        if one.HasField("default_value") and self.chance.random() < 0.6:
            return None
        return self.value_of(one)

    def value_of(self, one: Any) -> Any:
        drawn = {
            "bool": lambda: bool(self.chance.integers(2)),
            "int": lambda: max(int(self.chance.integers(0, 4)), one.minimum if one.has_minimum else 0),
            "float": lambda: float(self.pick([0.5, 0.1, 1.0, 2.0])),
            "string": lambda: self.pick(["SAME", "VALID", "NHWC", "half_to_even", "LEFT_RIGHT", "ij,jk->ik", "ij->ji", "i,i->"]),
            "shape": lambda: self.pick([[2, 3], [4], []]),
            "list(int)": lambda: self.pick([[1, 2, 2, 1], [1, 1, 1, 1], [0], [1], [1, 2, 2, 2, 1], [1, 1, 1, 1, 1], [-1], []]),
        }.get(one.type)
        return None if drawn is None else drawn()

    def input(self, one: Any, attributes: dict[str, Any], base: tuple[int, ...]) -> Any:
        if one.type_list_attr:
            return [self.tensor("float32", base), self.tensor("int64", base)]
        kind = attributes[one.type_attr] if one.type_attr else dtypes.as_dtype(one.type).name
        if kind == "resource":
            return Slot(self.tensor(attributes.get("T") or attributes.get("dtype") or "float32", base))
        if one.number_attr:
            count = attributes.get(one.number_attr) or 2
            attributes[one.number_attr] = count
            return [self.part(one.name, kind, base) for _ in range(count)]
        return self.part(one.name, kind, base)

    def part(self, name: str, kind: str, base: tuple[int, ...]) -> tf.Tensor:
        if name in PLACES and kind in ("int32", "int64"):
            sizes = self.pick([(), (), (1,), (len(base),), (len(base), 2), (2,), base])
            return tf.cast(self.chance.choice([*WHOLE, *([-1] if self.chance.random() < 0.2 else [])], sizes), kind)
        others = [(), base[-1:], base[::-1], base[:1], (1, *base[1:]), (2, 2, base[-1] if base else 1, 3)]
        sizes = base if self.chance.random() < 0.7 else self.pick(others)
        return self.tensor(kind, sizes)

    def tensor(self, kind: str, sizes: tuple[int, ...]) -> tf.Tensor:
        whole = kind in ("int32", "int64", "uint8", "int8", "int16", "uint16", "uint32", "uint64", "bool")
        return tf.cast(self.chance.choice(WHOLE if whole else SOFT, sizes), kind)


def hard(trial: Trial, chance: np.random.Generator) -> Iterator[Trial]:
    """The same call with extremes in place of one input's numbers, for each input."""
    for name, value in trial.inputs.items():
        if not isinstance(value, tf.Tensor):
            continue
        pool: Sequence[Any] = HARD
        if value.dtype == tf.bool or value.dtype.is_unsigned:
            pool = [255, 0, 99, 1]
        elif value.dtype.is_integer:
            pool = NEAR if name in PLACES and name not in INDICES else FAR
        yield trial._replace(inputs=trial.inputs | {name: tf.cast(chance.choice(np.array(pool), value.shape), value.dtype)})


ERRORS = (tf.errors.OpError, TypeError, ValueError)


def difference(on: Callable[[str], list[np.ndarray[Any, Any]]]) -> str | None:
    """What the device does otherwise: nothing where both have the same values, or the device says that it has none."""
    try:
        expected = on("/CPU:0")
    except ERRORS as error:
        expected, refused = None, str(error).splitlines()[0][:160]
    try:
        found = on("/GPU:0")
    except ERRORS:
        return None
    if expected is None:
        return f"a value, and on the processor: {refused}"
    try:
        check_same(found, expected)
    except AssertionError:
        return f"{[one.ravel()[:12].tolist() for one in found]} and on the processor {[one.ravel()[:12].tolist() for one in expected]}"
    return None


def search(definition: Any, of_it: list[Any], seed: int, tries: int) -> dict[str, Any]:
    """Of one operator: how many calls were tried, and what differs."""
    calls, slopes, differences = 0, 0, []
    for place, kind in enumerate(KINDS):
        chance = np.random.default_rng([seed, place, *definition.name.encode()])
        for trial in taken(Drawing(definition, of_it, chance), kind, tries):
            for number, each in enumerate((trial, *hard(trial, chance))):
                calls += 1
                if told := difference(each.on):
                    differences.append(["hard" if number else "ordinary", kind, each.told(), told])
            if is_differentiable(trial):
                slopes += 1
                if told := difference(trial.slopes_on):
                    differences.append(["slopes", kind, trial.told(), told])
    return {"operator": definition.name, "calls": calls, "slopes": slopes, "differences": differences}


def is_differentiable(trial: Trial) -> bool:
    """Whether TensorFlow has slopes of this call."""
    if any(isinstance(value, Slot) for value in trial.inputs.values()):
        return False
    try:
        return bool(trial.slopes_on("/CPU:0"))
    except (LookupError, *ERRORS):
        return False


def taken(drawing: Drawing, kind: str, tries: int) -> Iterator[Trial]:
    """Calls that the processor takes: the operator's samples, and then what is drawn."""
    found, began = 0, time.monotonic()
    samples = [Trial(drawing.definition.name, *sample) for sample in samples_of(drawing.definition.name, kind, drawing.chance)]
    for start in range(STARTS_MAX):
        if time.monotonic() - began > SECONDS_MAX:
            return
        try:
            trial = samples[start] if start < len(samples) else drawing.trial(kind)
            if trial is None:
                return
            trial.on("/CPU:0")
        except ERRORS:
            if start < len(samples):  # it does not take the type
                return
            continue
        found += 1
        yield trial
        if found == tries:
            return


def main(seed: int, tries: int, first: str, only: Sequence[str]) -> None:
    for definition, of_it in served():
        if definition.name > first and (not only or definition.name in only):
            print(json.dumps({"begins": definition.name}), flush=True)
            print(json.dumps(search(definition, of_it, seed, tries)), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
