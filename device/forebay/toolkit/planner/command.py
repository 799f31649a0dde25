"""``forebay plan``: how a script's step would be spread over several devices, without any device."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from forebay.errors import ForebayError
from forebay.toolkit import flavor, pool, table
from forebay.toolkit.planner.machine import DEFAULT_MODEL, GIB, MODELS, Machine, network_of

if TYPE_CHECKING:
    from forebay.toolkit.planner.recorder.recording import Recording

DESCRIPTION = """\
Runs a Python program on a null device, which computes nothing, until its training step has come three times, ends it, and plans
from the recorded calls how the step would be spread over several devices: memory of each, time and traffic by part, what was chosen and
why. No GPU, pool or worker takes part. What is read of the device is zeros; weights that are made on cuda:0 take no memory here.
"""
ITERATIONS_DEFAULT, SECONDS_DEFAULT, PER_HOST_DEFAULT = 3, 300.0, 8
DEVICES_MAX, TERMINAL_SECONDS = 65_536, 0.2


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand."""
    command = commands.add_parser(
        "plan",
        help="plan a script's training step for several devices, without any",
        description=DESCRIPTION,
        usage="forebay plan [options] (script.py | -m module | --stream FILE) [arguments ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--devices", type=int, metavar="N", help="how many; without it as many as your flavor's")
    command.add_argument(
        "--device", metavar="MODEL", help=f"{', '.join(model.name for model in MODELS.values())}; else your flavor's, or {DEFAULT_MODEL}"
    )
    command.add_argument("--memory", metavar="SIZE", help="of each device, as 64GiB; else the model's")
    command.add_argument("--per-host", type=int, default=PER_HOST_DEFAULT, metavar="N", help="devices of one host (%(default)s)")
    command.add_argument(
        "--network", type=Path, metavar="FILE", help="measured latency and bandwidth as JSON; else assumed ones, which are told"
    )
    command.add_argument("--rows", type=int, metavar="N", help="rows of the batch, where they are not found")
    command.add_argument(
        "--iterations", type=int, default=ITERATIONS_DEFAULT, metavar="N", help="steps after which the program is ended (%(default)s)"
    )
    command.add_argument(
        "--seconds", type=float, default=SECONDS_DEFAULT, metavar="S", help="how long it may take until then (%(default)s)"
    )
    command.add_argument(
        "--stream", type=Path, metavar="FILE", help="plan from what was recorded there; record it there first if there is no such file"
    )
    command.add_argument("--json", action="store_true", help="write the plan as JSON")
    command.add_argument("--html", type=Path, metavar="FILE", help="also write it there as a page")
    command.add_argument("-m", dest="module", action="store_true", help="what follows is a module's name, as in `python -m`")
    command.add_argument("program", nargs="?", help="the script, or the module after -m")
    command.add_argument("arguments", nargs=argparse.REMAINDER, help="given to the program as they are")
    command.set_defaults(perform=perform)


def perform(arguments: argparse.Namespace) -> int:
    """Records, plans, and writes. Raises ForebayError."""
    from forebay.toolkit.planner import analysis, choice, page, profile, report
    from forebay.toolkit.planner.calls import CallShapes
    from forebay.toolkit.planner.iteration import IterationFinder

    machine = machine_of(arguments)
    recorded = _recorded(arguments)
    shapes = CallShapes(recorded.operators)
    finder = IterationFinder(recorded.events, shapes)
    finder.finish()
    if finder.iteration is None:
        raise ForebayError(
            "No training step was found: no upload came again and again between which the same calls were made and weights changed. "
            "A batch must be made on the host and moved to cuda:0 in each step, and at least two steps must be alike."
        )
    step = analysis.analyse(recorded.events, finder.iteration, shapes, arguments.rows)
    prepared = profile.prepare(step)
    plan = choice.choose(prepared, machine)
    if arguments.html is not None:
        arguments.html.write_text(page.html(prepared, plan, arguments.program or str(arguments.stream)), encoding="utf-8")
    if arguments.json:
        sys.stdout.write(json.dumps(report.as_json(prepared, plan), indent=2) + "\n")
    else:
        sys.stdout.write(report.text(prepared, plan))
    return 0


