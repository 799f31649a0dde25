"""``forebay admin grafana push`` as a process, with Grafana's real client, against a server that answers as Grafana is documented to."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grafana_stand_in import EDITOR, VIEWER, Grafana

CHECKOUT = Path(__file__).parents[2]
BOARDS = CHECKOUT / "deploy" / "grafana" / "dashboards" / "operators"
CLIENT = CHECKOUT / ".venv" / "grafana"
PACKAGES = os.pathsep.join(str(CHECKOUT / name) for name in ("wire", "device"))
UIDS = ["forebay-fleet", "forebay-queue", "forebay-revenue"]


@pytest.fixture
def grafana() -> Iterator[Grafana]:
    with Grafana().serving() as server:
        yield server


def forebay(*words: str | Path, token: str | None = EDITOR, client: Path | None = CLIENT) -> subprocess.CompletedProcess[str]:
    """The command in an environment with the client, or without."""
    assert CLIENT.is_dir(), "Grafana's client is installed by `python3 deploy/local/install.py --dev`"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    environment["PYTHONPATH"] = os.pathsep.join(str(path) for path in (client, PACKAGES) if path is not None)
    if token is not None:
        environment["FOREBAY_GRAFANA_TOKEN"] = token
    command = [sys.executable, "-c", "import sys; from forebay.toolkit.command import main; sys.exit(main())", "admin", "grafana", "push"]
    return subprocess.run([*command, *map(str, words)], env=environment, capture_output=True, text=True, check=False, timeout=60)


def push(grafana: Grafana, *words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return forebay(BOARDS, "--url", grafana.url, *words, **options)


def done(finished: subprocess.CompletedProcess[str]) -> dict[str, tuple[int, str]]:
    assert finished.returncode == 0, finished.stderr
    return {one["uid"]: (one["version"], one["done"]) for one in json.loads(finished.stdout)}


def refusal(finished: subprocess.CompletedProcess[str]) -> str:
    assert (finished.returncode, finished.stdout) == (1, ""), finished.stdout
    (sentence,) = finished.stderr.splitlines()
    return sentence


def test_boards_are_made_then_left_as_they_are_then_brought_up_to_date(grafana: Grafana, tmp_path: Path) -> None:
    assert done(push(grafana, "--json")) == dict.fromkeys(UIDS, (1, "created"))
    assert grafana.folders["forebay"]["title"] == "Forebay"
    assert {kept.folder_uid for kept in grafana.dashboards.values()} == {"forebay"}
    for file in BOARDS.glob("*.json"):
        board = json.loads(file.read_text(encoding="utf-8"))
        assert grafana.dashboards[board["uid"]].model == {**board, "version": 1, "id": grafana.dashboards[board["uid"]].model["id"]}
    before = len(grafana.asked)
    assert done(push(grafana, "--json")) == dict.fromkeys(UIDS, (1, "unchanged"))
    assert {method for method, _ in grafana.asked[before:]} == {"GET"}
    changed = shutil.copytree(BOARDS, tmp_path / "boards")
    fleet = json.loads((changed / "fleet.json").read_text(encoding="utf-8"))
    (changed / "fleet.json").write_text(json.dumps({**fleet, "title": "Fleet"}), encoding="utf-8")
    told = forebay(changed, "--url", grafana.url)
    assert told.returncode == 0 and "| forebay-fleet | Fleet " in " ".join(told.stdout.split()), told.stdout
    assert [grafana.dashboards[uid].version for uid in UIDS] == [2, 1, 1]
    assert grafana.dashboards["forebay-fleet"].model["title"] == "Fleet"


@pytest.mark.parametrize("lists_versions", [False, True])
def test_what_somebody_changed_in_grafana_is_overwritten_only_when_one_says_so(grafana: Grafana, lists_versions: bool) -> None:
    grafana.lists_versions = lists_versions
    done(push(grafana, "--json"))
    grafana.save({**grafana.dashboards["forebay-queue"].model, "title": "My queue"}, "forebay", "")
    assert "somebody changed forebay-queue in Grafana" in refusal(push(grafana))
    assert grafana.dashboards["forebay-queue"].model["title"] == "My queue"
    assert done(push(grafana, "--json", "--overwrite")) == {
        **dict.fromkeys(UIDS, (1, "unchanged")),
        "forebay-queue": (3, "updated"),
    }
    assert grafana.dashboards["forebay-queue"].model["title"] == "Forebay: queue"


def test_a_save_at_the_same_moment_wins_and_is_told(grafana: Grafana) -> None:
    done(push(grafana, "--json"))
    grafana.dashboards["forebay-fleet"].model["refresh"] = "1h"
    moved = {**grafana.dashboards["forebay-fleet"].model, "title": "Mine"}
    grafana.before_save = lambda: grafana.save(moved, "forebay", "while the other one looked")
    said = refusal(push(grafana))
    assert "Somebody saved the dashboard at this moment" in said and "changed by someone else" in said
    assert grafana.dashboards["forebay-fleet"].model["title"] == "Mine"


def test_boards_go_into_the_folder_that_is_named_and_move_there(grafana: Grafana) -> None:
    done(push(grafana, "--json"))
    assert done(push(grafana, "--json", "--into", "GPU cloud / ops")) == dict.fromkeys(UIDS, (2, "updated"))
    assert grafana.folders["gpu-cloud-ops"]["title"] == "GPU cloud / ops"
    assert {kept.folder_uid for kept in grafana.dashboards.values()} == {"gpu-cloud-ops"}


def test_a_token_that_is_unknown_or_may_not_edit_is_told(grafana: Grafana) -> None:
    said = refusal(push(grafana, token="glsa_revoked"))
    assert "does not know the token" in said and "Invalid API key" in said
    said = refusal(push(grafana, token=VIEWER))
    assert "needs the role Editor" in said and "folders:create" in said
    assert not grafana.folders and not grafana.dashboards


def test_a_provisioned_dashboard_is_left_to_its_file(grafana: Grafana) -> None:
    done(push(grafana, "--json"))
    kept = grafana.dashboards["forebay-fleet"]
    kept.provisioned, kept.model["refresh"] = True, "1h"
    assert "Cannot save provisioned dashboard" in refusal(push(grafana))


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ((500, {"message": "database is locked"}), "fails: Server Error 500: database is locked"),
        ((200, "<html>hello</html>"), "is not Grafana's API"),
        ((200, {"something": "else"}), "is not Grafana's API"),
        ((404, "<html>no</html>"), "refuses it (404)"),
    ],
)
def test_what_is_no_grafana_or_fails_is_told(grafana: Grafana, answer: tuple[int, Any], sentence: str) -> None:
    grafana.failing = answer
    assert sentence in refusal(push(grafana))


def test_nobody_at_the_address_is_told() -> None:
    assert "cannot be reached at http://127.0.0.1:9" in refusal(forebay(BOARDS, "--url", "http://127.0.0.1:9"))


def test_what_is_missing_before_anything_is_asked_is_told(tmp_path: Path, grafana: Grafana) -> None:
    assert "FOREBAY_GRAFANA_TOKEN" in refusal(push(grafana, token=None))
    assert "There is no dashboard in" in refusal(forebay(tmp_path, "--url", grafana.url))
    (tmp_path / "broken.json").write_text("{")
    assert "broken.json cannot be read as JSON" in refusal(forebay(tmp_path, "--url", grafana.url))
    (tmp_path / "broken.json").write_text('{"title": "no uid"}')
    assert "broken.json is no dashboard" in refusal(forebay(tmp_path, "--url", grafana.url))
    assert "is no address of Grafana" in refusal(forebay(BOARDS, "--url", "grafana:3000"))
    assert not grafana.asked


def test_without_the_extra_one_is_told_what_to_install(grafana: Grafana) -> None:
    said = refusal(push(grafana, client=None))
    assert "pip install 'forebay-admin[grafana]'" in said and "No module named 'grafana_client'" in said
    assert not grafana.asked


def test_the_command_imports_what_is_heavy_only_where_it_is_used() -> None:
    heavy = ("grafana_client", "niquests", "forebay_wire.messages", "torch")
    code = f"import sys, forebay.toolkit.command as c; c.parser(); print([name for name in {heavy} if name in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": f"{CLIENT}{os.pathsep}{PACKAGES}"}
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"
