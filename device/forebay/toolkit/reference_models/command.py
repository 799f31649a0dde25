"""``forebay models``: reference models as ordinary PyTorch programs, to read, to run, and to measure a device with."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

from forebay.errors import ForebayError
from forebay.toolkit import run, table
from forebay.toolkit.reference_models import catalogue, throughput


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand with its own four."""
    command = commands.add_parser("models", help="reference models, to read and to run", description="Reference models in PyTorch.")
    actions = command.add_subparsers(title="actions", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="list all models", description="Lists all models, and the memory that each one takes.")
    listing.add_argument("--json", action="store_true", help="print JSON instead of a table")
    listing.set_defaults(perform=perform_list)
    getting = actions.add_parser("get", help="copy a model's program", description="Copies a model's program, and what it needs.")
    getting.add_argument("name", help="as `forebay models list` shows it")
    getting.add_argument("folder", nargs="?", type=Path, default=Path(), help="where to; this folder without it")
    getting.set_defaults(perform=perform_get)
    running = actions.add_parser(
        "run",
        help="train a model on a virtual device",
        description="Trains a model, as `forebay run` runs a script, and tells the loss of each step.",
        usage="forebay models run [-h] [--flavor NAME] model [--steps N] [--batch N] [--seed N] [--device DEVICE] [--json]",
    )
    running.add_argument("--flavor", metavar="NAME", help="flavor of the device; see `forebay flavor list`")
    running.add_argument("name", metavar="model", help="as `forebay models list` shows it")
    running.add_argument("arguments", nargs=argparse.REMAINDER, help="given to the model's program; --help there shows all")
    running.set_defaults(perform=perform_run)
    throughput.add_to(actions)


def perform_list(arguments: argparse.Namespace) -> int:
    """Prints the models."""
    found = list(catalogue.models().values())
    if arguments.json:
        rows = [{"name": one.name, "about": one.about, "memory_bytes": one.memory_bytes, "program": str(one.program)} for one in found]
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
    else:
        cells = [[one.name, table.memory(one.memory_bytes), one.about] for one in found]
        sys.stdout.write(table.render(["Model", "Memory", "What it does"], cells) + "\n")
    return 0


def perform_get(arguments: argparse.Namespace) -> int:
    """Copies the files of a model; none where one is there that says something else."""
    model = catalogue.model(arguments.name)
    files = {path: arguments.folder / path.name for path in model.files()}
    for path, copy in files.items():
        if copy.exists() and (not copy.is_file() or copy.read_bytes() != path.read_bytes()):
            raise ForebayError(f"{copy} is there already, and is another file; nothing is copied. Name another folder.")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for path, copy in files.items():
        shutil.copyfile(path, copy)
    names = ", ".join(sorted(path.name for path in files))
    sys.stdout.write(f"{names}\nRun it with: forebay run {arguments.folder / model.program.name}\n")
    return 0


def perform_run(arguments: argparse.Namespace) -> int:
    """Becomes the model's program."""
    program = str(catalogue.model(arguments.name).program)
    return run.perform(argparse.Namespace(flavor=arguments.flavor, module=False, program=program, arguments=arguments.arguments))
