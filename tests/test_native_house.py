"""The rules of the house for C++ and TypeScript: floors that look downwards, small folders, functions and classes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import pytest
from native_sources import ROOT, classes, counted, functions, includes
from script_sources import Script, imported, scripts

FLOORS = {
    "device": ("base", "bulk", "link", "replay", "stream", "runtime", "recorder", "aten", "distributed", "frameworks"),
    "worker": (
        *("base", "device", "call", "recomputation", "tier2", "strategies", "gang", "sharding", "parallel", "pipeline"),
        *("collectives", "session", "server"),
    ),
}
"""The folders of a package's ``csrc``, from the lowest: a file includes its own floor's and lower ones' headers alone."""
OWN_EXTENSIONS = ("kineto", "monitoring")
"""Folders of ``csrc`` that are extensions of their own: they share headers with the others, at most."""
SCRIPT_FLOORS = ("protocol", "text", "link", "panel", "gallery", "commands", "index")
"""The folders of ``lab/src`` and the files beside them, from the lowest."""
MODULES_PER_FOLDER_MAX = 20
FUNCTION_LINES_MAX = 70
METHODS_MAX = 40
MEMBERS_MAX = 25
PACKAGES = ("wire", "device", "jax", "tf", "worker", "lab")
SOURCES = [path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.suffix in (".h", ".cpp")]
SCRIPTS_FOLDER = ROOT / "lab" / "src"
SCRIPTS = [path for path in SCRIPTS_FOLDER.rglob("*") if path.suffix in (".ts", ".tsx")]
CROWDED: dict[str, int] = {}
"""Folders that hold more modules than others may. These numbers only ever fall."""
LARGE: dict[str, tuple[int, int]] = {}
"""Classes that are larger than others may be, with their methods and members. These numbers only ever fall."""
CONSTANT = re.compile(r"^(?:constexpr|const)\b[^=({]*?\b(k[A-Z]\w*)(?: = |\{)", re.MULTILINE)
"""At the level of a file."""
LONG = {"window_rules": 78}
"""Functions that are longer than others may be. These numbers only ever fall."""


def floor_of(path: Path, package: str) -> str:
    return path.relative_to(ROOT / package / "csrc").parts[0]


def own_includes(path: Path, package: str) -> list[Path]:
    """The headers of its package that a file includes."""
    folder = ROOT / package / "csrc"
    found = [folder / name for name in includes(path)]
    return [header for header in found if header.is_file() and floor_of(header, package) not in OWN_EXTENSIONS]


def sources_of(package: str) -> list[Path]:
    folder = ROOT / package / "csrc"
    return [path for floor in FLOORS[package] for path in sorted((folder / floor).iterdir()) if path.suffix in (".h", ".cpp")]


@pytest.mark.parametrize("package", FLOORS)
def test_no_two_files_of_a_package_give_constants_one_name(package: str) -> None:
    """They are compiled in groups, and a group is one unit to the compiler (``forebay_wire/native_build.py``)."""
    found = defaultdict(list)
    for path in sources_of(package):
        for name in CONSTANT.findall(path.read_text(encoding="utf-8")):
            found[name].append(path.name)
    assert len(found) > 50
    assert {name: files for name, files in found.items() if len(files) > 1} == {}


def circular(uses: Mapping[Path, Iterable[Path]]) -> list[str]:
    """The modules in a circle, and those that use one."""
    left = {module: set(used) for module, used in uses.items()}
    while leaves := {module for module, used in left.items() if not used & left.keys()}:
        for leaf in leaves:
            del left[leaf]
    return sorted(str(module) for module in left)


@pytest.mark.parametrize("package", FLOORS)
def test_every_folder_of_a_package_is_a_floor_or_an_extension_of_its_own(package: str) -> None:
    folders = {path.name for path in (ROOT / package / "csrc").iterdir() if path.is_dir()}
    assert folders - set(OWN_EXTENSIONS) == set(FLOORS[package])


@pytest.mark.parametrize("package", FLOORS)
def test_includes_look_downwards(package: str) -> None:
    order = FLOORS[package]
    upwards = [
        f"{path.relative_to(ROOT)} includes {header.relative_to(ROOT)}"
        for path in sources_of(package)
        for header in own_includes(path, package)
        if order.index(floor_of(header, package)) > order.index(floor_of(path, package))
    ]
    assert not upwards, upwards


@pytest.mark.parametrize("package", FLOORS)
def test_no_circle_of_includes_with_a_source_and_its_header_as_one(package: str) -> None:
    uses: dict[Path, set[Path]] = defaultdict(set)
    for path in sources_of(package):
        uses[path.with_suffix("")] |= {header.with_suffix("") for header in own_includes(path, package)} - {path.with_suffix("")}
    assert not circular(uses), f"these include each other in a circle, or one that does: {circular(uses)}"


@cache
def extension() -> list[Script]:
    """Every script of the extension that is no mere declaration."""
    return scripts([path for path in SCRIPTS if not path.name.endswith(".d.ts")])


