"""A person signs in, chooses a flavor, and gets JupyterLab without a GPU."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

pytestmark = pytest.mark.acceptance

PROMETHEUS = Path(__file__).parents[2] / "deploy" / "prometheus" / "prometheus.yml"


def test_the_start_prints_address_and_every_login(cloud: Any) -> None:
    assert cloud.url in cloud.printed
    for login in ("acme-member", "acme-owner", "globex-owner", "operator"):  # others may have joined since
        assert cloud.logins[login] in cloud.printed


def test_the_start_says_where_all_run_as_one_user_and_why(cloud: Any) -> None:
    """Pytest's folders let nobody else pass, so that this is so whoever runs the tests."""
    (line,) = [line for line in cloud.printed.splitlines() if line.startswith("Everything runs as ")]
    assert line.endswith("so every cell can read every secret of this installation: it is for one person, or for trying.")
    assert os.getuid() != 0 or "since other users cannot pass " in line


def test_a_wrong_password_does_not_sign_in(cloud: Any) -> None:
    visitor = cloud.visitor("acme-member")
    assert visitor.sign_in("wrong").status_code == httpx.codes.FORBIDDEN
    assert visitor.web.get("/hub/home").url.path == "/hub/login"


def test_the_spawn_page_shows_each_flavors_rate_and_what_can_be_served_here(cloud: Any) -> None:
    page = cloud.person("acme-owner").web.get("/hub/spawn").text
    prices = {row["flavor"]: row for row in cloud.service("billing/api/prices", cloud.person("operator").new_token()).json()}
    assert re.search('value="dev.4gb" [^>]* checked>', page)
    assert re.search('value="small.64gb" [^>]* disabled>', page)
    assert "Served by 1 cpu-dev" in page and "Now: no wait" in page
    assert len(prices) == page.count('name="flavor"') == 15


def test_an_unknown_flavor_asked_for_past_the_form_is_refused_with_a_sentence(cloud: Any) -> None:
    person = cloud.person("globex-owner")
    answer = person.hub_api("POST", "users/globex-owner/server", {"flavor": "huge.9999gb"})
    assert answer.status_code == httpx.codes.BAD_REQUEST
    assert "There is no flavor 'huge.9999gb'" in answer.json()["message"]


def test_an_operator_has_no_tenant_and_gets_no_server(cloud: Any) -> None:
    answer = cloud.person("operator").hub_api("POST", "users/operator/server", {})
    assert answer.status_code == httpx.codes.FORBIDDEN
    assert "belong to no tenant" in answer.json()["message"]


@pytest.mark.parametrize(
    ("who", "arrives"),
    [
        ("operator", ["/services/dashboards/operator"]),
        ("globex-owner", ["/services/dashboards/tenant"]),
        ("acme-member", ["/hub/spawn", "/user/acme-member/lab"]),
    ],
)
def test_people_who_sign_in_arrive_where_their_role_works(cloud: Any, who: str, arrives: list[str]) -> None:
    arrived = cloud.visitor(who).sign_in(cloud.logins[who])
    assert arrived.status_code == httpx.codes.OK and arrived.url.path in arrives, arrived.url


def test_a_member_gets_jupyterlab_with_the_virtual_gpu_as_its_only_kernel(member: Any) -> None:
    kernels = member.web.get("/user/acme-member/api/kernelspecs").raise_for_status().json()
    names = {name: spec["spec"]["display_name"] for name, spec in kernels["kernelspecs"].items()}
    assert names == {"python3": "Python 3 (virtual GPU)"}


def test_the_starter_notebooks_are_in_the_home(member: Any) -> None:
    listing = member.web.get("/user/acme-member/api/contents/").raise_for_status().json()
    assert sorted(entry["name"] for entry in listing["content"]) == ["digits.ipynb", "words.ipynb"]


def test_the_last_choice_is_preselected_next_time(cloud: Any, member: Any) -> None:
    model = member.hub_api("GET", "users/acme-member").raise_for_status().json()
    assert model["servers"][""]["user_options"] == {"flavor": "dev.4gb"}


def test_a_notebook_finds_no_gpu_of_the_host(member: Any, open_notebook: Any) -> None:
    kernel = open_notebook(member, "digits.ipynb")
    kernel.run("import glob, subprocess, sys")
    assert "(virtual)" in kernel.run("print(subprocess.run(['nvidia-smi', '-L'], capture_output=True).stdout)")
    monitor = "import ctypes; print(hasattr(ctypes.CDLL('libnvidia-ml.so.1'), 'forebay_monitoring'))"
    assert kernel.run(f"print(subprocess.run([sys.executable, '-c', {monitor!r}], capture_output=True).stdout)") == "b'True\\n'\n"
    readable = "[path for path in glob.glob('/dev/nvidia*') if open(path, 'rb').read(1)]"
    assert kernel.run(f"print({readable})") == "[]\n"


def test_another_tenants_server_is_closed_to_a_member(cloud: Any, member: Any) -> None:
    stranger = cloud.person("globex-owner")
    assert stranger.web.get("/user/acme-member/lab").status_code in (httpx.codes.FORBIDDEN, httpx.codes.NOT_FOUND)


def test_a_new_notebook_has_what_people_expect_in_one_and_words_opens_without_a_warning(member: Any, open_notebook: Any) -> None:
    kernel = open_notebook(member, "words.ipynb")
    imported = "import warnings; warnings.simplefilter('error')\nimport matplotlib.pyplot, pandas, ipywidgets, tqdm.auto\nprint('there')"
    assert kernel.run(imported) == "there\n"
    for cell in kernel.cells[:3]:
        assert "[transformers]" not in kernel.run(cell), "printed to stderr, which is red"
    step = "tokens_here = tokens[:16][None].to(device)\nprint(model(input_ids=tokens_here, labels=tokens_here).loss.item() > 0)"
    assert kernel.run(step) == "True\n"


def test_metrics_are_told_to_the_token_that_prometheus_is_given_and_to_no_program_without(cloud: Any) -> None:
    """By the shipped configuration, whose ports are those of an installation at 8000."""
    token = cloud.state / "scrape-token"
    assert token.stat().st_mode & 0o777 == 0o600
    first = httpx.URL(cloud.url).port
    assert first is not None
    for job in yaml.safe_load(PROMETHEUS.read_text())["scrape_configs"]:
        (target,) = job["static_configs"][0]["targets"]
        host, _, port = target.partition(":")
        page = f"http://{host}:{first + int(port) - 8000}{job['metrics_path']}"
        assert (job["authorization"]["type"], job["authorization"]["credentials_file"]) == ("token", token.name)
        codes = [httpx.get(page, headers={"Authorization": f"token {sent}"}).status_code for sent in (token.read_text().strip(), "x" * 64)]
        assert codes[0] == httpx.codes.OK and codes[1] in (401, 403), page
        assert httpx.get(page).status_code in (401, 403), page
