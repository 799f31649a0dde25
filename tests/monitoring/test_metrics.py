"""Every metric of every service that runs: conventions, help, bounded labels, and a row in the reference."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from forebay_dashboards import metrics as dashboards_metrics
from forebay_edge import passages as edge_metrics
from forebay_pool.views import metrics as pool_metrics
from monitored_cloud import SERVICES, Cloud, Family
from prometheus_client import Counter, Gauge, Histogram

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
DCGM = "DCGM_FI_DEV_"
THEIRS = ("process_", "python_", DCGM)
"""Names that others chose: prometheus_client and NVIDIA's DCGM exporter."""
UNITS = ("seconds", "bytes", "ratio", "units")
OF_EACH_PERSON = {"user", "session", "cell", "span", "lease", "notebook", "worker", "process", "name", "login"}
DCGM_COMPLAINT = re.compile(rf"^{DCGM}\w+ label names should be written in 'snake_case' not 'camelCase'$")
"""The only thing that promtool may find: ``modelName`` is DCGM's."""


@pytest.fixture(scope="module")
def families(monitored_cloud: Cloud) -> dict[str, dict[str, Family]]:
    """By service and name."""
    return {service: {family.name: family for family in monitored_cloud.families(service)} for service in SERVICES}


@pytest.mark.parametrize("service", SERVICES)
def test_promtool_finds_no_fault_with_our_metrics(service: str, promtool: str, monitored_cloud: Cloud) -> None:
    text = monitored_cloud.text(service)
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    complaints = [line for line in (checked.stdout + checked.stderr).splitlines() if not DCGM_COMPLAINT.match(line)]
    assert complaints == []
    assert (DCGM in text) == (service == "pool")


@pytest.mark.parametrize("service", SERVICES)
def test_names_say_whose_a_metric_is_and_what_it_counts(service: str, families: dict[str, dict[str, Family]]) -> None:
    own = [family for family in families[service].values() if not family.name.startswith(THEIRS)]
    assert own
    for family in own:
        assert re.fullmatch(rf"forebay_{service}(_[a-z]+)+", family.name)
        assert family.name.endswith("_total") == (family.kind == "counter"), family.name
        assert family.kind in ("counter", "gauge", "histogram")
        if family.kind == "histogram":
            assert family.name.endswith((*UNITS, "jobs"))
        assert len(family.text) > 10 and re.match("[A-Z01]", family.text) and not family.text.endswith("."), family.name
    assert not re.search(r"_(milli|micro|nano|ms|minutes|hours|percent|mb|kb)(_|$)", " ".join(family.name for family in own))


@pytest.mark.parametrize("service", SERVICES)
def test_no_label_names_somebody_or_something_that_comes_and_goes(service: str, families: dict[str, dict[str, Family]]) -> None:
    for family in families[service].values():
        assert not family.labels & OF_EACH_PERSON, family.name
        assert not [sample for sample in family.samples if "member" in str(sample.labels) or "owner" in str(sample.labels)], family.name


def test_many_users_sessions_and_cells_make_no_new_series(monitored_cloud: Cloud) -> None:
    def work_of(names: list[str]) -> None:
        for name in names:
            monitored_cloud.newcomer(name, "initech")
            monitored_cloud.installation.record_usage(tenant="initech", user=name, flavor="dev.4gb")
            ask_for_flavors(monitored_cloud, name)

    def series() -> dict[str, frozenset[object]]:
        return {service: frozenset().union(*(family.series for family in monitored_cloud.families(service))) for service in SERVICES}

    work_of(["first"])
    before = series()
    work_of([f"user-{number}" for number in range(12)])
    after = series()
    assert {service: after[service] - before[service] for service in SERVICES} == dict.fromkeys(SERVICES, frozenset())


def ask_for_flavors(cloud: Cloud, who: str) -> None:
    """A session opens and computes nothing; a page is looked at; a path is tried that is nowhere."""
    with cloud.installation.session(who):
        cloud.installation.ask("pool", who, "GET", "api/flavors")
        cloud.installation.get(who, "my-usage")
        cloud.installation.get(who, f"nowhere/{who}")


def declared_labels() -> dict[str, frozenset[str]]:
    """Of the metrics that count, as they are made: those have series only once something happened."""
    made = [*vars(pool_metrics.Metrics()).values(), *vars(dashboards_metrics).values(), *vars(edge_metrics).values()]
    found = [one for one in made if isinstance(one, Counter | Gauge | Histogram)]
    return {one._name + "_total" * isinstance(one, Counter): frozenset(one._labelnames) for one in found}


def rows() -> dict[str, tuple[str, frozenset[str], str]]:
    """Kind, labels and meaning of each metric in the reference's tables."""
    found = {}
    for line in REFERENCE.read_text(encoding="utf-8").splitlines():
        match = re.fullmatch(r"\| `(\w+)` \| (\w+) \| (.*?) \| (.+) \|", line)
        if match is not None:
            found[match[1]] = (match[2], frozenset(re.findall(r"`(\w+)`", match[3])), match[4])
    return found


def test_the_reference_has_each_metric_with_its_kind_labels_and_meaning(families: dict[str, dict[str, Family]]) -> None:
    every = [family for found in families.values() for family in found.values()]
    exported = {family.name: family for family in every if not family.name.startswith(("process_", "python_"))}
    declared = declared_labels()
    described = rows()
    assert set(described) == set(exported)
    for name, family in exported.items():
        kind, labels, meaning = described[name]
        assert (kind, meaning) == (family.kind, family.text), name
        assert labels == (family.labels if family.samples else declared[name]), name


def test_the_running_cloud_shows_nearly_all_there_is(families: dict[str, dict[str, Family]]) -> None:
    """What has no series yet is a fault that did not happen; its labels are read in the source by whoever adds it."""
    silent = {name for found in families.values() for name, family in found.items() if not family.samples}
    assert silent <= {
        "forebay_pool_energy_joules_total",
        "forebay_pool_worker_busy_seconds_total",
        "forebay_pool_worker_commands_total",
        "forebay_dashboards_browsers",
        "forebay_dashboards_updates_total",
        "forebay_edge_refused_total",
    }