def script_floor(path: Path) -> str:
    return path.relative_to(SCRIPTS_FOLDER).with_suffix("").parts[0]


def test_every_script_of_the_extension_stands_on_a_floor() -> None:
    assert {script_floor(Path(script["file"])) for script in extension()} == set(SCRIPT_FLOORS)


def test_imports_of_scripts_look_downwards() -> None:
    assert sum(len(imported(script)) for script in extension()) > 60
    upwards = [
        f"{script['file']} imports {path.relative_to(ROOT)}"
        for script in extension()
        for path in imported(script)
        if SCRIPT_FLOORS.index(script_floor(path)) > SCRIPT_FLOORS.index(script_floor(Path(script["file"])))
    ]
    assert not upwards, upwards


def test_no_circle_of_imports_among_scripts() -> None:
    uses = {Path(script["file"]): set(imported(script)) for script in extension()}
    assert not circular(uses), f"these import each other in a circle, or one that does: {circular(uses)}"


def test_every_function_and_class_of_a_script_fits_on_a_screen() -> None:
    long = [
        f"{script['file']}: {one['name']} has {one['lines']} lines"
        for script in extension()
        for one in script["functions"]
        if one["lines"] > FUNCTION_LINES_MAX
    ]
    large = [
        f"{script['file']}: {one['name']} has {one['methods']} methods and {one['members']} members"
        for script in extension()
        for one in script["classes"]
        if one["methods"] > METHODS_MAX or one["members"] > MEMBERS_MAX
    ]
    assert not long + large, long + large


def test_no_folder_holds_more_modules_than_a_reader_can() -> None:
    modules: dict[str, set[str]] = defaultdict(set)
    for path in (*SOURCES, *SCRIPTS):
        if "build" not in path.parts and "node_modules" not in path.parts and not path.name.endswith(".d.ts"):
            modules[str(path.parent.relative_to(ROOT))].add(path.stem)
    full = {folder: len(names) for folder, names in modules.items() if len(names) > CROWDED.get(folder, MODULES_PER_FOLDER_MAX)}
    assert not full, f"give these folders by the floors of their includes: {full}"


def test_no_class_is_larger_than_a_reader_can_hold() -> None:
    large = [
        f"{found.name} in {found.file.relative_to(ROOT)}: {found.methods} methods, {found.members} members"
        for path in SOURCES
        for found in classes(path)
        if found.methods > LARGE.get(found.name, (METHODS_MAX, 0))[0] or found.members > LARGE.get(found.name, (0, MEMBERS_MAX))[1]
    ]
    assert not large, large


def test_every_function_fits_on_a_screen() -> None:
    long = [
        f"{path.relative_to(ROOT)}: {head} has {lines} lines"
        for path in SOURCES
        for head, lines in functions(path)
        if lines > next((most for name, most in LONG.items() if f"{name}(" in head), FUNCTION_LINES_MAX)
    ]
    assert not long, long


@pytest.mark.parametrize(
    ("body", "methods", "members"),
    [
        ("int a() const { return b_; } int b_ = 0;", 1, 1),
        ("std::function<void(int)> f_; std::map<int, std::pair<int, int>> m_{};", 0, 2),
        ("using X = int; friend struct Y; static constexpr int kZ = 3; enum class E { kA };", 0, 0),
        ("public: explicit A(int b) : b_(b) {} ~A(); A& operator=(const A&) = delete; private: int b_, c_;", 3, 2),
        ("std::atomic<bool> open_{false}; [[noreturn]] void fail(const std::string& why);", 1, 1),
    ],
)
def test_methods_and_members_are_told_apart(body: str, methods: int, members: int) -> None:
    assert counted(body) == (methods, members)


def test_a_long_function_and_a_large_class_would_be_found(tmp_path: Path) -> None:
    source = tmp_path / "long.cpp"
    source.write_text("namespace a {\nint f(int x) {\n" + "  x += 1;\n" * 80 + "  return x;\n}\nclass B { " + "int m(); " * 50 + "};\n}\n")
    assert [lines for _, lines in functions(source)] == [83]
    assert [(found.name, found.methods) for found in classes(source)] == [("B", 50)]


def test_a_long_function_a_large_class_and_a_circle_of_scripts_would_be_found(tmp_path: Path) -> None:
    first, second = tmp_path / "first.ts", tmp_path / "second.tsx"
    lines = "  x += 1; // }\n" * 80
    first.write_text("import { B } from './second';\nexport const f = (x: number): string => {\n" + lines + "  return `${x}}`;\n};\n")
    methods = "".join(f"  m{n}(): void {{}}\n" for n in range(50))
    second.write_text("import { f } from './first';\nexport class B {\n" + methods + "  a = 1;\n}\n")
    found = scripts([first, second])
    assert found[0]["functions"] == [{"name": "f", "lines": 83}]
    assert found[1]["classes"] == [{"name": "B", "methods": 50, "members": 1}]
    assert circular({Path(script["file"]): imported(script) for script in found}) == [str(first), str(second)]
