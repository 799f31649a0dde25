"""``forebay update``: brings the environment that it is in to the release that the pool's operator publishes, and back."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from forebay.errors import ForebayError, PoolRefused
from forebay.service import CERTIFICATES_VARIABLE, Service
from forebay.toolkit import pool
from forebay.toolkit.release.packages import ExchangeError, Packages, Wheel, order

DESCRIPTION = """\
Brings forebay, and what belongs to it, in the environment that this command is in to the newest release of an index page of wheels: the one
that your pool's operator publishes, or --index.
"""
PROTOCOL = re.compile(r"^PROTOCOL = (\d+)", re.MULTILINE)
NOT_FOUND = 404
ABSENT = (404, 410)
CHANGES = "CHANGES.md"
CONSTRAINTS = "constraints.txt"
BESIDE_BYTES_MAX = 256 * 1024
CHANGES_LINES_SHOWN = 30
READ_SECONDS_MAX = 10


@dataclass(frozen=True)
class Offer:
    """What a pool says of people's environments."""

    protocol: int | None
    index: str | None


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand."""
    command = commands.add_parser("update", help="bring this environment to the operator's release, or back", description=DESCRIPTION)
    command.add_argument("--index", metavar="URL", help="index page or folder of wheels, as `make release` lays one")
    command.add_argument("--check", action="store_true", help="only say what would change")
    command.add_argument("--rollback", action="store_true", help="go back to what was there before the last update")
    command.set_defaults(perform=perform)


def perform(arguments: argparse.Namespace) -> int:
    """Updates, or goes back."""
    environment = Packages(Path(sys.prefix))
    environment.check_writable()
    if arguments.rollback:
        before = environment.put_back()
        sys.stdout.write(f"{environment.prefix} has forebay {before.version} again.\n{AFTERWARDS}\n")
        return 0
    service = pool.remote()
    offer = Offer(None, None) if service is None else _offer(service)
    index = arguments.index or offer.index
    if index is None:
        raise ForebayError("No index page of wheels is known: the pool names none (its setting wheels_url); give one with --index.")
    with tempfile.TemporaryDirectory() as folder:
        update(environment, _Index(index, Path(folder)), service, offer, arguments.check)
    return 0


AFTERWARDS = "Programs that start from now on have it; a notebook when its kernel is restarted."


def update(environment: Packages, index: _Index, service: Service | None, offer: Offer, check_only: bool) -> None:
    """Raises ForebayError, before anything is changed or with all as it was."""
    before, newest = environment.version(), index.newest(environment)
    if order(newest.version) <= order(before):
        sys.stdout.write(f"{environment.prefix} has forebay {before}, and {index.address} has nothing newer.\n")
        return
    wheels = index.wheels(environment, newest.version)
    environment.check(wheels)
    if service is not None and offer.protocol is not None:
        _check_protocol(wheels, service, offer.protocol)
    wanted, options = environment.wanted(wheels), [*index.options, *index.tested]
    changes, here = environment.resolve(wanted, options), environment.installed()
    sys.stdout.write(f"{environment.prefix}: forebay {before} -> {newest.version}\n")
    for name, version in sorted(changes.items()):
        sys.stdout.write(f"  {name} {here[name].version if name in here else '(new)'} -> {version}\n")
    sys.stdout.write(index.changes())
    if check_only:
        sys.stdout.write("Nothing was changed.\n")
        return
    sys.stdout.flush()
    environment.exchange(wanted, options, changes)
    sys.stdout.write(f"Updated. {AFTERWARDS}\n`forebay update --rollback` goes back.\n")


def _offer(service: Service) -> Offer:
    try:
        answer = service.get("api/release")
    except PoolRefused as error:
        if error.status == NOT_FOUND:  # a pool of a release before it told this
            return Offer(None, None)
        raise
    return Offer(int(answer["protocol"]), answer["index"])


def _check_protocol(wheels: Mapping[str, Wheel], service: Service, theirs: int) -> None:
    with zipfile.ZipFile(wheels["forebay-wire"].path) as archive:
        found = PROTOCOL.search(archive.read("forebay_wire/messages.py").decode())
    if found is None or int(found[1]) != theirs:
        what = f"forebay {wheels['forebay-wire'].version} speaks protocol {found[1] if found else 'unknown'}"
        raise ForebayError(f"{what}, and the pool at {service.url} {theirs}: programs would be refused. Nothing was changed.")


@dataclass(frozen=True)
class _Index:
    """A page of links to wheels, or a folder of them. Ours are fetched from there alone, whatever other indices have by their names."""

    address: str
    folder: Path

    @property
    def options(self) -> list[str]:
        """For pip."""
        return ["--find-links", self.address, *_authority()]

    @property
    def tested(self) -> list[str]:
        """For pip: the versions of others' packages that the release was tested with, where it says. Raises ExchangeError."""
        try:
            place, text = self._beside(CONSTRAINTS)
        except (OSError, ValueError) as error:
            raise ExchangeError(f"{CONSTRAINTS} of {self.address} cannot be read ({error}). Nothing was changed.") from None
        if not text:
            return []
        file = self.folder / CONSTRAINTS
        file.write_text(text, encoding="utf-8")
        sys.stdout.write(f"Others' packages are at the versions in {place}.\n")
        return ["--constraint", str(file)]

    def newest(self, environment: Packages) -> Wheel:
        """Of ``forebay``. Raises ExchangeError."""
        return self._fetch(environment, "forebay")["forebay"]

    def wheels(self, environment: Packages, version: str) -> dict[str, Wheel]:
        """Those of a release, for what is installed of ours. Raises ExchangeError."""
        return self._fetch(environment, *(f"{name}=={version}" for name in environment.ours()))

    def _fetch(self, environment: Packages, *names: str) -> dict[str, Wheel]:
        words = ("download", "--quiet", "--no-index", "--no-deps", "--only-binary", ":all:", "--dest", str(self.folder))
        try:
            environment.pip(*words, *self.options, *names)
        except ExchangeError as error:
            raise ExchangeError(f"{self.address} does not have it: {error}") from None
        return {wheel.name: wheel for wheel in map(Wheel, self.folder.glob("*.whl"))}

    def changes(self) -> str:
        """The beginning of what the release says of itself, and where all of it is; nothing where it says nothing."""
        with contextlib.suppress(OSError, ValueError):
            place, text = self._beside(CHANGES)
            lines = text.strip().splitlines()
            rest = f"… {len(lines) - CHANGES_LINES_SHOWN} more lines in {place}\n" if len(lines) > CHANGES_LINES_SHOWN else ""
            return "\n".join(lines[:CHANGES_LINES_SHOWN]) + f"\n{rest}" if lines else ""
        return ""

    def _beside(self, name: str) -> tuple[str, str]:
        """The address and the text of a file that lies beside the page, or in the folder; no text where there is none.

        Raises OSError, ValueError."""
        if urlsplit(self.address).scheme in ("http", "https"):
            url = urljoin(self.address, name)
            try:
                with urllib.request.urlopen(url, timeout=READ_SECONDS_MAX) as answer:  # noqa: S310 http(s) alone
                    return url, _text(answer.read(BESIDE_BYTES_MAX + 1))
            except urllib.error.HTTPError as error:
                if error.code in ABSENT:
                    return url, ""
                raise
        path = Path(self.address)
        file = (path if path.is_dir() else path.parent) / name
        return str(file), _text(file.read_bytes()) if file.exists() else ""


def _text(content: bytes) -> str:
    """Raises ValueError."""
    if len(content) > BESIDE_BYTES_MAX:
        raise ValueError(f"it has more than {BESIDE_BYTES_MAX} bytes")
    return content.decode("utf-8")


def _authority() -> list[str]:
    """The certificates that this process trusts, for pip too, which has a variable of its own."""
    given = os.environ.get(CERTIFICATES_VARIABLE)
    return ["--cert", given] if given and "PIP_CERT" not in os.environ else []
