"""The dashboards are what the code makes, fit together, and each of their queries gets data from a Prometheus that our services fill."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from dashboards_installation import eventually
from monitored_cloud import Cloud
from real_prometheus import METRIC, SHIPPED, Prometheus, scraping

GRAFANA = Path(__file__).parents[2] / "deploy" / "grafana"
FILES = sorted((GRAFANA / "dashboards").glob("*/*.json"))
BOARDS = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in FILES}
TENANTS = ("acme", "globex")
DATA_SECONDS = 40
SHOWN = [*((name, "all of them") for name in BOARDS if name != "usage"), *(("usage", tenant) for tenant in TENANTS)]
WORDS = {"$__rate_interval": "1m", "$__range": "5m", "$__interval": "15s"}
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
LABEL_VALUES = re.compile(r"label_values\((\w+(?:\{.*\})?), (\w+)\)")


def panels(board: Any) -> list[Any]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def queries(board: Any) -> list[tuple[str, str, bool]]:
    """Panel, expression, and whether it asks for the present alone."""
    return [(panel["title"], target["expr"], bool(target.get("instant"))) for panel in panels(board) for target in panel["targets"]]


def variables(board: Any) -> dict[str, Any]:
    return {one["name"]: one for one in board["templating"]["list"] if one["type"] == "query"}


def test_the_files_are_what_the_code_makes(tmp_path: Path) -> None:
    copy = tmp_path / "grafana"
    copy.mkdir()
    shutil.copy(GRAFANA / "boards.py", copy)
    subprocess.run([sys.executable, copy / "boards.py"], check=True)
    made = {file.relative_to(copy): file.read_text(encoding="utf-8") for file in copy.glob("dashboards/*/*.json")}
    assert made == {file.relative_to(GRAFANA): file.read_text(encoding="utf-8") for file in FILES}
    assert len(made) == 4


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_is_complete_and_its_panels_do_not_overlap(name: str) -> None:
    board = BOARDS[name]
    assert board["uid"] == f"forebay-{name}" and board["description"] and "id" not in board
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    cells = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        own = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert own and not own & cells and max(x for x, _ in own) < 24, panel["title"]
        cells |= own
    for panel in panels(board):
        assert panel["title"] and panel["description"] and panel["datasource"] == SOURCE and panel["targets"]
        assert all(target["datasource"] == SOURCE for target in panel["targets"])
        letters = [target["refId"] for target in panel["targets"]]
        assert len(letters) == len(set(letters))
    assert all(one["datasource"] == SOURCE for one in variables(board).values())


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_uses_each_variable_that_it_has_and_no_other(name: str) -> None:
    board = BOARDS[name]
    asked = " ".join([*(expression for _, expression, _ in queries(board)), *(one["query"] for one in variables(board).values())])
    assert set(re.findall(r"\$(?!__)(\w+)", asked)) == set(variables(board))


def test_a_tenants_board_asks_for_nothing_but_the_tenants_own() -> None:
    for title, expression, _ in queries(BOARDS["usage"]):
        for found in METRIC.finditer(expression):
            assert expression[found.end() :].startswith('{tenant="$tenant"}'), (title, expression)


def test_the_provisioned_files_name_what_there_is() -> None:
    (providers,) = (yaml.safe_load(path.read_text(encoding="utf-8")) for path in GRAFANA.glob("provisioning/dashboards/*.yaml"))
    assert providers["apiVersion"] == 1
    folders = {Path(one["options"]["path"]).name: one for one in providers["providers"]}
    assert set(folders) == {file.parent.name for file in FILES}
    assert {one["type"] for one in folders.values()} == {"file"} and len({one["folderUid"] for one in folders.values()}) == 2
    (sources,) = (yaml.safe_load(path.read_text(encoding="utf-8")) for path in GRAFANA.glob("provisioning/datasources/*.yaml"))
    (source,) = sources["datasources"]
    scrape = yaml.safe_load((SHIPPED / "prometheus.yml").read_text(encoding="utf-8"))["global"]["scrape_interval"]
    assert (source["type"], source["jsonData"]["timeInterval"]) == ("prometheus", scrape)


# Against a Prometheus that runs


@pytest.fixture(scope="module")
def prometheus(monitored_cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """It has seen leases open and close while it scraped, so that rates are rates of something."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("no Prometheus is installed (Debian: apt-get install prometheus)")
    with scraping(program, monitored_cloud, tmp_path_factory.mktemp("prometheus")) as running:
        eventually(lambda: running.instant('forebay_pool_leases_opened_total{tenant="initech"}'), DATA_SECONDS)
        monitored_cloud.work("worker-bee")
        yield running


