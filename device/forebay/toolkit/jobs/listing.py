"""``forebay jobs``: what was submitted, what it prints, and its end."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from forebay.errors import ForebayError, NotConfigured, PoolUnreachable
from forebay.service import URL_VARIABLE, Service
from forebay.toolkit import pool, table
from forebay.toolkit.jobs import costs, fetch

WAIT_SECONDS = 8
"""How long the pool holds a question for output that is not there yet; less than an answer may take."""
AWAY_SECONDS_MAX = 300.0
"""For so long a pool that does not answer is asked again by who follows."""
PAUSE_SECONDS = 2.0
WIDTH = 13
"""Of the names of what is told of a job, with the room after them."""
EXIT_FAILED = 1
EXIT_CANCELLED = 130
OVER = ("succeeded", "failed", "cancelled")

Row = Mapping[str, Any]


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand with its own."""
    command = commands.add_parser("jobs", help="list, follow and cancel jobs", description="Jobs and schedules that you submitted.")
    actions = command.add_subparsers(title="actions", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="list jobs, newest first", description="Lists your jobs, the newest first.")
    listing.add_argument("--everybody", action="store_true", help="all of the tenant's, for its owners; all there are, for operators")
    listing.add_argument("--limit", type=int, default=20, metavar="COUNT", help="how many (20)")
    listing.add_argument("--json", action="store_true", help="print JSON instead of a table")
    listing.set_defaults(perform=perform_list)
    for name, what, perform in (
        ("show", "all that is known of a job", perform_show),
        ("logs", "what a job printed", perform_logs),
        ("fetch", "write what a job left that brought its files", perform_fetch),
        ("cancel", "end a job, or have it never start", perform_cancel),
    ):
        action = actions.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
        action.add_argument("job", type=int, help="its number, as `forebay jobs list` shows it")
        action.set_defaults(perform=perform)
        if name == "show":
            action.add_argument("--json", action="store_true", help="print JSON instead of lines")
        if name == "fetch":
            fetch.add_to(action)
        if name == "logs":
            action.add_argument("-f", "--follow", action="store_true", help="go on until it is over; its end is the exit status")
            action.add_argument("--attempt", type=int, metavar="NUMBER", help="of which run; without it the newest")
    schedules = actions.add_parser("schedules", help="list what is run again and again", description="Lists your schedules.")
    schedules.add_argument("--json", action="store_true", help="print JSON instead of a table")
    schedules.set_defaults(perform=perform_schedules)
    removal = actions.add_parser("unschedule", help="have a schedule start nothing more", description="Removes a schedule; its jobs stay.")
    removal.add_argument("schedule", type=int, help="its number, as `forebay jobs schedules` shows it")
    removal.set_defaults(perform=perform_unschedule)


def service() -> Service:
    """Raises NotConfigured."""
    found = pool.remote()
    if found is None:
        raise NotConfigured(f"Jobs are run by a service: sign in with `forebay login`, or set {URL_VARIABLE} to your pool's address.")
    return found


def perform_list(arguments: argparse.Namespace) -> int:
    """Prints the jobs."""
    everybody = "&everybody=true" if arguments.everybody else ""
    rows = pool.rows(service(), f"api/jobs?limit={arguments.limit}{everybody}")
    found, problem = _costs(rows)
    if arguments.json:
        return _json(rows if found is None else [{**row, "costs": found[row["id"]]} for row in rows])
    if not rows:
        sys.stdout.write("There are no jobs; `forebay submit` makes one.\n")
        return 0
    sys.stdout.write(_table(rows, arguments.everybody, found) + "\n")
    if problem is not None:
        sys.stderr.write(f"forebay: what they cost is not known now: {problem}\n")
    return 0


def _costs(rows: Sequence[Row]) -> tuple[Mapping[int, Sequence[Row]] | None, ForebayError | None]:
    """Of runs, by job; without them jobs are listed all the same."""
    try:
        return costs.costs_of(rows), None
    except ForebayError as error:
        return None, error


def _table(rows: Sequence[Row], everybody: bool, found: Mapping[int, Sequence[Row]] | None) -> str:
    whose, cost = ["Tenant", "User"] if everybody else [], [] if found is None else ["Cost"]
    lines = [
        [str(row["id"]), *([row["tenant"], row["user"]] if everybody else []), row["name"], *_standing(row),
         *([] if found is None else [costs.total(found[row["id"]])])]
        for row in rows
    ]  # fmt: skip
    return table.render(["Job", *whose, "Name", "State", "Submitted", "Time", "Run", *cost], lines)


def _standing(row: Row) -> list[str]:
    return [str(row["state"]), time_of(row["created_at_ns"]), _lasted(row), str(row["attempt"])]


def _lasted(row: Row) -> str:
    """From the beginning of the first run to the end, or to now."""
    if row["started_at_ns"] is None:
        return "-"
    seconds = max(0, (row["ended_at_ns"] or time.time_ns()) - row["started_at_ns"]) // 10**9
    return f"{seconds // 3_600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def time_of(unix_ns: int) -> str:
    """In this process's time zone."""
    return datetime.fromtimestamp(unix_ns / 10**9).astimezone().strftime("%Y-%m-%d %H:%M %Z")


