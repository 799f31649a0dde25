"""``forebay run --image``: a command in a container of any image with stock PyTorch, whose ``cuda:0`` is a virtual device.

The client's packages are mounted, so the image needs none of them, and secrets are files: no command line tells them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import urlsplit

from forebay.devices import DEVICES_VARIABLE
from forebay.errors import ForebayError, NotConfigured
from forebay.service import (
    CERTIFICATES_VARIABLE,
    FLAVOR_VARIABLE,
    LOCAL,
    LOOPBACK_HOSTS,
    OUTSIDE_VARIABLE,
    PRIORITY_VARIABLE,
    TOKEN_VARIABLE,
    URL_VARIABLE,
    configured,
    service_at,
)
from forebay.toolkit.release.packages import EXTRA, NAME, canonical

ENGINES = ("docker", "podman")
PLACE = "/mnt/forebay"
"""In the container: below it are the client's packages and the settings."""
ENTRY = f"{PLACE}/client/forebay/toolkit/enter.sh"
PASSED = (FLAVOR_VARIABLE, PRIORITY_VARIABLE, DEVICES_VARIABLE)
IMAGES_OWN = {"torch"}
"""What the client asks for and every image has."""


def perform(arguments: argparse.Namespace) -> int:
    """Runs the command; its exit status. Raises ForebayError."""
    engine = next(filter(None, map(shutil.which, ENGINES)), None)
    if engine is None:
        raise ForebayError(f"--image needs a container engine: neither {' nor '.join(ENGINES)} is on PATH.")
    variables = settings_of(os.environ)
    if arguments.flavor:
        variables[FLAVOR_VARIABLE] = arguments.flavor
    with tempfile.TemporaryDirectory(prefix="forebay-image-") as name:
        folder = Path(name)
        lay_client(folder / "client")
        lay_settings(folder / "settings", variables, os.environ.get(CERTIFICATES_VARIABLE))
        words = [*_options(engine, folder, variables[URL_VARIABLE]), *(f"--volume={volume}" for volume in arguments.volume)]
        return _run([engine, "run", *words, arguments.image, ENTRY, arguments.program, *arguments.arguments])


def settings_of(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that the container gets. Raises NotConfigured."""
    url = configured(environment)
    if url is None or url == LOCAL:
        raise NotConfigured(f"--image needs a service: set {URL_VARIABLE} and {TOKEN_VARIABLE}; no image has a pool of its own.")
    passed = {name: environment[name] for name in PASSED if environment.get(name)}
    service = service_at(url, environment)
    return {URL_VARIABLE: url, TOKEN_VARIABLE: service.token, **({OUTSIDE_VARIABLE: "1"} if service.outside else {}), **passed}


def lay_client(folder: Path) -> None:
    """Copies the client's packages, and those of others that it needs, but for PyTorch."""
    left, done = ["forebay"], set(IMAGES_OWN)
    while left:
        name = left.pop()
        if name in done:
            continue
        done.add(name)
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue  # asked for on other systems alone
        _copy(found, folder)
        left += [canonical(match[0]) for line in found.requires or [] if not EXTRA.search(line) and (match := NAME.match(line))]


def _copy(found: Distribution, folder: Path) -> None:
    for file in found.files or []:
        if ".." not in file.parts and "__pycache__" not in file.parts:
            target = folder / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(str(found.locate_file(file)), target)


def lay_settings(folder: Path, variables: Mapping[str, str], authority: str | None) -> None:
    """A file for each variable, for nobody else to read."""
    folder.mkdir(mode=0o700)
    for name, value in variables.items():
        with open(folder / name, "x", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(value)
    if authority:
        shutil.copyfile(authority, folder / "ca.crt")


def _options(engine: str, folder: Path, url: str) -> list[str]:
    """Of ``docker run`` and ``podman run``: this folder under its own path, as who is here, and nothing that stays."""
    here = Path.cwd()
    rootless = Path(engine).name == "podman" and os.geteuid() != 0
    who = ["--userns=keep-id"] if rootless else [f"--user={os.geteuid()}:{os.getegid()}"]
    loopback = any(urlsplit(one.strip()).hostname in LOOPBACK_HOSTS for one in url.split(","))
    return [
        "--rm",
        "--interactive",
        *(["--tty"] if sys.stdin.isatty() and sys.stdout.isatty() else []),
        *who,
        *(["--network=host"] if loopback else []),
        "--security-opt=label=disable",  # where SELinux keeps containers from folders of the host
        f"--volume={folder / 'client'}:{PLACE}/client:ro",
        f"--volume={folder / 'settings'}:{PLACE}/settings:ro",
        f"--volume={here}:{here}",
        f"--workdir={here}",
        "--entrypoint=/bin/sh",
    ]


def _run(command: list[str]) -> int:
    """The engine hears Ctrl-C itself, as this terminal's; SIGTERM is passed on."""
    sys.stdout.flush()
    with subprocess.Popen(command) as process:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        return process.wait()
