"""What runs of jobs print is bounded in bytes, however it is cut into pieces, and nobody's is dropped for what another one prints."""

from __future__ import annotations

from dataclasses import replace

import pytest
from forebay_pool.model import jobs as decisions
from forebay_pool.model.jobs import Job, JobLimits, Program
from forebay_pool.store.database import Store
from forebay_pool.store.job_output import ROW_BYTES, Piece
from forebay_pool.store.jobs import JobStore
from sqlalchemy import event

NOW = 1_700_000_000 * 10**9
KEY = "a" * 32
PROGRAM = Program("script", "train.py", (), "", "train.py", None, 9, None)
LIMITS = JobLimits(9, 9, 999, 9, 999, 2_000, 3_000, 5_000, 14_000)


@pytest.fixture
def jobs(store: Store) -> JobStore:
    return JobStore(store, LIMITS)


def begin(jobs: JobStore, number: int) -> None:
    jobs.change(number, lambda one: decisions.begun(decisions.started(one, NOW), KEY, NOW))


def run_of(jobs: JobStore, user: str = "ada") -> int:
    made = jobs.add("acme", user, PROGRAM, NOW)
    begin(jobs, made.id)
    return made.id


def heard(job: Job) -> Job:
    return decisions.heard(job, KEY, NOW)


def say(jobs: JobStore, number: int, *texts: str, first: int = 1) -> bool:
    return jobs.append(number, heard, [Piece(first + place, text) for place, text in enumerate(texts)])


def held(jobs: JobStore, number: int, attempt: int = 1) -> int:
    """Counted of what is really there."""
    return sum(ROW_BYTES + len(piece.text.encode()) for piece in jobs.output(number, attempt, 0))


def texts(jobs: JobStore, number: int, attempt: int = 1) -> list[str]:
    return [piece.text for piece in jobs.output(number, attempt, 0)]


