"""Recording and alert rules: promtool reads them, and each alert fires on what it should fire on and on nothing near it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from alert_cases import CASES, RECORDED, Case
from forebay_pool.model.health import APPLICATION_XIDS, CORDON_CELSIUS, DRAIN_CELSIUS, WARN_CELSIUS

CHECKOUT = Path(__file__).parents[2]
RULES = CHECKOUT / "deploy" / "prometheus" / "rules"
GUIDE = CHECKOUT / "docs" / "operators" / "monitoring.md"
RULE_FILES = sorted(RULES.glob("*.yml"))


def alerts() -> dict[str, Any]:
    groups = yaml.safe_load((RULES / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def run(*command: str | Path) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_reads_all_rules(promtool: str) -> None:
    assert run(promtool, "check", "rules", "--lint=all", "--lint-fatal", *RULE_FILES).count("SUCCESS") == len(RULE_FILES) == 2


def unit_test(series: dict[str, str], case: Case, fires: bool) -> dict[str, Any]:
    """As ``promtool test rules`` takes it. The runbook has no variable part: it stands in the rules alone."""
    rule = alerts()[case.alert]
    annotations = {**rule["annotations"], "summary": case.summary}
    expected = [{"exp_labels": {**case.labels, **rule["labels"]}, "exp_annotations": annotations}]
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [{"eval_time": f"{case.minutes}m", "alertname": case.alert, "exp_alerts": expected if fires else []}],
    }


def test_each_alert_fires_when_it_should_and_not_on_what_is_near(promtool: str, tmp_path: Path) -> None:
    tests = [unit_test(dict(case.fires), case, True) for case in CASES] + [unit_test(dict(case.quiet), case, False) for case in CASES]
    file = tmp_path / "alerts.test.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(path) for path in RULE_FILES], "evaluation_interval": "1m", "tests": tests}))
    assert "SUCCESS" in run(promtool, "test", "rules", file)


def test_each_recording_rule_records_what_its_name_says(promtool: str, tmp_path: Path) -> None:
    groups = yaml.safe_load((RULES / "recording.yml").read_text(encoding="utf-8"))["groups"]
    assert {name for _, name, _ in RECORDED} == {rule["record"] for group in groups for rule in group["rules"]}
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": series, "values": values} for series, values in given.items()],
            "promql_expr_test": [{"expr": name, "eval_time": "5m", "exp_samples": [sample(name, *one) for one in expected]}],
        }
        for given, name, expected in RECORDED
    ]
    file = tmp_path / "recording.test.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(path) for path in RULE_FILES], "evaluation_interval": "1m", "tests": tests}))
    assert "SUCCESS" in run(promtool, "test", "rules", file)


def sample(name: str, labels: dict[str, str], value: float) -> dict[str, Any]:
    return {"labels": name + "{" + ",".join(f'{label}="{text}"' for label, text in labels.items()) + "}", "value": value}


def test_a_unit_test_that_expects_something_else_fails(promtool: str, tmp_path: Path) -> None:
    """So the one above could."""
    wrong = unit_test(dict(CASES[0].quiet), CASES[0], True)
    file = tmp_path / "wrong.test.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(path) for path in RULE_FILES], "evaluation_interval": "1m", "tests": [wrong]}))
    assert subprocess.run([promtool, "test", "rules", file], capture_output=True, check=False).returncode == 1


def test_every_alert_has_a_case_and_each_case_differs_from_its_neighbour() -> None:
    assert {case.alert for case in CASES} == set(alerts())
    assert not [case.alert for case in CASES if case.fires == case.quiet]


@pytest.mark.parametrize("name", sorted(alerts()))
def test_an_alert_says_what_is_the_matter_what_to_do_and_how_urgent_it_is(name: str) -> None:
    rule = alerts()[name]
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert 10 < len(rule["annotations"]["summary"]) < 140
    assert len(rule["annotations"]["runbook"]) > 80 and "{{" not in rule["annotations"]["runbook"]
    rows = [line for line in GUIDE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| `{name}` |")]
    assert len(rows) == 1 and rows[0].split("|")[2].strip() == rule["labels"]["severity"]


def test_the_guide_tells_of_no_alert_that_is_not_there() -> None:
    assert set(re.findall(r"^\| `(Forebay\w+)` \|", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)) == set(alerts())


def test_alerts_of_devices_follow_the_bands_and_numbers_that_the_pool_goes_by() -> None:
    rules = alerts()
    hot = {name: rule["expr"] for name, rule in rules.items() if "GPU_TEMP" in rule["expr"]}
    assert {name: [int(number) for number in re.findall(r"\d+", expression)] for name, expression in hot.items()} == {
        "ForebayDeviceWarm": [WARN_CELSIUS, CORDON_CELSIUS],
        "ForebayDeviceHot": [CORDON_CELSIUS, DRAIN_CELSIUS],
        "ForebayDeviceTooHot": [DRAIN_CELSIUS],
    }
    assert {int(number) for number in re.findall(r"== (\d+)", rules["ForebayDeviceError"]["expr"])} == APPLICATION_XIDS
