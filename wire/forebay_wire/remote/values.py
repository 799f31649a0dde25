"""Values of variables as files, for a process beside a device and back: tensors and arrays as safetensors, tables as Arrow's files, what
JSON has as JSON.

Nothing is unpickled on either side, so that what comes cannot run code. Needs ``safetensors``, and PyTorch; for tables ``pyarrow``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forebay_wire.remote import tables
from forebay_wire.remote.tables import ValueRefused as ValueRefused

TENSORS, PLAIN = "tensors.safetensors", "plain.json"
GOES = "tensors, NumPy's arrays, tables of pandas and Arrow, numbers, texts, lists and dicts"
KIND = "kind:"
"""Of what a tensor in the file was, among its metadata: ``tensor``, ``array`` or ``scalar``, an array's item."""


def write(folder: Path, values: Mapping[str, Any]) -> None:
    """Makes the folder, with the values in it. Raises ValueRefused, OSError."""
    from safetensors.torch import save_file

    tensors, kinds, plain, written = {}, {}, {}, {}
    for name, value in values.items():
        found = _as_tensor(name, value)
        if found is not None:
            kinds[KIND + name], tensors[name] = found
        elif tables.is_table(value):
            written[name] = tables.table_of(name, value)
        elif _is_plain(value):
            plain[name] = value
        else:
            what = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
            raise ValueRefused(f"{name} is a {what}, and only {GOES} go and come back")
    folder.mkdir()
    for name, table in written.items():
        tables.write(folder, name, table)
    if tensors:  # a file of none cannot be read
        save_file(tensors, folder / TENSORS, kinds)
    (folder / PLAIN).write_text(json.dumps(plain), encoding="utf-8")


def read(folder: Path) -> dict[str, Any]:
    """Tensors are on the processor. Raises ValueRefused, OSError, ValueError for files that are none of ``write``'s."""
    from safetensors import SafetensorError, safe_open

    values: dict[str, Any] = json.loads((folder / PLAIN).read_text(encoding="utf-8"))
    values |= tables.read(folder)
    if not (folder / TENSORS).exists():
        return values
    try:
        with safe_open(folder / TENSORS, framework="pt") as file:
            kinds = file.metadata() or {}
            for name in file.keys():
                values[name] = _of_kind(kinds.get(KIND + name), file.get_tensor(name))
    except SafetensorError as error:
        raise ValueError(f"{TENSORS} cannot be read: {error}") from None
    return values


def _as_tensor(name: str, value: Any) -> tuple[str, Any] | None:
    """What it is, and a tensor of its own memory; None of what is no tensor or array. Raises ValueRefused."""
    import numpy
    import torch

    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_quantized or value.is_meta:
            raise ValueRefused(f"{name} is no dense tensor: give its parts")
        return "tensor", value.detach().cpu().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    if isinstance(value, numpy.ndarray | numpy.generic):
        try:
            kept = torch.from_numpy(numpy.array(value, order="C"))
        except TypeError:
            raise ValueRefused(f"{name} is an array of {value.dtype}, which no tensor can hold") from None
        return "array" if isinstance(value, numpy.ndarray) else "scalar", kept
    return None


def _of_kind(kind: str | None, tensor: Any) -> Any:
    match kind:
        case "tensor":
            return tensor
        case "array":
            return tensor.numpy()
        case "scalar":
            return tensor.numpy()[()]
    raise ValueError(f"{TENSORS} does not say what its tensors are")


def _is_plain(value: Any) -> bool:
    """Whether it comes back from JSON as it is."""
    if type(value) is list:
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(type(key) is str and _is_plain(item) for key, item in value.items())
    return value is None or type(value) in (bool, int, float, str)
