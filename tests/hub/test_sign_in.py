"""Wrong passwords: who gives them waits longer each time, is told how long, and keeps nobody else out."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import httpx
from forebay_hub.sign_in import (
    ADDRESS_FREE,
    ADDRESS_WAIT_SECONDS_MAX,
    FORGET_SECONDS,
    KEYS_MAX,
    LOGIN_FREE,
    LOGIN_WAIT_SECONDS_MAX,
    GrowingDelay,
    SignInDelay,
    network_of,
)
from people_pages import sign_in


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def guess(pace: SignInDelay, clock: Clock, address: str, login: str, seconds: float) -> int:
    """How many wrong tries are made within that time by who asks as often as it pays."""
    end, made = clock.now + seconds, 0
    while clock.now < end:
        wait = pace.begin(address, login)
        made += wait == 0
        clock.now += wait or 0.05
    return made


def test_an_address_waits_twice_as_long_each_time_up_to_a_quarter_of_an_hour() -> None:
    clock = Clock()
    pace = SignInDelay(clock)
    waits = []
    for _ in range(20):
        waits.append(wait := pace.begin("192.0.2.1", f"login-{len(waits)}"))
        clock.now += wait
        if wait:
            assert pace.begin("192.0.2.1", f"login-{len(waits)}") == 0, "who waited as long as was said may try"
    assert waits == [0] * ADDRESS_FREE + [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, *[ADDRESS_WAIT_SECONDS_MAX] * 5]
    clock.now += FORGET_SECONDS + 1
    assert [pace.begin("192.0.2.1", "x") for _ in range(ADDRESS_FREE + 1)] == [0] * ADDRESS_FREE + [1]


def test_sixty_wrong_passwords_take_hours_and_not_four_seconds() -> None:
    clock = Clock()
    assert guess(SignInDelay(clock), clock, "192.0.2.1", "operator", 4) <= ADDRESS_FREE + 2
    assert guess(SignInDelay(clock), clock, "192.0.2.1", "operator", 86_400) < 120


def test_who_guesses_keeps_the_person_out_from_no_address_for_long_and_from_a_known_one_not_at_all() -> None:
    """A botnet tries one login without end."""
    clock = Clock()
    pace = SignInDelay(clock)
    assert pace.begin("198.51.100.7", "ada") == 0
    pace.passed("198.51.100.7", "ada")
    addresses = (f"203.0.113.{number % 250}" for number in itertools.count())
    made = sum(pace.begin(next(addresses), "ada") == 0 for _ in range(500))
    assert made < 40
    assert pace.begin("198.51.100.7", "ada") == 0, "where ada signed in before"
    assert 0 < pace.begin("198.51.100.8", "ada") <= LOGIN_WAIT_SECONDS_MAX
    clock.now += LOGIN_WAIT_SECONDS_MAX
    assert pace.begin("198.51.100.8", "ada") == 0
    assert pace.begin("198.51.100.9", "ben") == 0, "another login"


def test_a_right_password_frees_its_address_and_frees_nobody_who_guesses_that_login() -> None:
    clock, numbers = Clock(), itertools.count()
    pace = SignInDelay(clock)
    for _ in range(ADDRESS_FREE - 1):
        assert pace.begin("192.0.2.1", "ada") == 0
    assert pace.begin("192.0.2.1", "ada") == 0
    pace.passed("192.0.2.1", "ada")
    assert [pace.begin("192.0.2.1", "ada") for _ in range(ADDRESS_FREE + 1)][-1] == 1
    pace = SignInDelay(clock)
    while pace.begin(f"10.0.0.{(tried := next(numbers))}", "eve") == 0:
        assert tried <= LOGIN_FREE
    clock.now += LOGIN_WAIT_SECONDS_MAX
    assert pace.begin("192.0.2.1", "eve") == 0
    pace.passed("192.0.2.1", "eve")
    assert pace.begin("192.0.2.1", "eve") == 0 and pace.begin("10.0.0.99", "eve") > 0


def test_tries_at_the_same_time_count_each() -> None:
    pace = SignInDelay(Clock())
    assert sum(pace.begin("192.0.2.1", "ada") == 0 for _ in range(60)) == ADDRESS_FREE, "none has been answered"


def test_an_address_of_ipv6_is_a_customers_network_and_an_ipv4_one_inside_it_itself() -> None:
    assert network_of("2001:db8:1:2::a") == network_of("2001:db8:1:2:ffff::1") != network_of("2001:db8:1:3::a")
    assert network_of("::ffff:192.0.2.1") == network_of("192.0.2.1") == "192.0.2.1"
    assert network_of("fe80::1%eth0") == "fe80::/64" and network_of("") == ""


def test_what_is_remembered_is_bounded() -> None:
    pace: GrowingDelay[int] = GrowingDelay(1, 10.0, Clock())
    for key in range(KEYS_MAX + 5):
        pace.tried(key)
    assert pace.wait_seconds(4) == 0 and pace.wait_seconds(5) > 0


def test_the_sign_in_page_and_the_api_say_how_long_to_wait_and_another_address_signs_in(hub: Any) -> None:
    base = hub.api_url.removesuffix("/api")
    password = json.loads((hub.folder / "logins.json").read_text())["acme-member"]
    begun = time.monotonic()
    with httpx.Client(base_url=base, headers={"X-Forwarded-For": "10.7.0.1"}, timeout=60) as guesser:
        answers = [sign_in(guesser, "acme-member", f"wrong {number}") for number in range(12)]
        assert time.monotonic() - begun < 60
        assert [one.status_code for one in answers[:ADDRESS_FREE]] == [403] * ADDRESS_FREE
        refused = next(one for one in answers if one.status_code == 429)
        assert "Try again in" in refused.text and int(refused.headers["Retry-After"]) >= 1
        asked = {"auth": {"username": "acme-member", "password": password}}
        assert guesser.post("/api/users/acme-member/tokens", json=asked).status_code in (403, 429), "the API is no way around it"
        guesser.headers["Accept-Language"] = "ko"
        korean = next(one for number in range(9) if (one := sign_in(guesser, "acme-member", f"{number}")).status_code == 429)
        assert "다시 시도하세요" in korean.text
    with httpx.Client(base_url=base, headers={"X-Forwarded-For": "10.7.0.2"}, timeout=60) as person:
        assert sign_in(person, "acme-member", password).status_code == 302


def test_the_hubs_log_has_no_key_of_a_shared_notebook(hub: Any) -> None:
    key = "k3y-of-a-shared-notebook-0123456789"
    page = f"/services/dashboards/shared/7%3Fkey%3D{key}%26x%3D1"
    base = hub.api_url.removesuffix("/hub/api")
    twice = page.replace("%", "%25")
    for address in (f"/hub/login?next={page}", f"/hub/login?next={twice}", f"/hub/nothing?key={key}", f"/hub/x?a=1&token={key}"):
        httpx.get(f"{base}{address}", headers={"X-Forwarded-For": "10.7.0.3"}, timeout=60)
    log = hub.log.read_text()
    assert "[secret]" in log and "shared/7" in log and key not in log
