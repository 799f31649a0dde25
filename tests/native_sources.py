"""What the C++ of the packages declares and includes, read without a compiler: enough for rules about its structure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLANKED = re.compile(
    r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*"  # directives
    r"|//[^\n]*|/\*.*?\*/"
    r'|R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"'
    r"|'(?:\\.|[^'\\\n])'",
    re.DOTALL | re.MULTILINE,
)
CLASS = re.compile(r"\b(?:class|struct)\s+(?:\[\[\w+\]\]\s*)?(\w+)(?:\s+final)?\s*(?::[^;{}()]*)?\{")
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
SIGNATURE = re.compile(r"[\w>&*\])]\s*(?:const|noexcept|override|final|mutable|->[^{};]*|:[^{};]*)*\s*$")
NO_FUNCTION = re.compile(r"^\s*(?:namespace|class|struct|enum|union|extern)\b|=\s*$")
ACCESS = re.compile(r"\b(?:public|private|protected)\s*:(?!:)")
NO_MEMBER = re.compile(
    r"^(?:using|friend|enum|class|struct|static_assert|typedef|static constexpr|constexpr static|template\s*<[^;]*>\s*(?:using|friend))\b"
)


@dataclass(frozen=True)
class NativeClass:
    """A class with the numbers of its methods (overloads apart) and its data members."""

    name: str
    file: Path
    methods: int
    members: int


def blanked(text: str) -> str:
    """The text with comments, literals and directives replaced by spaces; lines stay where they are."""
    return BLANKED.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)


def closing(text: str, opening: int) -> int:
    """Where the brace that opens at ``opening`` closes."""
    depth = 0
    for place in range(opening, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return place
    return len(text)


def statements(body: str) -> Iterator[str]:
    """The declarations of a class's body, each without what stands in its braces."""
    begin, place = 0, 0
    while place < len(body):
        if body[place] == "{":
            end = closing(body, place)
            rest = re.match(r"\s*[;,]?", body[end + 1 :])
            yield body[begin:place] + "{}"
            begin = place = end + 1 + (rest.end() if rest else 0)
        elif body[place] == ";":
            yield body[begin:place]
            begin = place = place + 1
        else:
            place += 1


def without_templates(statement: str) -> str:
    """The statement without what stands between angle brackets."""
    before = ""
    while before != statement:
        before, statement = statement, re.sub(r"<[^<>]*>", "", statement)
    return statement


def counted(body: str) -> tuple[int, int]:
    """How many methods and data members a class's body declares."""
    methods = members = 0
    for statement in statements(ACCESS.sub(";", body)):
        text = re.sub(r"\[\[[^\]]*\]\]", "", statement).strip().replace("\n", " ")
        if not text or text == "{}" or NO_MEMBER.match(text) or text.startswith("#"):
            continue
        plain = without_templates(text.replace("->", "").replace("operator<", "operator"))
        head = re.split(r"=|\{\}", plain, maxsplit=1)[0]
        if "(" in head or "operator" in head:
            methods += 1
        else:
            members += 1 + head.count(",")
    return methods, members


@cache
def classes(path: Path) -> list[NativeClass]:
    """The classes that a file defines."""
    text = blanked(path.read_text())
    found = []
    for match in CLASS.finditer(text):
        body = text[match.end() : closing(text, match.end() - 1)]
        found.append(NativeClass(match.group(1), path, *counted(body)))
    return found


@cache
def functions(path: Path) -> list[tuple[str, int]]:
    """The functions that a file defines: how each begins, and over how many lines it goes."""
    text = blanked(path.read_text())
    found = []
    begin, place = 0, 0
    while place < len(text):
        if text[place] == ";" or text[place] == "}":
            begin = place + 1
        elif text[place] == "{":
            head = text[begin:place]
            if "(" in head and not NO_FUNCTION.search(head) and SIGNATURE.search(head):
                end = closing(text, place)
                found.append((" ".join(head.split())[-80:], text.count("\n", place, end) + 1))
                place = end
            begin = place + 1
        place += 1
    return found


def includes(path: Path) -> list[str]:
    """What a file includes of its own package or of ours, as it is written."""
    return INCLUDE.findall(path.read_text())
