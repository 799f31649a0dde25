"""The house keeps its floors: folders and classes that a reader can hold, names that cannot be confused, a state machine of parts."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from itertools import combinations
from pathlib import Path

import pytest
from syntax_trees import tree_of

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("wire", "device", "jax", "tf", "worker", "service", "pool", "billing", "hub", "spawner", "dashboards", "admin", "lab")
MODULES_PER_FOLDER_MAX = 20
ENDINGS = ("_rows", "_row", "ments", "ment", "ings", "ing", "ers", "er", "ed", "es", "s")
"""What two names may not differ by alone, the longest first."""
MACHINE = ROOT / "pool" / "forebay_pool" / "machine"
MACHINE_PACKAGE = "forebay_pool.machine"


def modules_by_folder() -> dict[Path, list[str]]:
    """The names of the modules and folders in each folder of packages and benchmarks; what migrations are called is a number."""
    patterns = [f"{package}/*.py" for package in (*PACKAGES, "bench")]
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    found: dict[Path, set[str]] = defaultdict(set)
    for path in (ROOT / name for name in names if (ROOT / name).is_file()):
        if path.stem != "__init__" and path.parent.name != "versions":
            found[path.parent].add(path.stem)
    for folder in list(found):
        if folder.parent in found:
            found[folder.parent].add(folder.name)
    return {folder: sorted(names) for folder, names in found.items()}


def stem(name: str) -> str:
    """The name without its ending."""
    return next((name[: -len(ending)] for ending in ENDINGS if name.endswith(ending) and len(name) > len(ending) + 2), name).rstrip("e")


def test_no_folder_holds_more_modules_than_a_reader_can() -> None:
    sizes = {str(folder.relative_to(ROOT)): len(names) for folder, names in modules_by_folder().items()}
    full = {folder: size for folder, size in sizes.items() if size > MODULES_PER_FOLDER_MAX}
    assert not full, f"give these folders by the floors of their imports: {full}"


def test_no_two_modules_of_a_folder_differ_by_an_ending_alone() -> None:
    alike = [
        f"{folder.relative_to(ROOT)}: {one}, {other}"
        for folder, names in modules_by_folder().items()
        for one, other in combinations(names, 2)
        if stem(one) == stem(other)
    ]
    assert not alike, f"name one of these by another word: {alike}"


def test_names_that_were_confused_before_would_be_found() -> None:
    for one, other in (("parking", "parkings"), ("kept", "kept_rows"), ("placing", "placement"), ("audit", "audits")):
        assert stem(one) == stem(other)
    assert stem("parking") != stem("granting") and stem("queue") != stem("quotas")


def machine_modules() -> dict[str, ast.Module]:
    """The modules of the state machine, by their names below its package."""
    paths = [path for path in sorted(MACHINE.rglob("*.py")) if path.stem != "__init__"]
    return {".".join(path.relative_to(MACHINE).with_suffix("").parts): tree_of(path) for path in paths}


def machine_order() -> list[str]:
    """The order that is written down, from the top."""
    page = ast.get_docstring(tree_of(MACHINE / "__init__.py")) or ""
    return re.findall(r"^\d+\. ``([\w.]+)``: ", page, re.MULTILINE)


def imported(tree: ast.Module) -> set[str]:
    """The modules of the state machine that one of them imports, for type checkers too."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None and f"{node.module}.".startswith(f"{MACHINE_PACKAGE}."):
            below = node.module.removeprefix(MACHINE_PACKAGE).removeprefix(".")
            found |= {below} if (MACHINE / f"{below.replace('.', '/')}.py").exists() else {f"{below}.{alias.name}" for alias in node.names}
    return found


def upward_imports(order: list[str], trees: dict[str, ast.Module]) -> list[str]:
    """Where a module imports one that stands above it, or itself; modules from the top."""
    height = {module: len(order) - place for place, module in enumerate(order)}
    return [f"{name} imports {other}" for name, tree in trees.items() for other in imported(tree) if height[other] >= height[name]]


def test_the_order_of_the_state_machines_parts_is_written_down() -> None:
    order = machine_order()
    assert len(order) == len(set(order)) and set(order) == set(machine_modules())


def test_no_part_of_the_state_machine_knows_one_above_it() -> None:
    found = upward_imports(machine_order(), machine_modules())
    assert not found, f"give the event to a lower part, or note what is left to do in the worklist: {found}"


def test_an_import_upwards_would_be_found() -> None:
    trees = {
        "scaling": ast.parse("from forebay_pool.machine.base import refusals, story"),
        "base.story": ast.parse("if TYPE_CHECKING:\n from forebay_pool.machine.scaling import Scaling"),
        "base.refusals": ast.parse("from forebay_pool.machine.base.refusals import limit"),
    }
    upwards = ["base.story imports scaling", "base.refusals imports base.refusals"]
    assert upward_imports(["scaling", "base.story", "base.refusals"], trees) == upwards


