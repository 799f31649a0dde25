"""Every line of the operators' pages for ``kubectl`` and ``helm``, from the pages' own text: no cluster is here, so each is read as the
program would read it, and what it names must be in what the chart renders, under the page's own release, namespace and values.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart import CHART, CHECKOUT, Chart, run

PAGES = tuple(sorted((CHECKOUT / "docs").rglob("*.md")))
PAGE = CHECKOUT / "docs" / "operators" / "kubernetes.md"
RESTRICTED = "pod-security.kubernetes.io/enforce"


class _Strict(argparse.ArgumentParser):
    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, exit_on_error=False, add_help=False, **options)

    def error(self, message: str) -> Any:
        raise ValueError(message)


@dataclass(frozen=True)
class Line:
    """A command of a page."""

    page: str
    text: str
    words: tuple[str, ...]


def kubectl() -> argparse.ArgumentParser:
    """What the pages use of it, as its reference has it."""
    parser = _Strict()
    parser.add_argument("--namespace")
    verbs = parser.add_subparsers(dest="verb", required=True, parser_class=_Strict)
    create = verbs.add_parser("create").add_subparsers(dest="kind", required=True, parser_class=_Strict)
    create.add_parser("namespace").add_argument("name")
    secret = create.add_parser("secret").add_subparsers(dest="type", required=True, parser_class=_Strict).add_parser("generic")
    secret.add_argument("name")
    secret.add_argument("--from-literal", action="append", required=True)
    job = create.add_parser("job")
    job.add_argument("name")
    job.add_argument("--from", dest="source", required=True)
    job.add_argument("--dry-run", choices=["none", "client", "server"])
    job.add_argument("--output", choices=["json", "yaml", "name"])
    label = verbs.add_parser("label")
    label.add_argument("kind", choices=["namespace"])
    label.add_argument("name")
    label.add_argument("labels", nargs="+")
    scale = verbs.add_parser("scale")
    scale.add_argument("objects", nargs="+")
    scale.add_argument("--replicas", type=int, required=True)
    verbs.add_parser("apply").add_argument("--filename", choices=["-"], required=True)
    wait = verbs.add_parser("wait")
    wait.add_argument("objects", nargs="+")
    wait.add_argument("--for", dest="awaited", choices=["condition=complete"], required=True)
    wait.add_argument("--timeout", required=True)
    for verb in ("logs", "delete", "get"):
        verbs.add_parser(verb).add_argument("objects", nargs="+")
    return parser


def lines(program: str) -> Iterator[Line]:
    """All that begin with the program, or come after a pipe; in blocks of commands and within sentences."""
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        blocks = [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.replace("\\\n", " ").splitlines()]
        sentences = [found for found in re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))]
        for line in (*blocks, *sentences):
            for command in re.split(r"\s\|\s(?=\w)", line):
                words = shlex.split(command, comments=True) if re.match(rf"\s*{program} ", command) else []
                if words and (line in blocks or (len(words) > 2 and (program == "kubectl" or "--" in command))):
                    yield Line(path.name, line, tuple(words))


def parsed(page: str | None = None) -> list[tuple[Line, argparse.Namespace]]:
    return [(line, kubectl().parse_args(line.words[1:])) for line in lines("kubectl") if page in (None, line.page)]


@cache
def page_chart(helm: str, folder: Path) -> Chart:
    """What the page's own line for Helm renders, of the chart as ``make release`` packages it."""
    (line,) = [line for line in lines("helm") if line.page == PAGE.name]
    verb, *arguments = line.words[1:]
    assert verb == "upgrade" and arguments.count("--install") == 1
    arguments.remove("--install")
    assert run(helm, "package", str(CHART), "--destination", str(folder)).returncode == 0
    shutil.copy(CHART / "examples" / "gpus.yaml", folder / "values.yaml")
    here = [str(folder / word) if word.endswith((".tgz", ".yaml")) else word for word in arguments]
    assert [word for word in here if word.endswith(".tgz") and not Path(word).exists()] == [], "the chart has another name or version"
    done = run(helm, "template", *here)
    assert done.returncode == 0, done.stderr
    return Chart([found for found in yaml.safe_load_all(done.stdout) if found is not None])


@pytest.fixture(scope="session")
def chart_of_the_page(helm: str, tmp_path_factory: pytest.TempPathFactory) -> Chart:
    return page_chart(helm, tmp_path_factory.mktemp("release"))


