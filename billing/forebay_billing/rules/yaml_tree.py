"""A small YAML document as a tree that knows its lines: mappings, lists and plain texts, nothing else. Pure.

Nothing is guessed from how a value looks, since YAML reads ``NO`` as false and ``1e3`` as a number. Anchors, tags and names that are
given twice are refused: in a list of prices each is a slip of the pen, or worse.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import yaml
from forebay_service.errors import Fault

from forebay_billing.errors import InvalidPriceList

DEPTH_MAX = 8


@dataclass(frozen=True)
class Scalar:
    """A text in line ``line``, which counts from 1."""

    line: int
    text: str


@dataclass(frozen=True)
class Mapping:
    """Values by name, in their order."""

    line: int
    values: dict[str, Node] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    """The line of each name."""


@dataclass(frozen=True)
class Sequence:
    """Values in their order."""

    line: int
    values: list[Node] = field(default_factory=list)


Node: TypeAlias = Scalar | Mapping | Sequence


def wrong(line: int, sentence: str) -> InvalidPriceList:
    """The refusal of a line."""
    fault = Fault("list_line", values={"line": line, "problem": sentence})
    return InvalidPriceList(f"Line {line} of the price list: {sentence}", fault)


def tree_of(text: str) -> Node:
    """The only document of ``text``. Raises InvalidPriceList."""
    try:
        return _tree(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "a character that YAML does not have"
        raise wrong(1 if mark is None else mark.line + 1, f"this is not YAML ({problem}).") from None


def _tree(text: str) -> Node:
    root: list[Node] = []
    open_nodes: list[Mapping | Sequence] = []
    names: list[Scalar | None] = []
    """For each open node the name that waits for its value."""
    for event in yaml.parse(text, Loader=yaml.BaseLoader):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) or getattr(event, "tag", None):
            raise wrong(line, "anchors, aliases and tags are not for price lists; write the value out.")
        if isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            open_nodes.pop()
            names.pop()
            continue
        node = _node(event, line)
        if node is None:
            continue
        if open_nodes:
            names[-1] = _put(open_nodes[-1], names[-1], node)
        elif root:
            raise wrong(line, "a second document begins; a price list is one.")
        else:
            root.append(node)
        if not isinstance(node, Scalar):
            if len(open_nodes) == DEPTH_MAX:
                raise wrong(line, f"this is nested more than {DEPTH_MAX} deep.")
            open_nodes.append(node)
            names.append(None)
    if not root:
        raise wrong(1, "there is nothing in it.")
    return root[0]


def _node(event: Any, line: int) -> Node | None:
    """What begins with ``event``, if anything."""
    if isinstance(event, yaml.ScalarEvent):
        return Scalar(line, event.value)
    if isinstance(event, yaml.MappingStartEvent):
        return Mapping(line)
    return Sequence(line) if isinstance(event, yaml.SequenceStartEvent) else None


def _put(parent: Mapping | Sequence, name: Scalar | None, node: Node) -> Scalar | None:
    """Adds ``node``; returns the name that then waits for its value."""
    if isinstance(parent, Sequence):
        parent.values.append(node)
        return None
    if name is not None:
        parent.values[name.text] = node
        return None
    if not isinstance(node, Scalar):
        raise wrong(node.line, "a name is a plain text.")
    if node.text in parent.values:
        raise wrong(node.line, f"{node.text!r:.80} is given twice.")
    parent.lines[node.text] = node.line
    return node