def test_the_shipped_configuration_is_one_and_scrapes_every_service(promtool: str, prometheus: Prometheus) -> None:
    checked = subprocess.run([promtool, "check", "config", "--syntax-only", SHIPPED / "prometheus.yml"], capture_output=True, check=False)
    assert checked.returncode == 0, checked.stdout
    assert prometheus.targets() == dict.fromkeys(("forebay-pool", "forebay-billing", "forebay-dashboards", "forebay-hub"), "up")


def chosen(prometheus: Prometheus, board: Any, tenant: str) -> dict[str, str]:
    """The values of a board's variables: all of them where all may be chosen, else ``tenant``."""
    values: dict[str, str] = {}
    for name, variable in variables(board).items():
        asked = LABEL_VALUES.fullmatch(filled(variable["query"], values))
        assert asked is not None, variable["query"]
        found = prometheus.label_values(asked[2], asked[1])
        assert found, f"variable {name} has no values"
        assert variable["multi"] or tenant in found
        values[name] = "|".join(map(re.escape, found)) if variable["multi"] else tenant
    return values


def filled(expression: str, values: dict[str, str]) -> str:
    for name, value in {**WORDS, **{f"${name}": value.replace("\\", "\\\\") for name, value in values.items()}}.items():
        expression = expression.replace(name, value)
    return expression


def has_data(series: list[Any]) -> bool:
    points = [point for one in series for point in one.get("values", [one.get("value")])]
    return any(math.isfinite(float(value)) for _, value in points)


def left_after(silent: Callable[[], list[tuple[str, str]]], seconds: float) -> list[tuple[str, str]]:
    """What is silent still, once nothing is or the time is over."""
    deadline = time.monotonic() + seconds
    while (found := silent()) and time.monotonic() < deadline:
        time.sleep(0.5)
    return found


@pytest.mark.parametrize(("name", "tenant"), SHOWN)
def test_every_query_of_every_panel_gets_data(name: str, tenant: str, prometheus: Prometheus) -> None:
    board = BOARDS[name]

    def silent() -> list[tuple[str, str]]:
        values = chosen(prometheus, board, tenant)
        asked = [(title, filled(expression, values), instant) for title, expression, instant in queries(board)]
        return [(title, text) for title, text, now in asked if not has_data((prometheus.instant if now else prometheus.window)(text))]

    assert left_after(silent, DATA_SECONDS) == []


def test_every_metric_that_is_asked_for_is_there(prometheus: Prometheus) -> None:
    """``or vector(0)`` would hide a name that nothing has."""
    asked = {found[0] for board in BOARDS.values() for _, expression, _ in queries(board) for found in METRIC.finditer(expression)}
    assert len(asked) > 40
    eventually(lambda: not [name for name in asked if not prometheus.instant(f"count({name})")], DATA_SECONDS)


def test_a_query_for_what_is_not_there_gets_none(prometheus: Prometheus) -> None:
    """So the tests above could fail."""
    assert not has_data(prometheus.window("sum(forebay_pool_devcies)"))
    assert not has_data(prometheus.instant("rate(forebay_pool_leases_opened_total[1m]) / 0 > 1e99 < 0"))


def test_a_device_that_is_too_hot_is_an_alert_that_fires(prometheus: Prometheus) -> None:
    eventually(lambda: prometheus.instant('ALERTS{alertname="ForebayDeviceTooHot",alertstate="firing",gpu="1"}'), DATA_SECONDS)
    rules = prometheus.ask("rules", type="alert")["groups"]
    assert all(rule["health"] == "ok" for group in rules for rule in group["rules"])