def references(chart: Chart, secret: str) -> set[str]:
    """The keys of a Secret that pods read."""
    found: set[str] = set()

    def look(part: Any) -> None:
        if isinstance(part, dict):
            source = part.get("secretKeyRef") or {}
            if source.get("name") == secret:
                found.add(source["key"])
            for inner in part.values():
                look(inner)
        elif isinstance(part, list):
            for inner in part:
                look(inner)

    look(list(chart.objects))
    return found


def named(chart: Chart, kind: str) -> dict[str, Any]:
    return {found["metadata"]["name"]: found for found in chart.all(kind)}


def test_kubectl_would_take_each_line() -> None:
    found = parsed()
    assert len(found) >= 12, "the pages' lines are not found"
    verbs = {(one.verb, getattr(one, "kind", "")) for _, one in found}
    assert {("create", "secret"), ("create", "job"), ("scale", ""), ("wait", ""), ("get", "")} <= verbs


@pytest.mark.parametrize(
    "wrong", ["scale deployment/a", "create job a --form=cronjob/b", "wait job/a --for=done --timeout=1m", "delte job/a"]
)
def test_a_line_that_kubectl_would_refuse_is_found(wrong: str) -> None:
    with pytest.raises((ValueError, argparse.ArgumentError)):
        kubectl().parse_args(shlex.split(wrong))


def test_all_lines_are_of_the_namespace_that_the_page_makes(chart_of_the_page: Chart) -> None:
    found = parsed(PAGE.name)
    (made,) = [one.name for _, one in found if (one.verb, getattr(one, "kind", "")) == ("create", "namespace")]
    about = [one for line, one in found if "--namespace" in line.text or one.verb not in ("create", "label", "get")]
    assert {one.namespace for one in about} == {made}
    labels = [one for _, one in found if one.verb == "label"]
    assert [(one.name, one.labels) for one in labels] == [(made, [f"{RESTRICTED}=restricted"])]
    assert {found["metadata"].get("namespace", made) for found in chart_of_the_page.objects} == {made}


def test_the_secrets_of_the_page_have_the_keys_that_pods_read(chart_of_the_page: Chart) -> None:
    secrets = [one for _, one in parsed(PAGE.name) if getattr(one, "kind", "") == "secret"]
    assert len(secrets) == 1
    for secret in secrets:
        assert {literal.partition("=")[0] for literal in secret.from_literal} == references(chart_of_the_page, secret.name)
    text = PAGE.read_text(encoding="utf-8")
    more = re.search(r"It names two more Secrets that you make first, `(\S+)` \(the key `(\S+)`\) and `(\S+)` \(`(\S+)`\)", text)
    assert more is not None
    for name, key in (more.group(1, 2), more.group(3, 4)):
        mounted = f"'secretName': '{name}'" in str(chart_of_the_page.objects)
        assert references(chart_of_the_page, name) == {key} or (mounted and key in str(chart_of_the_page.objects)), name


def test_what_is_scaled_and_copied_is_there_and_comes_back_as_the_chart_has_it(chart_of_the_page: Chart) -> None:
    deployments = named(chart_of_the_page, "Deployment")
    now: dict[str, int] = {}
    jobs: set[str] = set()
    for line, one in parsed():
        if one.verb == "scale":
            for name in one.objects:
                kind, _, of = name.partition("/")
                assert kind == "deployment" and of in deployments, line.text
                if line.page == PAGE.name:
                    now[of] = one.replicas
        elif (one.verb, getattr(one, "kind", "")) == ("create", "job"):
            kind, _, of = one.source.partition("/")
            assert kind == "cronjob" and of in named(chart_of_the_page, "CronJob"), line.text
            jobs.add(one.name)
        elif one.verb in ("wait", "logs"):
            assert {name.removeprefix("job/") for name in one.objects} <= jobs, line.text
        elif one.verb == "delete":
            assert one.objects[0] == "job" and set(one.objects[1:]) <= jobs, line.text
    assert now == {name: deployments[name]["spec"]["replicas"] for name in now} and now, "a deployment is left scaled down"
    writers = {name for name in deployments if f"{name.rpartition('-')[2]}-database-url" in str(deployments[name])}
    assert writers <= set(now), "who writes into a database stands still while it is restored"