def _recorded(arguments: argparse.Namespace) -> Recording:
    """The stream of a file that is there, else of the program, kept in the file that is wanted."""
    from forebay.toolkit.planner.recorder import recording

    if arguments.stream is not None and arguments.stream.exists():
        return recording.load(arguments.stream)
    from forebay.toolkit.planner.recorder import script_run

    if arguments.program is None:
        missing = f"there is no file {arguments.stream}, so " if arguments.stream is not None else ""
        raise ForebayError(f"Nothing to plan: {missing}give a script's path, or -m and a module's name.")
    if not arguments.module and not Path(arguments.program).exists():
        raise ForebayError(f"There is no file {arguments.program}; give a script's path, or -m and a module's name.")
    for name, least in (("iterations", 2), ("seconds", 1)):
        if getattr(arguments, name) < least:
            raise ForebayError(f"--{name} is {getattr(arguments, name):g}; it must be at least {least}.")
    program = ["-m", arguments.program] if arguments.module else [arguments.program]
    command = [sys.executable, *program, *arguments.arguments]
    recorded = script_run.record(command, arguments.iterations, arguments.seconds, _progress(arguments.iterations))
    if arguments.stream is not None:
        recorded.save(arguments.stream)
    return recorded


def _progress(wanted: int) -> Callable[[int, int], None]:
    """Writes a line on a terminal, now and then."""
    if not sys.stderr.isatty():
        return lambda iterations, calls: None
    last = [0.0]

    def show(iterations: int, calls: int) -> None:
        if time.monotonic() - last[0] >= TERMINAL_SECONDS or iterations >= wanted:
            last[0] = time.monotonic()
            end = "\n" if iterations >= wanted else ""
            sys.stderr.write(f"\rrecording: {iterations} of {table.counted(wanted, 'step')} alike, {table.counted(calls, 'call')}{end}")
            sys.stderr.flush()

    return show


def machine_of(arguments: argparse.Namespace) -> Machine:
    """What is planned for: what is given, else what the user's flavor is served by. Raises ForebayError."""
    devices, name, part_bytes = arguments.devices, arguments.device, None
    if devices is None:
        devices, found, part_bytes = _of_flavor()
        name, part_bytes = name or found, part_bytes if name is None else None
    model = MODELS.get((name or DEFAULT_MODEL).lower())
    if model is None:
        raise ForebayError(
            f"There is no model {name!r}; there are {', '.join(one.name for one in MODELS.values())}. Give --memory for another's."
        )
    for value, option in ((devices, "--devices"), (arguments.per_host, "--per-host"), (arguments.rows or 1, "--rows")):
        if not 1 <= value <= DEVICES_MAX:
            raise ForebayError(f"{option} is {value}; it must be from 1 to {DEVICES_MAX:,}.")
    memory = min(model.memory_bytes, part_bytes or model.memory_bytes) if arguments.memory is None else _bytes_of(arguments.memory)
    network = model.network if arguments.network is None else network_of(arguments.network)
    return Machine(devices, model, memory, arguments.per_host, network)


def _bytes_of(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(GiB|GB|MiB|MB|TiB)?", text.strip(), re.IGNORECASE)
    units = {"gib": GIB, "gb": 10**9, "mib": 1 << 20, "mb": 10**6, "tib": 1 << 40, None: GIB}
    size = int(float(found[1]) * units[found[2].lower() if found[2] else None]) if found else 0
    if not 1 << 20 <= size <= 1 << 50:
        raise ForebayError(f"--memory is {text!r}; it must be a size like 64GiB, from 1 MiB on.")
    return size


def _of_flavor() -> tuple[int, str, int]:
    """Devices, their model, and the bytes of each, that serve the flavor which the user chose at the pool."""
    service = pool.remote()
    if service is None:
        raise ForebayError("How many devices? Give --devices N; without a pool there is no flavor to take them from.")
    chosen = pool.chosen_flavor(service)
    if chosen is None:
        raise ForebayError("How many devices? Give --devices N, or choose a flavor (`forebay flavor set NAME`).")
    row = flavor.row_of(chosen)
    for way in row.get("equivalents", ()):
        if str(way["model"]).lower() in MODELS:
            return int(way["count"]), str(way["model"]), int(row["memory_bytes"]) // int(way["count"])
    raise ForebayError(f"The flavor {chosen} is served by no model that is known here; give --devices N and --device MODEL.")
