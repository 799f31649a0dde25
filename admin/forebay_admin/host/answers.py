"""What an installation on one host must be told: five questions, each with a default, or the same in a TOML file."""

from __future__ import annotations

import re
import socket
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from urllib.parse import urlsplit

from forebay.errors import ForebayError

LOGIN = re.compile(r"[a-z0-9][a-z0-9._+@-]{0,127}")
TENANT = re.compile(r"(?!tenant-)[a-z0-9][a-z0-9-]{0,62}")
"""Names of logins and tenants, as the hub takes them."""
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
HTTPS_PORT = 443
SQLITE = "sqlite"
WORKER_UIDS = "1879048192-1879113727"
"""Neither distributions nor systemd give them out, to containers either (https://systemd.io/UIDS-GIDS)."""
LETS_ENCRYPT = "https://acme-v02.api.letsencrypt.org/directory"
MAIL = re.compile(r"[^\s@\"]+@[^\s@\"]+")
COPIES_TO = re.compile(r"(rclone|restic):[^\s%'\"]+")
"""Of a unit's command line, where ``%`` and quotes mean something else."""
COPIES_WITH = re.compile(r"(settings|homes)(,(settings|homes))?")
UIDS = re.compile(r"([1-9][0-9]{3,9})-([1-9][0-9]{3,9})")
LISTENERS = 6
"""On the loopback interface: hub, proxy, pool, billing, pages, edge."""


class InitError(ForebayError):
    """A host that cannot be set up so; nothing was written."""


@dataclass(frozen=True)
class Answers:
    """``payer`` is TENANT/LOGIN, a first tenant and its owner. ``database`` is ``sqlite``, or ``postgresql+psycopg://USER@HOST`` of a
    server that has the databases ``forebay_hub``, ``forebay_pool`` and ``forebay_billing``. ``devices`` is ``found``, or ``cpu``: two for
    trying. ``worker_uids`` are FIRST-LAST of the numbers of which each worker has one. ``acme`` is the address by which an authority of
    ACME at ``acme_server`` knows who asks for certificates. Back-ups go to ``backup_to``, too, and with
    ``backup_with`` they have settings, or homes, beside databases.

    Asked are the first five; the others have what nearly everybody wants."""

    name: str
    operator: str = "operator"
    payer: str = "acme/acme-owner"
    database: str = SQLITE
    devices: str = "found"
    port: int = HTTPS_PORT
    first_port: int = 8801
    currency: str = "USD"
    certificate: str = ""
    key: str = ""
    acme: str = ""
    acme_server: str = LETS_ENCRYPT
    notebook: str = ""
    worker_uids: str = WORKER_UIDS
    backup_to: str = ""
    backup_with: str = ""

    def __post_init__(self) -> None:
        tenant, _, owner = self.payer.partition("/")
        uids = UIDS.fullmatch(self.worker_uids)
        server = urlsplit(self.database)
        checks = {
            f"name: {self.name!r} is no host name": NAME.fullmatch(self.name),
            f"operator: {self.operator!r} is no login; use small letters, digits and any of ._-+@": LOGIN.fullmatch(self.operator),
            f"payer: {self.payer!r} is not like acme/acme-owner": TENANT.fullmatch(tenant) and LOGIN.fullmatch(owner),
            f"payer: {owner} is the operator, who belongs to no tenant": owner != self.operator,
            "database: give sqlite, or postgresql+psycopg://USER@HOST without the name of a database": self.database == SQLITE
            or (server.scheme == "postgresql+psycopg" and server.netloc and server.path in ("", "/")),
            f"devices: {self.devices!r} is neither found nor cpu": self.devices in ("found", "cpu"),
            f"port: {self.port} is none": 0 < self.port < 2**16,
            f"first_port: {self.first_port} and the five after it are no free ports": 1024 <= self.first_port <= 2**16 - LISTENERS,
            "certificate and key go together": bool(self.certificate) == bool(self.key),
            f"acme: {self.acme!r} is no address of mail": not self.acme or MAIL.fullmatch(self.acme),
            f"acme: the authority asks at port {HTTPS_PORT}, and port is {self.port}": not self.acme or self.port == HTTPS_PORT,
            f"acme: {self.name!r} is no public name": not self.acme or "." in self.name.rstrip("0123456789."),
            "acme and certificate do not go together": not (self.acme and self.certificate),
            f"acme_server: {self.acme_server!r} is no address of an authority": re.fullmatch(r"https://[^\s\"]+", self.acme_server),
            f"backup_to: {self.backup_to!r} is not like rclone:REMOTE:PATH or restic:REPOSITORY": not self.backup_to
            or COPIES_TO.fullmatch(self.backup_to),
            f"backup_with: {self.backup_with!r} is not settings, homes, or settings,homes": not self.backup_with
            or COPIES_WITH.fullmatch(self.backup_with),
            f"worker_uids: {self.worker_uids!r} is not like {WORKER_UIDS}": uids and int(uids[1]) < int(uids[2]) < 2**31,
        }
        for sentence, good in checks.items():
            if not good:
                raise InitError(f"{sentence}.")

    @property
    def url(self) -> str:
        """Where browsers reach the installation."""
        return f"https://{self.name}" if self.port == HTTPS_PORT else f"https://{self.name}:{self.port}"

    @property
    def tenant(self) -> str:
        return self.payer.partition("/")[0]

    @property
    def owner(self) -> str:
        return self.payer.partition("/")[2]

    def database_of(self, service: str) -> str | None:
        """The URL of a service's database; None: SQLite in its own folder."""
        return None if self.database == SQLITE else f"{self.database.rstrip('/')}/forebay_{service}"

    @property
    def toml(self) -> str:
        """As a file of answers."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return "".join(f"{name} = {value if isinstance(value, int) else quoted(value)}\n" for name, value in values)


QUESTIONS = {
    "name": "Name of this host, as browsers reach it",
    "operator": "Login of the first operator",
    "payer": "First tenant and its owner's login",
    "database": "Database: sqlite, or postgresql+psycopg://USER@HOST",
    "devices": "Devices: found (this host's accelerators), or cpu (two for trying)",
}


def quoted(text: str) -> str:
    """A TOML string. Raises InitError."""
    if re.search(r"[\x00-\x1f\x7f]", text):
        raise InitError(f"{text!r} has characters that no setting has.")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def asked(ask: Callable[[str], str]) -> Answers:
    """Of a person, who may take the default with an empty line."""
    defaults = {field.name: field.default for field in fields(Answers)} | {"name": socket.getfqdn()}
    given = {name: ask(f"{text} [{defaults[name]}]: ").strip() or str(defaults[name]) for name, text in QUESTIONS.items()}
    return Answers(**given)  # type: ignore[arg-type] # the questions are all of texts


def read(file: Path) -> Answers:
    """Of a file. Raises InitError."""
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise InitError(f"{file} cannot be read ({error}).") from None
    kinds = {field.name: int if field.type == "int" else str for field in fields(Answers)}
    for name, value in content.items():
        if name not in kinds:
            raise InitError(f"{file}: {name} is no answer; known are {', '.join(kinds)}.")
        if type(value) is not kinds[name]:
            raise InitError(f"{file}: {name} must be {'a number' if kinds[name] is int else 'a text'}.")
    if "name" not in content:
        raise InitError(f"{file}: name is missing.")
    return Answers(**content)