def test_empty_pieces_are_nothing_and_cost_the_database_no_row(jobs: JobStore, store: Store) -> None:
    number = run_of(jobs)
    statements: list[str] = []
    event.listen(store.engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    assert not any(say(jobs, number, *[""] * 64, first=1 + 64 * turn) for turn in range(10))
    assert not [one for one in statements if one.lower().startswith(("insert", "delete"))]
    assert say(jobs, number, "", "one", "", first=700)
    assert jobs.output(number, 1, 0) == [Piece(701, "one")]


def test_of_a_long_output_the_end_is_kept_and_a_line_says_that_the_beginning_is_not(jobs: JobStore) -> None:
    number = run_of(jobs)
    for place in range(60):
        say(jobs, number, f"{place:04}" * 10, first=place + 1)
        assert held(jobs, number) <= LIMITS.output_run_bytes_max
    found = jobs.output(number, 1, 0)
    assert "earlier output was dropped here, since the output of a run is kept up to 2000 bytes" in found[0].text
    assert [piece.number for piece in found] == list(range(found[0].number, 61)), "no gap"
    assert all(piece.text == f"{piece.number - 1:04}" * 10 for piece in found[1:])
    assert len([text for text in texts(jobs, number) if "dropped" in text]) == 1
    assert jobs.output(number, 1, 59) == found[-1:]


@pytest.mark.parametrize("text", ["x", "\U0001f600", "x" * 900, "\U0001f600" * 200])
def test_bytes_count_and_rows_do_too_however_small_the_pieces_are(jobs: JobStore, text: str) -> None:
    number = run_of(jobs)
    for turn in range(4):
        say(jobs, number, *[text] * 40, first=1 + 40 * turn)
    assert held(jobs, number) <= LIMITS.output_run_bytes_max
    assert texts(jobs, number)[-1] == text, "the newest is never dropped"


def test_the_earlier_runs_of_a_job_go_first(jobs: JobStore) -> None:
    number = run_of(jobs)
    for attempt in (1, 2, 3):
        say(jobs, number, *["x" * 400] * 4)
        if attempt < 3:
            jobs.change(number, lambda one: decisions.gone(decisions.lost(one, "silent", NOW)))
            begin(jobs, number)
    assert sum(held(jobs, number, attempt) for attempt in (1, 2, 3)) <= LIMITS.output_job_bytes_max
    assert len(texts(jobs, number, 1)) == 1
    assert "the output of a job is kept up to 3000 bytes" in texts(jobs, number, 1)[0]
    assert texts(jobs, number, 3) == ["x" * 400] * 4


def test_the_oldest_jobs_of_a_user_go_first_and_nobody_elses(jobs: JobStore) -> None:
    other = run_of(jobs, "ben")
    say(jobs, other, *["b" * 400] * 4)
    mine = [run_of(jobs) for _ in range(8)]
    for number in mine:
        say(jobs, number, *["x" * 400] * 4)
    assert sum(held(jobs, number) for number in mine) <= LIMITS.output_user_bytes_max
    assert texts(jobs, mine[-1]) == ["x" * 400] * 4
    assert all("the output of a user is kept" in texts(jobs, number)[0] for number in mine[:4])
    assert texts(jobs, other) == ["b" * 400] * 4


def test_a_full_installation_drops_the_oldest_of_those_who_hold_most(jobs: JobStore) -> None:
    little = run_of(jobs, "ada")
    say(jobs, little, "little, and the oldest of all")
    much = {user: [run_of(jobs, user) for _ in range(3)] for user in ("ben", "cyd", "dan", "eve")}
    for user, numbers in much.items():
        for number in numbers:
            say(jobs, number, *[user * 100] * 4)
    everything = [little, *(number for numbers in much.values() for number in numbers)]
    assert sum(held(jobs, number) for number in everything) <= LIMITS.output_bytes_max
    assert texts(jobs, little) == ["little, and the oldest of all"]
    dropped = [user for user, numbers in much.items() if "this installation" in texts(jobs, numbers[0])[0]]
    assert len(dropped) >= 2, "several who hold much lose a part"
    assert all(texts(jobs, numbers[-1]) == [user * 100] * 4 for user, numbers in much.items())


def test_a_run_that_says_again_and_again_that_it_waits_for_a_budget_has_its_user_told_once(store: Store) -> None:
    jobs = JobStore(store, LIMITS, tells=True)
    number = run_of(jobs)
    for _ in range(5):
        jobs.append(number, heard, [], waits=True)
    assert [body["kind"] for _, body in jobs.notices()] == ["budget"]


def test_another_pool_knows_what_is_kept(jobs: JobStore, store: Store) -> None:
    numbers = [run_of(jobs, f"user-{place}") for place in range(8)]
    for number in numbers[:-1]:
        say(jobs, number, *["x" * 420] * 4)
    successor = JobStore(store, replace(LIMITS, output_bytes_max=6_000))
    say(successor, numbers[-1], "one more")
    assert sum(held(jobs, number) for number in numbers) <= 6_000
    assert texts(jobs, numbers[-1]) == ["one more"]


def test_a_run_costs_the_writer_as_much_at_its_end_as_at_its_beginning(store: Store) -> None:
    much = {"output_run_bytes_max": 10**7, "output_job_bytes_max": 10**7, "output_user_bytes_max": 10**7, "output_bytes_max": 10**9}
    jobs = JobStore(store, replace(LIMITS, **much))
    number, counts = run_of(jobs), list[int]()
    read = [0]

    def count(connection: object, cursor: object, statement: str, *rest: object) -> None:
        read[0] += 1

    event.listen(store.engine, "before_cursor_execute", count)
    for turn in range(40):
        read[0] = 0
        say(jobs, number, *["x"] * 64, first=1 + 64 * turn)
        counts.append(read[0])
    assert len(set(counts[1:])) == 1
    assert len(jobs.output(number, 1, 64 * 39)) == 64
