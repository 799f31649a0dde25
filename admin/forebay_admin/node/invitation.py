"""What a host must know to become a node: a file that the control host writes for it. It holds a private key."""

from __future__ import annotations

import ipaddress
import json
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from forebay.errors import ForebayError
from forebay_wire import torch_builds

from forebay_admin.host.answers import WORKER_UIDS

NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
"""What is a node's name to the pool, and the value of a label to Ray."""
LATER = {"worker_uids": WORKER_UIDS}
"""What invitations of earlier releases do not have, and what it is where nobody chose."""


class NodeError(ForebayError):
    """A host that cannot be a node so."""


@dataclass(frozen=True)
class Releases:
    """What must be the same on all hosts of a cluster: Forebay's release, Ray's, and the minor releases of Python and PyTorch."""

    forebay: str
    ray: str
    python: str
    torch: str

    @classmethod
    def here(cls) -> Releases:
        """Of this environment. An empty text: it is not installed."""
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        return cls(_version("forebay"), _version("ray"), python, torch_builds.release(torch_builds.installed_version() or ""))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


@dataclass(frozen=True)
class Invitation:
    """``address`` is the node's own, ``head`` the Ray cluster's HOST:PORT, ``pool`` the pool's public address. ``devices`` is ``found``, or
    ``cpu``: one for trying, which computes on the CPU; ``model`` is what the pool calls them, empty for what PyTorch does. ``worker_uids``
    are those of which each worker has one. ``authority``, ``certificate`` and ``key`` are the cluster's, as PEM; ``web_authority`` signed
    the pool's certificate, empty where systems know it."""

    name: str
    address: str
    head: str
    pool: str
    devices: str
    model: str
    switch: str
    worker_uids: str
    forebay: str
    ray: str
    python: str
    torch: str
    authority: str
    certificate: str
    key: str
    web_authority: str

    @property
    def releases(self) -> Releases:
        return Releases(self.forebay, self.ray, self.python, self.torch)

    @property
    def toml(self) -> str:
        """As a file; JSON's texts are TOML's, too."""
        head = "# Lets a host become a node of a Forebay cluster: keep it secret.\n"
        return head + "".join(f"{field.name} = {json.dumps(getattr(self, field.name))}\n" for field in fields(self))


def read(file: Path) -> Invitation:
    """Raises NodeError."""
    return _invitation(_content(file), file)


def read_earlier(file: Path) -> Invitation:
    """One that may be of an earlier release. Raises NodeError."""
    return _invitation({**LATER, **_content(file)}, file)


def _content(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise NodeError(f"{file} cannot be read ({error}); `forebay node invite` on the control host writes one.") from None


def _invitation(content: Mapping[str, Any], file: Path) -> Invitation:
    names = {field.name for field in fields(Invitation)}
    if content.keys() != names or not all(isinstance(value, str) for value in content.values()):
        raise NodeError(f"{file} is no invitation of this release; write it anew with `forebay node invite` on the control host.")
    return Invitation(**content)


def check_name(name: str) -> str:
    """Raises NodeError."""
    if not NAME.fullmatch(name):
        raise NodeError(f"{name!r} is no name for a node: use up to 63 letters, digits, '.', '-' and '_'.")
    return name


def check_address(address: str) -> str:
    """Raises NodeError. Ray knows hosts by addresses: names would have to mean the same everywhere."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        raise NodeError(f"{address!r} is no IP address: give the one that the other hosts reach it at.") from None
    if found.is_loopback or found.is_unspecified:
        raise NodeError(f"{address} is no address that other hosts reach.")
    return address
