"""Several services of billing and of pages: how the chart starts, replaces and keeps them, and what is refused."""

from __future__ import annotations

import tomllib

import pytest
from chart import CHART, Chart, rendered, run
from forebay_billing.settings import Settings
from forebay_service.errors import SettingsError

SEVERAL = ("--set", "billing.replicas=3,dashboards.replicas=2")
TOGETHER = pytest.mark.parametrize(("part", "replicas"), [("billing", 3), ("dashboards", 2)])


@pytest.fixture(scope="module")
def several(helm: str) -> Chart:
    return rendered(helm, "gpus", *SEVERAL)


@TOGETHER
def test_one_of_several_services_goes_at_a_time_and_they_lie_on_several_nodes(several: Chart, part: str, replicas: int) -> None:
    deployment = several.one("Deployment", part)["spec"]
    assert deployment["replicas"] == replicas
    assert deployment["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    labels = deployment["template"]["metadata"]["labels"]
    (spread,) = deployment["template"]["spec"]["topologySpreadConstraints"]
    budget = several.one("PodDisruptionBudget", part)["spec"]
    assert budget["maxUnavailable"] == 1
    for selector in (spread["labelSelector"], budget["selector"], deployment["selector"]):
        assert selector["matchLabels"].items() <= labels.items() and selector["matchLabels"]
    others = [found["spec"]["template"]["metadata"]["labels"] for found in several.all("Deployment")]
    assert [budget["selector"]["matchLabels"].items() <= other.items() for other in others].count(True) == 1


def test_a_service_that_is_alone_is_replaced_as_before_and_may_be_evicted(helm: str) -> None:
    """A budget of one would keep its node from being drained for ever."""
    chart = rendered(helm, "gpus")
    for part in ("billing", "dashboards", "pool"):
        assert chart.one("Deployment", part)["spec"]["strategy"] == {"type": "Recreate"}
    names = [found["metadata"]["name"] for found in chart.all("PodDisruptionBudget")]
    assert not [name for name in names if name.endswith(("billing", "dashboards", "pool"))]


def test_of_pools_one_is_ready_so_they_have_no_budget_and_are_not_rolled(several: Chart) -> None:
    assert several.one("Deployment", "pool")["spec"]["strategy"] == {"type": "Recreate"}
    assert not [found for found in several.all("PodDisruptionBudget") if found["metadata"]["name"].endswith("pool")]


def test_billing_is_told_how_many_there_are_and_refuses_a_database_that_is_a_file(several: Chart) -> None:
    told = tomllib.loads(several.file("billing", "billing.toml"))
    assert told["replicas"] == 3
    assert Settings(**told, database_url="postgresql+psycopg://forebay@db/billing").database.startswith("postgresql")
    for url in (None, "sqlite:////srv/billing.sqlite3"):
        with pytest.raises(SettingsError, match="replicas is 3 and the database is SQLite"):
            _ = Settings(**told, database_url=url).database


@pytest.mark.parametrize("wrong", ["billing.replicas=0", "dashboards.replicas=10", "database.urls.billing=sqlite:///b.sqlite3"])
def test_the_chart_refuses_what_cannot_be(helm: str, wrong: str) -> None:
    refused = run(helm, "template", str(CHART), "--values", str(CHART / "examples" / "trying.yaml"), "--set", wrong)
    assert refused.returncode != 0 and wrong.partition("=")[0].rpartition(".")[0].replace(".", "/") in refused.stderr