def test_no_part_of_the_state_machine_inherits_another() -> None:
    classes = {node.name: node for tree in machine_modules().values() for node in tree.body if isinstance(node, ast.ClassDef)}
    assert "StateMachine" in classes and len(classes) > 30
    bases = [(name, ast.unparse(base)) for name, node in classes.items() for base in node.bases]
    heirs = [f"{name} inherits {base}" for name, base in bases if base in classes]
    assert not heirs, f"give the one to the other's constructor: {heirs}"


def listed_under(heading: str) -> list[str]:
    """The names that the list below a heading of the state machine's page begins its entries with."""
    page = ast.get_docstring(tree_of(MACHINE / "__init__.py")) or ""
    return re.findall(r"^- ``(\w+)``: ", page.split(f"**{heading}**")[1].split("**")[0], re.MULTILINE)


def called_in(method: str) -> list[str]:
    """What a method of the state machine calls, in the order of the text."""
    (machine,) = [node for node in tree_of(MACHINE / "state_machine.py").body if isinstance(node, ast.ClassDef)]
    (body,) = [node for node in machine.body if isinstance(node, ast.FunctionDef) and node.name == method]
    calls = sorted((node for node in ast.walk(body) if isinstance(node, ast.Call)), key=lambda node: (node.lineno, node.col_offset))
    return [ast.unparse(node.func.value if isinstance(node.func, ast.Subscript) else node.func).split(".")[-1] for node in calls]


def test_the_order_of_an_event_and_of_a_tick_is_written_down() -> None:
    aside = {"InvariantBroken", "add", "type", "int"}
    event = [name for name in called_in("handle") if name not in aside]
    assert list(dict.fromkeys(event)) == listed_under("One event")
    assert [name for name in called_in("_tick") if name not in aside] == listed_under("One tick")


METHODS_MAX = 40
MEMBERS_MAX = 25
LARGE = {
    "pool/forebay_pool/service.py Service": (0, 30),
    "pool/forebay_pool/settings.py Settings": (0, 72),
    "pool/forebay_pool/model/limits.py Limits": (0, 28),
    "pool/forebay_pool/model/types.py Worker": (0, 30),
    "pool/forebay_pool/model/types.py Session": (0, 28),
    "pool/forebay_pool/views/metrics.py Metrics": (0, 26),
    "pool/forebay_pool/placement/fleet.py Fleet": (48, 0),
    "billing/forebay_billing/settings.py Settings": (0, 41),
    "dashboards/forebay_dashboards/upstream/billing.py Billing": (57, 0),
}
"""Classes with more methods or members than others may have, and how many; 0 where they have no more. These numbers only ever fall."""


def size_of(node: ast.ClassDef) -> tuple[int, int]:
    """How many methods a class defines, and how many attributes: of the class, and those that its methods set on ``self``."""
    methods = [child for child in node.body if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)]
    targets = [child.target for child in node.body if isinstance(child, ast.AnnAssign)]
    targets += [target for child in node.body if isinstance(child, ast.Assign) for target in child.targets]
    names = {target.id for target in targets if isinstance(target, ast.Name) and target.id != "__slots__"}
    stored = [one for method in methods for one in ast.walk(method) if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store)]
    return len(methods), len(names | {one.attr for one in stored if ast.unparse(one.value) == "self"})


def test_no_class_is_larger_than_a_reader_can_hold() -> None:
    sizes = {}
    for path in [path for package in PACKAGES for path in (ROOT / package).glob("forebay*/**/*.py")]:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                methods, members = size_of(node)
                excess = (methods if methods > METHODS_MAX else 0, members if members > MEMBERS_MAX else 0)
                sizes[f"{path.relative_to(ROOT).as_posix()} {node.name}"] = excess
    large = {name: excess for name, excess in sizes.items() if any(excess)}
    assert large == LARGE, "give an object of its own what belongs together, and write down what shrank"


def test_methods_and_members_of_a_class_are_counted() -> None:
    (node,) = ast.parse(
        "class A:\n __slots__ = ('a',)\n b: int = 1\n c = d = 2\n"
        " def __init__(self, other): self.a, self.e = 1, 2; other.f = 3; self.a += 1\n async def g(self): return self.h"
    ).body
    assert isinstance(node, ast.ClassDef) and size_of(node) == (2, 5)


STRANGERS = {("billing/forebay_billing/payments/metering.py", "already exists")}
"""Sentences of others that have no code: Stripe's, of a meter event that it has."""
OUTSIDE_LITERALS = re.compile(r"\\.|\[[^\]]*\]|\(\?[:=!<P][^)]*?>?|[(){}|^$*+?.]")
"""Of a regular expression: what stands for something else than itself."""
WORDS = re.compile(r"[A-Za-z]{2,}(?: [A-Za-z]{2,})+")
READERS = {"startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "split", "index", "find", "replace"}
PATTERNS = {"compile", "match", "fullmatch", "search", "findall", "finditer", "sub", "split"}


def text_in(node: ast.expr) -> str:
    """The literal text of an expression, with a mark where something else stands."""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_in(part) if isinstance(part, ast.Constant) else "\0" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "\0"


def sentences_read(tree: ast.AST) -> list[tuple[int, str]]:
    """Where words of a sentence are looked for in a text, by a regular expression, a method of strings, or a comparison."""
    found = []
    for node in ast.walk(tree):
        sought: list[str] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            first = [one for arg in node.args[:1] for one in (arg.elts if isinstance(arg, ast.Tuple) else [arg])]
            if isinstance(node.func.value, ast.Name) and node.func.value.id == "re" and node.func.attr in PATTERNS:
                sought = [OUTSIDE_LITERALS.sub("\0", text_in(arg)) for arg in first]
            elif node.func.attr in READERS:
                sought = [text_in(arg) for arg in first]
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn | ast.Eq | ast.NotEq):
            sought = [text_in(node.left), *map(text_in, node.comparators)]
        found += [(node.lineno, text) for text in sought if WORDS.search(text)]
    return found


