"""``forebay models bench``: how many samples a second each model trains on each flavor."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from forebay.devices import DEVICES_VARIABLE
from forebay.errors import ForebayError
from forebay.service import TOKEN_VARIABLE, URL_VARIABLE
from forebay.toolkit import flavor, pool, table
from forebay.toolkit.reference_models import catalogue

STEPS_DEFAULT = 20


@dataclass(frozen=True)
class Measurement:
    """What came of training a model on a flavor."""

    model: str
    flavor: str
    steps: int
    batch: int | None = None
    samples_per_second: float | None = None
    peak_memory_bytes: int | None = None
    fault: str | None = None
    """Why there are no figures."""


def add_to(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the action."""
    command = actions.add_parser(
        "bench",
        help="measure the models on the flavors",
        description="Trains models on each flavor that can be had, one after the other, and tells how many samples a second it was.",
    )
    command.add_argument("names", nargs="*", metavar="model", help="as `forebay models list` shows them; all without any")
    command.add_argument("--flavor", metavar="NAME", action="append", help="this one, and others where it is said again; all without it")
    command.add_argument("--steps", type=int, default=STEPS_DEFAULT, metavar="N", help="training steps of each (%(default)s)")
    command.add_argument("--json", action="store_true", help="print JSON instead of a table")
    command.set_defaults(perform=perform)


def perform(arguments: argparse.Namespace) -> int:
    """Measures, and prints; the exit status is 1 where a model did not train on a flavor. Raises ForebayError."""
    models = [catalogue.model(name) for name in arguments.names] or list(catalogue.models().values())
    if arguments.steps < 1:
        raise ForebayError(f"--steps is {arguments.steps}; it must be at least 1.")
    with pool.remote_or_own() as service:
        own = {} if pool.remote() else {URL_VARIABLE: service.url, TOKEN_VARIABLE: service.token}
        flavors = _flavors({str(row["name"]): row for row in pool.rows(service, "api/flavors")}, arguments.flavor)
        found = [_measure(model, name, arguments.steps, own) for name in flavors for model in models]
    if arguments.json:
        sys.stdout.write(json.dumps([asdict(one) for one in found], indent=2) + "\n")
    else:
        sys.stdout.write(text(found) + "\n")
    return int(any(one.fault for one in found))


def _flavors(there: Mapping[str, flavor.Row], wanted: Sequence[str] | None) -> list[str]:
    """What is to be measured: what is wanted, else what can be had. Raises ForebayError."""
    had = [name for name, row in there.items() if row.get("servable")]
    for name in wanted or ():
        if name not in there:
            raise ForebayError(flavor.unknown(name, list(there)))
        if name not in had:
            raise ForebayError(str(there[name].get("reason") or f"{name}: no device serves it."))
    if not had:
        raise ForebayError("No flavor can be had; `forebay flavor list --all` says why.")
    return list(dict.fromkeys(wanted or had))


def _measure(model: catalogue.ReferenceModel, name: str, steps: int, own: Mapping[str, str]) -> Measurement:
    """Trains the model in a process of its own; its waits for a device are told as they come."""
    sys.stderr.write(f"forebay: {model.name} on {name} …\n")
    command = [sys.executable, str(model.program), "--json", "--device", "cuda", "--steps", str(steps)]
    environment = {**os.environ, **own, DEVICES_VARIABLE: name}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        return Measurement(model.name, name, steps, fault=said[-1].strip() if said else f"ended with status {done.returncode}")
    figures = json.loads(done.stdout)
    return Measurement(model.name, name, steps, figures["batch"], figures["samples_per_second"], figures["peak_memory_bytes"])


def text(found: Sequence[Measurement]) -> str:
    """A row for each model and a column for each flavor, in samples per second; below it why some are missing."""
    names, flavors = (list(dict.fromkeys(getattr(one, of) for one in found)) for of in ("model", "flavor"))
    cells = {(one.model, one.flavor): one for one in found}
    rows = [[name, *(_cell(cells[name, flavor]) for flavor in flavors)] for name in names]
    faults = [f"  {one.model} on {one.flavor}: {one.fault}" for one in found if one.fault]
    lines = [table.render(["Samples per second", *flavors], rows), *(["", "Did not train:", *faults] if faults else [])]
    return "\n".join(lines)


def _cell(one: Measurement) -> str:
    return "-" if one.samples_per_second is None else f"{one.samples_per_second:,.1f}"
