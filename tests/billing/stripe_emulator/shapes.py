"""Parameters and answers held against the types of the installed ``stripe`` library."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Any, NotRequired, Required

import stripe
from stripe._object_classes import get_object_class
from stripe._stripe_object import StripeObject
from typing_extensions import get_type_hints, is_typeddict

OPTIONS = {
    "api_key",
    "stripe_version",
    "stripe_account",
    "stripe_context",
    "max_network_retries",
    "idempotency_key",
    "content_type",
    "headers",
}


class BadParameter(Exception):
    """A parameter that Stripe does not know, or of another type."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{reason}: {path}")
        self.path = path


@cache
def _fields(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Each parameter with its type, and whether it must be there."""
    found = {}
    for name, hint in get_type_hints(kind, localns={"StripeContext": str, "Mapping": Mapping}, include_extras=True).items():
        if name in OPTIONS:
            continue
        origin = typing.get_origin(hint)
        if origin in (NotRequired, typing.NotRequired):
            found[name] = (typing.get_args(hint)[0], False)
        elif origin in (Required, typing.Required):
            found[name] = (typing.get_args(hint)[0], True)
        else:
            found[name] = (hint, True)
    return found


def taken(value: Any, hint: Any, path: str = "") -> Any:
    """Form text as the value that ``hint`` names. Raises BadParameter."""
    if is_typeddict(hint):
        return _mapping(value, hint, path)
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return _one_of(value, typing.get_args(hint), path)
    if origin is typing.Literal or str(origin).endswith("Literal"):
        if value in typing.get_args(hint):
            return value
        raise BadParameter(path, f"Invalid value {value!r}")
    if origin is list:
        if isinstance(value, dict) and all(key.isdigit() for key in value):
            value = [value[key] for key in sorted(value, key=int)]
        if not isinstance(value, list):
            raise BadParameter(path, "Not an array")
        return [taken(item, typing.get_args(hint)[0], f"{path}[{number}]") for number, item in enumerate(value)]
    if origin is dict:
        if isinstance(value, dict) and all(isinstance(item, str) for item in value.values()):
            return value
        raise BadParameter(path, "Not a hash of strings")
    return _scalar(value, hint, path)


def _mapping(value: Any, hint: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadParameter(path, "Not a hash")
    fields = _fields(hint)
    for name in value:
        if name not in fields:
            raise BadParameter(f"{path}[{name}]" if path else name, "Received unknown parameter")
    for name, (_, needed) in fields.items():
        if needed and name not in value:
            raise BadParameter(f"{path}[{name}]" if path else name, "Missing required param")
    return {name: taken(item, fields[name][0], f"{path}[{name}]" if path else name) for name, item in value.items()}


def _one_of(value: Any, hints: tuple[Any, ...], path: str) -> Any:
    failure = BadParameter(path, f"Invalid value {value!r}")
    for hint in hints:
        if inspect.isclass(hint) and issubclass(hint, StripeObject):
            continue
        try:
            return taken(value, hint, path)
        except BadParameter as error:
            failure = error
    raise failure


def _scalar(value: Any, hint: Any, path: str) -> Any:
    if not isinstance(value, str):
        raise BadParameter(path, f"Not a {hint}")
    if hint is str:
        return value
    if hint is int and re.fullmatch(r"-?\d+", value):
        return int(value)
    if hint is bool and value in ("true", "false"):
        return value == "true"
    if hint is Decimal:
        try:
            return Decimal(value)
        except InvalidOperation:
            pass
    raise BadParameter(path, f"Invalid {getattr(hint, '__name__', hint)}: {value!r}")


@cache
def _annotations(kind: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        found |= {name: str(hint) for name, hint in vars(base).get("__annotations__", {}).items()}
    return found


def faults_of_answer(value: Any, path: str = "") -> list[str]:
    """The fields of an answer that the library's classes do not know, and those they promise that are not there."""
    if isinstance(value, list):
        return [fault for number, item in enumerate(value) for fault in faults_of_answer(item, f"{path}[{number}]")]
    if not isinstance(value, dict) or "object" not in value or value["object"] in ("v2.core.event", "event"):
        return []
    kind = get_object_class("V1", value["object"])
    if kind is StripeObject:
        return [f"{path}: no class for {value['object']!r}"]
    known = _annotations(kind)
    inner = getattr(kind, "_inner_class_types", {})
    faults = [f"{path}.{name} of {kind.__name__}" for name in value if name not in known and name != "object"]
    for name, item in value.items():
        if name in inner and isinstance(item, dict):
            faults += _faults_of_part(item, inner[name], f"{path}.{name}")
        else:
            faults += faults_of_answer(item, f"{path}.{name}")
    if not value.get("deleted"):
        promised = [
            name
            for name, hint in known.items()
            if not re.search(r"Optional|None|ClassVar|Literal\[True\]", hint) and not name.startswith("_")
        ]
        faults += [f"{path}.{name} of {kind.__name__} is missing" for name in promised if name not in value]
    return faults


def _faults_of_part(value: Mapping[str, Any], kind: Any, path: str) -> list[str]:
    known = _annotations(kind)
    return [f"{path}.{name} of {kind.__name__}" for name in value if name not in known and name != "object"]


def params_of(name: str) -> Any:
    """The parameters' type of that name, such as ``billing.MeterCreateParams``."""
    kind: Any = stripe.params
    for part in name.split("."):
        kind = getattr(kind, part)
    return kind