def perform_show(arguments: argparse.Namespace) -> int:
    """Prints a job."""
    asked = service()
    row = pool.row(asked, asked.get(f"api/jobs/{arguments.job}"), "state")
    if arguments.json:
        found, problem = _costs([row])
        if problem is not None:
            raise problem
        return _json(row if found is None else {**row, "costs": found[row["id"]]})
    program = " ".join([str(row["file"]), *map(str, row["arguments"])])
    lines = {
        "Job": f"{row['id']} ({row['name']})",
        "State": row["state"],
        "Why": row["sentence"],
        "Program": program,
        "Folder": f"~/{row['folder']}" if row.get("files") is None else "one of its own, with the files that were sent",
        "Flavor": row["flavor"] or "your choice",
        "Environment": row.get("environment"),
        "Submitted": time_of(row["created_at_ns"]),
        "Next run": None if row["state"] != "queued" else f"not before {time_of(row['not_before_ns'])}",
        "Started": None if row["started_at_ns"] is None else time_of(row["started_at_ns"]),
        "Ended": None if row["ended_at_ns"] is None else time_of(row["ended_at_ns"]),
        "Run": f"{row['attempt']} of at most {row['retries_max'] + 1}",
        "Schedule": row["schedule"],
        "In usage": row["label"],
        "Cost": "\n".join(costs.lines(row)).replace("\n", "\n" + WIDTH * " ") or None,
    }
    sys.stdout.writelines(f"{name + ':':<{WIDTH}}{value}\n" for name, value in lines.items() if value is not None)
    return 0


def perform_logs(arguments: argparse.Namespace) -> int:
    """Prints what a job printed."""
    asked = service()
    if arguments.follow:
        return follow(asked, arguments.job, arguments.attempt)
    after, over = 0, False
    while not over:
        answer = _output(asked, arguments.job, arguments.attempt, after, 0)
        _print(answer, after)
        over, after = not answer["pieces"], int(answer["next"])
    return 0


def follow(asked: Service, job: int, attempt: int | None = None) -> int:
    """Prints what the job prints, run after run, until it is over; the exit status says how it ended. Raises ForebayError."""
    after, shown, deadline = 0, attempt, time.monotonic() + AWAY_SECONDS_MAX
    while True:
        try:
            answer = _output(asked, job, shown, after, WAIT_SECONDS)
            deadline = time.monotonic() + AWAY_SECONDS_MAX
            _print(answer, after)
            shown, after = int(answer["attempt"]), int(answer["next"])
            if answer["over"]:
                row = pool.row(asked, asked.get(f"api/jobs/{job}"), "state")
                if row["state"] in OVER or attempt is not None:
                    return _end(row)
                if row["attempt"] > shown:
                    shown, after = int(row["attempt"]), 0
                    sys.stderr.write(f"forebay: run {shown} of job {job}\n")
        except PoolUnreachable:
            if time.monotonic() > deadline:
                raise
            time.sleep(PAUSE_SECONDS)


def _end(row: Row) -> int:
    why = f" {row['sentence']}" if row["sentence"] else ""
    sys.stderr.write(f"forebay: job {row['id']} {'is' if row['state'] == 'cancelled' else 'has'} {row['state']}.{why}\n")
    if row.get("files") is not None and row["state"] != "cancelled":
        sys.stderr.write(f"forebay: `forebay jobs fetch {row['id']}` brings what it wrote.\n")
    if row["state"] == "cancelled":
        return EXIT_CANCELLED
    status = row["exit_status"]
    return 0 if row["state"] == "succeeded" else status if isinstance(status, int) and 0 < status < 126 else EXIT_FAILED


def _output(asked: Service, job: int, attempt: int | None, after: int, wait_seconds: int) -> Row:
    of_run = "" if attempt is None else f"&attempt={attempt}"
    path = f"api/jobs/{job}/output?after={after}&wait_seconds={wait_seconds}{of_run}"
    return pool.row(asked, asked.get(path), "pieces")


def _print(answer: Row, after: int) -> None:
    pieces = answer["pieces"]
    if pieces and pieces[0]["number"] > after + 1:
        sys.stderr.write("forebay: the beginning of what follows is not kept\n")
    sys.stdout.write("".join(piece["text"] for piece in pieces))
    sys.stdout.flush()


def perform_fetch(arguments: argparse.Namespace) -> int:
    """Writes what a job left."""
    return fetch.fetch(service(), arguments.job, arguments.into or Path(f"job-{arguments.job}"))


def perform_cancel(arguments: argparse.Namespace) -> int:
    """Cancels a job."""
    asked = service()
    row = pool.row(asked, asked.post(f"api/jobs/{arguments.job}/cancel", {}), "state")
    ending = " It is being ended." if row["state"] == "cancelling" else ""
    sys.stdout.write(f"Job {row['id']} ({row['name']}) is cancelled.{ending}\n")
    return 0


def perform_schedules(arguments: argparse.Namespace) -> int:
    """Prints the schedules."""
    rows = pool.rows(service(), "api/schedules")
    if arguments.json:
        return _json(rows)
    if not rows:
        sys.stdout.write("There are no schedules; `forebay submit --cron` makes one.\n")
        return 0
    lines = [[str(row["id"]), row["name"], row["cron"], row["zone"], time_of(row["next_at_ns"]), _skipped(row)] for row in rows]
    sys.stdout.write(table.render(["Schedule", "Name", "Cron", "Zone", "Next", "Last skipped"], lines) + "\n")
    return 0


def _skipped(row: Row) -> str:
    return "-" if row["skipped_at_ns"] is None else time_of(row["skipped_at_ns"])


def perform_unschedule(arguments: argparse.Namespace) -> int:
    """Removes a schedule."""
    service().delete(f"api/schedules/{arguments.schedule}")
    sys.stdout.write(f"Schedule {arguments.schedule} is removed. Jobs that it started go on; `forebay jobs cancel` ends one.\n")
    return 0


def _json(value: object) -> int:
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0
