"""The source keeps the house's rules; each rule says how to mend a breach."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from syntax_trees import tree_of

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("wire", "device", "jax", "tf", "worker", "service", "pool", "billing", "hub", "spawner", "dashboards", "admin", "lab")
LINES_PER_FILE_MAX = 700
LINES_PER_FUNCTION_MAX = 70
FORBIDDEN_NAMES = re.compile(r"(^|_)(utils?|helpers?|common|manager|misc)(\.|$)")


def tracked(*patterns: str) -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [path for name in listing.stdout.splitlines() if (path := ROOT / name).is_file()]


def product_sources() -> list[Path]:
    return [path for package in PACKAGES for path in tracked(f"{package}/*.py")]


@cache
def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_every_file_is_named_after_a_noun_it_owns() -> None:
    bad = [str(path.relative_to(ROOT)) for path in tracked("*.py", "*.cpp", "*.h", "*.ts", "*.tsx") if FORBIDDEN_NAMES.search(path.name)]
    assert not bad, f"name these after what they hold: {bad}"


def test_no_file_is_longer_than_a_reader_can_hold() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in tracked("*.py", "*.cpp", "*.h", "*.ts", "*.tsx", "*.css")
        if (lines := path.read_text().count("\n")) > LINES_PER_FILE_MAX
    }
    assert not long, f"split these into one file a noun: {long}"


FACTORIES = frozenset(
    """
    arange as_tensor asarray empty empty_permuted empty_strided eye frombuffer from_file full linspace logspace normal ones rand randint
    randn randperm range scalar_tensor sparse_bsc_tensor sparse_bsr_tensor sparse_compressed_tensor sparse_coo_tensor sparse_csc_tensor
    sparse_csr_tensor tensor tril_indices triu_indices zeros
    """.split()
)


def test_what_runs_in_a_program_s_process_names_the_device_of_each_tensor_that_it_makes() -> None:
    """A program may have set another default device, or stand within ``torch.device("cuda")``."""
    unnamed, named = [], 0
    for path in tracked("device/forebay/*.py"):
        for node in ast.walk(tree_of(path)):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in FACTORIES):
                continue
            if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"):
                continue
            has_device = any(keyword.arg in ("device", None) for keyword in node.keywords)
            named += has_device
            if not has_device:
                unnamed.append(f"{path.relative_to(ROOT)}:{node.lineno} torch.{node.func.attr}")
    assert not unnamed, f'give these device="cpu", or what they are for: {unnamed}'
    assert named >= 5, "the rule looks where tensors are made"


def test_every_function_fits_on_a_screen() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in tracked("*.py")
        for node in functions(path)
        if (node.end_lineno or node.lineno) - node.lineno + 1 > LINES_PER_FUNCTION_MAX
    ]
    assert not long, f"let the parent decide and leaves compute: {long}"


def test_guards_are_never_asserts() -> None:
    asserts = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in product_sources()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Assert)
    ]
    assert not asserts, f"`python -O` drops these: write if … raise: {asserts}"


def test_nothing_is_pickled() -> None:
    used = [
        str(path.relative_to(ROOT))
        for path in product_sources()
        if re.search(r"^\s*(import|from) (c?pickle|dill|cloudpickle|marshal)\b", path.read_text(), re.MULTILINE)
    ]
    assert not used, f"no pickle anywhere: {used}"


def test_nothing_unfinished_is_left_in_the_source() -> None:
    mark = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    this = Path(__file__)
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked("*.py", "*.cpp", "*.h", "*.md", "*.html", "*.js", "*.ts", "*.tsx", "*.css", "*.toml", "Makefile")
        if path != this and "vendor" not in path.parts
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if mark.search(line)
    ]
    assert not found, f"do it or put it into the issue: {found}"


LOGS = re.compile(r"(^|\.)_?log(ger)?$", re.IGNORECASE)
LEVELS = {"debug", "info", "warning", "error", "critical", "exception"}


def without_action(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[int]:
    """Lines of log calls with fields in the text, or without an action in ``extra``: a dict, or a name that one was given before."""
    nodes = list(ast.walk(function))
    given = [node for node in nodes if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)]
    dicts = {ast.unparse(node.targets[0]): node.value for node in given}
    for call in nodes:
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in LEVELS):
            continue
        extra = next((ast.unparse(word.value) for word in call.keywords if word.arg == "extra"), "{}")
        fields = ast.unparse(dicts[extra]) if extra in dicts else extra
        if LOGS.search(ast.unparse(call.func.value)) and ("'action': " not in fields or "action=" in ast.unparse(call.args[0])):
            yield call.lineno


def test_every_record_of_the_log_has_an_action_among_its_fields() -> None:
    silent = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in product_sources()
        for function in functions(path)
        for line in without_action(function)
    ]
    assert not silent, f'write log.info("a sentence", extra={{"action": …, "tenant": …}}): {silent}'


@pytest.mark.parametrize(
    "call",
    [
        "log.info('action=login user=%s', user)",
        "self.log.warning('no action', extra={'user': user})",
        "logger.error('none')",
        "LOG.info('action=x', extra=fields)",
    ],
)
def test_a_record_without_an_action_would_be_found(call: str) -> None:
    (function,) = ast.parse(f"def act():\n fields = {{'action': 'act'}}\n log.info('acted', extra=fields)\n {call}").body
    assert isinstance(function, ast.FunctionDef) and list(without_action(function)) == [4]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_of_a_package_says_what_it_is(package: str) -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in tracked(f"{package}/*.py")
        if path.read_text().strip() and not ast.get_docstring(tree_of(path))
    ]
    assert not silent, f"give these a docstring: {silent}"


def test_tests_check_something() -> None:
    empty = []
    for path in tracked("tests/*.py"):
        lines = path.read_text().splitlines()
        for node in functions(path):
            segment = "\n".join(lines[node.lineno - 1 : node.end_lineno])
            if node.name.startswith("test_") and not re.search(
                r"\bassert|raises|expect|check|verify|validate|run_state_machine|warns", segment
            ):
                empty.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert not empty, f"these cannot fail: {empty}"


def test_no_commit_names_this_machine() -> None:
    places = re.compile(r"/work/(main|shared)|/root/|/opt/(pypi|wheels)")
    found = [
        str(path.relative_to(ROOT))
        for path in tracked("*.py", "*.cpp", "*.h", "*.md", "*.toml", "*.txt", "*.in", "*.ipynb", "*.sh", "Makefile", "*.json")
        if path != Path(__file__) and places.search(path.read_text())
    ]
    assert not found, f"paths of one machine: {found}"