def test_nobody_reads_the_sentences_of_a_service() -> None:
    paths = [path for folder in PACKAGES for path in (ROOT / folder).rglob("*.py") if not {"build", "node_modules"} & set(path.parts)]
    assert len(paths) > 400
    trees = {str(path.relative_to(ROOT)): tree_of(path) for path in paths}
    read = [(path, line, text) for path, tree in trees.items() for line, text in sentences_read(tree)]
    found = [f"{path}:{line} {text!r}" for path, line, text in read if (path, text) not in STRANGERS]
    assert not found, f"let the service tell a code and values, and make the sentence of these: {found}"


def test_the_extension_of_jupyterlab_reads_no_sentences() -> None:
    paths = [*(ROOT / "lab" / "src").rglob("*.ts*")]
    assert len(paths) > 10
    readers = "match|matchAll|test|exec|replace|search|split|includes|startsWith|endsWith|indexOf|RegExp"
    sought = re.compile(rf"""(?:\.(?:{readers})\(|RegExp\(|[=(,]\s*(?=/))\s*([/'"`].*?[/'"`])""")
    found = [f"{path.name} {text}" for path in paths for text in sought.findall(path.read_text(encoding="utf-8")) if WORDS.search(text)]
    assert sought.findall("text.includes('has no room')") == ["'has no room'"] and sought.findall("x = /it is at/;") == ["/it is at/"]
    assert not found, f"let the kernel tell a code and values, and make the sentence of these: {found}"


@pytest.mark.parametrize(
    "code",
    [
        "re.compile(r'Input should be (?:greater|less) than .*')",
        "re.fullmatch(f'(.+) is not a month; {rest}', text)",
        "message.startswith('The driver lost')",
        "'lost the device' in message",
        "message == 'A budget is used up.'",
        "message.removesuffix(('.', ' was given'))",
    ],
)
def test_a_sentence_that_is_read_would_be_found(code: str) -> None:
    assert sentences_read(ast.parse(code))


def test_forms_and_names_are_not_taken_for_sentences() -> None:
    for code in ("re.compile(r'([0-9]{4})-(0[1-9]|1[0-2])')", "re.compile('[a-z ]+ [A-Z ]+')", "code == 'no_session'", "text.split(', ')"):
        assert not sentences_read(ast.parse(code)), code


STARTS = {
    "billing": 2,
    "dashboards": 5,
    "device": 21,
    "frameworks": 2,
    "pool": 18,
    "virtual_device": 0,
    "worker": 26,
}
"""How often the tests of a room say `sys.executable`: each process of such an interpreter imports what takes up to 7 s of a processor."""


def test_processes_that_tests_start_are_forks_but_for_those_that_are_counted() -> None:
    found = {}
    for room in STARTS:
        nodes = [node for path in (ROOT / "tests" / room).rglob("*.py") for node in ast.walk(tree_of(path))]
        found[room] = sum(isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.executable" for node in nodes)
    assert found == STARTS, "let tests/fork_server start it, or count it where it proves how one starts (docs/developers/testing.md)"


FULL_SWEEP = "pytest.mark." + "full_sweep"


def test_what_only_a_full_sweep_runs_is_a_part_of_the_long_tests() -> None:
    """The commands of ``make test-long``, as make would type them, name each file with such a test, or its room."""
    typed = subprocess.run(["make", "--dry-run", "test-long"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    swept = {Path(word) for line in typed.splitlines() if "--full-sweep" in line for word in line.split() if word.startswith("tests/")}
    marked = [path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py") if FULL_SWEEP in path.read_text(encoding="utf-8")]
    assert marked and [str(path) for path in marked if swept.isdisjoint((path, *path.parents))] == []


GLOSSARY_ROWS_MAX = 60


def test_the_glossary_is_short_and_has_words_of_the_code() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    defined = re.findall(r"^\| \*\*([^*]+)\*\* \|", page, re.MULTILINE)
    assert 30 < len(defined) <= GLOSSARY_ROWS_MAX and len(defined) == len(set(defined))
    paths = [path for package in PACKAGES for path in (ROOT / package).glob("forebay*/**/*.py")]
    names = {node.id for path in paths for node in ast.walk(tree_of(path)) if isinstance(node, ast.Name)}
    said = " | ".join(re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", " ", name).strip().lower() for name in names)
    unused = [word for word in defined if not re.search(rf"(?:^|\s){re.escape(word)}s?(?:\s|$)", said)]
    assert not unused, f"nothing in the code is called so: {unused}"
