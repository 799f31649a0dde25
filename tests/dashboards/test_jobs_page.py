"""The pages of jobs in a real browser: submitted by a form, followed while it prints, cancelled; repeated by a schedule."""

from __future__ import annotations

import re
import secrets
from typing import Any

import httpx
import pytest
from browsing import grave_faults, mishaps, sign_in
from dashboards_installation import Hub, Installation, eventually
from playwright.sync_api import Browser, Page

WIDE, NARROW = {"width": 1440, "height": 900}, {"width": 390, "height": 844}


class Runner:
    """Says to the pool what the runner of a job says."""

    def __init__(self, cloud: Installation, hub: Hub, job: int) -> None:
        self._url = f"{cloud.urls['pool']}api/jobs/{job}/"
        self._token = hub.tokens["acme-member"]
        self._key = secrets.token_hex(16)
        eventually(lambda: self.say("begin").status_code == httpx.codes.OK)

    def say(self, what: str, **more: Any) -> httpx.Response:
        return httpx.post(self._url + what, json={"key": self._key, **more}, headers={"Authorization": f"token {self._token}"})

    def prints(self, number: int, text: str) -> None:
        self.say("printed", pieces=[{"number": number, "text": text}]).raise_for_status()


def checked(page: Page, width: int) -> None:
    assert grave_faults(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "it is wider than the screen"


def test_a_job_is_submitted_followed_and_cancelled(chrome: Browser, cloud: Installation, hub: Hub) -> None:
    context = chrome.new_context(viewport=WIDE, locale="en-GB")
    page = sign_in(context, hub, cloud, "acme-member", "jobs?file=work/cells.ipynb&environment=work")
    assert page.locator("#file").input_value() == "work/cells.ipynb", "as JupyterLab's menu gives it"
    assert page.locator("#environment").input_value() == "work"
    page.fill("#file", "work/train.py")
    page.fill("#arguments", "--name 'a b' --epochs 3")
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url("**/jobs/*")
    job = int(page.url.rpartition("/")[2])
    row = cloud.ask("pool", "acme-member", "GET", f"api/jobs/{job}")
    assert (row["kind"], row["folder"], row["arguments"]) == ("script", "work", ["--name", "a b", "--epochs", "3"])
    assert row["environment"] == page.locator("#content .tag").nth(1).inner_text() == "work"
    runner = Runner(cloud, hub, job)
    runner.prints(1, "epoch 1 <b>loss</b> 0.5\n")
    page.wait_for_selector("text=epoch 1 <b>loss</b> 0.5")
    runner.prints(2, "epoch 2\n")
    page.wait_for_selector("text=epoch 2")
    page.wait_for_selector(".tag:text-is('running')")
    page.get_by_role("button", name="Cancel the job").click()
    page.wait_for_selector(".tag:text-is('cancelled')")
    assert "epoch 1" in page.locator(".printed").inner_text()
    assert mishaps(page) == []
    context.close()


RECORD = """() => {
window.shown = [];
window.Notification = class extends window.Notification {
    constructor(title, options) { super(title, options); window.shown.push(title); }
};
document.hasFocus = () => !window.away;
}"""
"""What the browser is given to show. A page of Playwright's always has the focus, so that somebody is away is said here."""


def test_the_browser_tells_who_looks_elsewhere_that_a_job_has_ended(chrome: Browser, cloud: Installation, hub: Hub) -> None:
    ids = [cloud.ask("pool", "acme-member", "POST", "api/jobs", json={"kind": "script", "file": "a.py"})["id"] for _ in range(2)]
    runners = [Runner(cloud, hub, number) for number in ids]
    context = chrome.new_context(viewport=WIDE, locale="en-GB", permissions=["notifications"])
    context.add_init_script(f"({RECORD})()")
    page = sign_in(context, hub, cloud, "acme-member", "jobs")
    page.wait_for_selector(f"#job-{ids[1]} .tag:text-is('running')")
    runners[0].say("end", exit_status=0).raise_for_status()
    page.wait_for_selector(f"#job-{ids[0]} .tag:text-is('succeeded')")
    page.wait_for_function("!document.querySelector('.htmx-settling')")  # the page's script has looked at it by then
    page.evaluate("window.away = true")
    runners[1].say("end", exit_status=3, reason="exit_status").raise_for_status()
    eventually(lambda: page.evaluate("window.shown.length"))
    assert page.evaluate("window.shown") == [f"{ids[1]}: a.py: failed"], "the other one was seen"
    assert mishaps(page) == []
    context.close()


@pytest.mark.parametrize(
    ("screen", "scheme", "locale", "words"),
    [
        (WIDE, "light", "en-GB", ("Jobs", "cancelled", "Its user cancelled it.")),
        (NARROW, "dark", "ko-KR", ("작업", "취소됨", "사용자가 취소했습니다.")),
    ],
)
def test_the_pages_fit_the_screen_in_their_readers_language(
    chrome: Browser, cloud: Installation, hub: Hub, screen: Any, scheme: Any, locale: str, words: tuple[str, str, str]
) -> None:
    body = {"kind": "script", "file": "a/folder/with/a_long_name/train.py", "arguments": ["--option=" + "x" * 200]}
    job = cloud.ask("pool", "acme-member", "POST", "api/jobs", json=body)["id"]
    runner = Runner(cloud, hub, job)
    runner.prints(1, "x" * 500 + "\n")
    cloud.ask("pool", "acme-member", "POST", f"api/jobs/{job}/cancel", json={})
    schedule = cloud.ask("pool", "acme-member", "POST", "api/schedules", json={**body, "cron": "0 0 * * *"})
    context = chrome.new_context(viewport=screen, color_scheme=scheme, locale=locale)
    page = sign_in(context, hub, cloud, "acme-member", "jobs")
    assert page.locator("h1").inner_text() == words[0]
    page.wait_for_selector(f"#job-{job} .tag:text-is('{words[1]}')")
    checked(page, screen["width"])
    page.goto(cloud.urls["dashboards"] + f"jobs/{job}")
    assert words[2] in page.locator("#content").inner_text()
    checked(page, screen["width"])
    headers = {"Authorization": f"token {hub.tokens['acme-member']}"}
    httpx.delete(f"{cloud.urls['pool']}api/schedules/{schedule['id']}", headers=headers).raise_for_status()
    assert mishaps(page) == []
    context.close()


def test_the_pages_tell_what_each_run_has_cost_and_all_of_them(cloud: Installation, hub: Hub) -> None:
    price = {"price_nano_per_hour": 3_600_000_000, "currency": "USD", "new": True}
    cloud.ask("billing", "operator", "PUT", "api/prices/priced.1gb", json=price)
    job = cloud.ask("pool", "acme-member", "POST", "api/jobs", json={"kind": "script", "file": "train.py"})
    assert "no device has computed for it" in cloud.get("acme-member", f"jobs/{job['id']}/cost").text
    for attempt, seconds in ((1, 5), (2, 2)):
        span = {"id": f"job-{job['id']}/{attempt}/" + secrets.token_hex(16), "kind": "process", "label": job["label"]}
        cloud.record_usage(span=span, flavor="priced.1gb", duration_ns=seconds * 10**9, started_at_ns=job["created_at_ns"] + 1)
    page = cloud.get("acme-member", f"jobs/{job['id']}/cost").text
    assert re.findall(r">(\$[\d.]+)<", page) == ["$0.005000", "$0.002000", "$0.007000"]
    shown = re.search(rf'<tr id="job-{job["id"]}" .*?</tr>', cloud.get("acme-member", "jobs/list").text, re.DOTALL)
    assert shown is not None and "$0.007000" in shown[0]
    assert "$0.007000" in cloud.get("acme-owner", f"jobs/{job['id']}/cost").text, "the tenant's owner sees what it costs"
    cloud.ask("pool", "acme-member", "POST", f"api/jobs/{job['id']}/cancel", json={})


@pytest.mark.full_sweep
def test_a_run_that_was_lost_is_followed_by_the_next(chrome: Browser, cloud: Installation, hub: Hub) -> None:
    body = {"kind": "script", "file": "train.py", "retries_max": 1}
    job = cloud.ask("pool", "acme-member", "POST", "api/jobs", json=body)["id"]
    runner = Runner(cloud, hub, job)
    runner.prints(1, "first run\n")
    context = chrome.new_context(viewport=WIDE, locale="en-GB")
    page = sign_in(context, hub, cloud, "acme-member", f"jobs/{job}")
    page.wait_for_selector("text=first run")
    runner.say("end", exit_status=1, reason="worker_lost").raise_for_status()
    page.wait_for_selector("text=The worker that held its tensors was lost.")
    page.wait_for_selector("text=1 of at most 2")
    again = Runner(cloud, hub, job)  # once the pause is over
    again.prints(1, "second run\n")
    page.wait_for_selector("text=second run")
    again.say("end", exit_status=0).raise_for_status()
    page.wait_for_selector(".tag:text-is('succeeded')")
    assert page.locator(".printed").inner_text().count("run\n") == 2
    context.close()


def test_a_schedule_is_set_and_removed_and_one_that_is_none_is_refused(chrome: Browser, cloud: Installation, hub: Hub) -> None:
    context = chrome.new_context(viewport=NARROW, locale="en-GB", timezone_id="Asia/Seoul")
    page = sign_in(context, hub, cloud, "acme-owner", "jobs")
    page.reload()  # by now the browser has told its time zone
    page.fill("#file", "report.ipynb")
    page.fill("#cron", "61 * * * *")
    page.get_by_role("button", name="Submit", exact=True).click()
    assert "'61 * * * *' is no cron expression" in page.locator("[role=alert]").inner_text()
    assert page.locator("#file").input_value() == "report.ipynb"
    page.fill("#cron", "30 2 * * 1-5")
    page.get_by_role("button", name="Submit", exact=True).click()
    assert page.locator("[role=status].saved").inner_text() == "The schedule is set."
    (schedule,) = cloud.ask("pool", "acme-owner", "GET", "api/schedules")
    assert (schedule["kind"], schedule["cron"], schedule["zone"]) == ("notebook", "30 2 * * 1-5", "Asia/Seoul")
    checked(page, NARROW["width"])
    page.get_by_role("button", name="Run report.ipynb no more").click()
    page.wait_for_selector("text=The schedule is removed.")
    assert cloud.ask("pool", "acme-owner", "GET", "api/schedules") == []
    assert [one for one in mishaps(page) if "400" not in one] == []
    context.close()


def test_nobody_opens_the_job_of_somebody_else(cloud: Installation, hub: Hub) -> None:
    job = cloud.ask("pool", "acme-member", "POST", "api/jobs", json={"kind": "script", "file": "train.py"})["id"]
    for who, status in (("globex-owner", httpx.codes.NOT_FOUND), ("acme-member", httpx.codes.OK)):
        headers = {"Authorization": f"token {hub.tokens[who]}"}
        assert httpx.get(f"{cloud.urls['dashboards']}jobs/{job}", headers=headers).status_code == status
    cloud.ask("pool", "acme-member", "POST", f"api/jobs/{job}/cancel", json={})
