"""The bill of materials of a release, in CycloneDX: our wheels with their checksums, what they ask for at the versions that are tested,
and what JupyterLab's extension has taken in of others. The same release has the same bill, byte for byte."""

from __future__ import annotations

import hashlib
import json
import uuid
import zipfile
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCKS = ("release.txt", "grafana.txt")
TAKEN_IN = "static/third-party-licenses.json"
"""What JupyterLab's builder writes beside what it has built, of what came from other packages."""
NAMESPACE = uuid.UUID("5b0c2a54-6a0e-4d0b-9c5b-6f2f0c9c3a11")
"""Of the bills' serial numbers; any constant does."""
LICENCES = LicenseFactory()


def bill_of(wheels: Iterable[Path], requirements: Path, version: str, epoch: int) -> str:
    """The bill as JSON, of CycloneDX 1.6. ``epoch`` is the release's date in seconds."""
    release = Component(name="forebay", type=ComponentType.APPLICATION, version=version, bom_ref=f"forebay-release@{version}")
    bom = Bom(serial_number=uuid.uuid5(NAMESPACE, f"{version} {epoch}"))
    bom.metadata.component = release
    bom.metadata.timestamp = datetime.fromtimestamp(epoch, UTC)
    wheels = sorted(wheels)
    metadata = [_metadata(wheel) for wheel in wheels]
    ours = {canonicalize_name(data["Name"]): _ours(data, wheel) for data, wheel in zip(metadata, wheels, strict=True)}
    others = {component.name: component for component in _pinned(requirements)}
    for wheel, data in zip(wheels, metadata, strict=True):
        component, needs = ours[canonicalize_name(data["Name"])], list(_taken_in(wheel))
        for line in data.get_all("Requires-Dist", []):
            name = canonicalize_name(Requirement(line).name)
            needs.append(ours.get(name) or others.setdefault(name, _other(name, None)))
        bom.register_dependency(component, needs)
        for part in (component, *needs):
            bom.components.add(part)
    for component in others.values():
        bom.components.add(component)
    bom.register_dependency(release, ours.values())
    return str(JsonV1Dot6(bom).output_as_string(indent=2)) + "\n"


def _metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(archive.read(name).decode())


def _ours(data: Message, wheel: Path) -> Component:
    digest = HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256(wheel.read_bytes()).hexdigest())
    return Component(
        name=data["Name"],
        version=data["Version"],
        type=ComponentType.LIBRARY,
        description=data["Summary"],
        hashes=[digest],
        licenses=[LICENCES.make_from_string(data["License-Expression"])],
        purl=PackageURL("pypi", name=canonicalize_name(data["Name"]), version=data["Version"], qualifiers={"file_name": wheel.name}),
        bom_ref=wheel.name,
    )


def _other(name: str, version: str | None, kind: str = "pypi") -> Component:
    namespace, _, short = name.rpartition("/")
    purl = PackageURL(kind, namespace=namespace or None, name=short, version=version)
    return Component(name=name, version=version, type=ComponentType.LIBRARY, purl=purl, bom_ref=str(purl))


def _pinned(requirements: Path) -> Iterator[Component]:
    """What is installed beside ours, at the versions that are tested."""
    for lock in LOCKS:
        for line in (requirements / lock).read_text(encoding="utf-8").splitlines():
            if line.strip() and not line.startswith("#"):
                pin = Requirement(line)
                yield _other(canonicalize_name(pin.name), next(iter(pin.specifier)).version)


def _taken_in(wheel: Path) -> Iterator[Component]:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(TAKEN_IN):
                for package in json.loads(archive.read(name))["packages"]:
                    yield _other(package["name"], package["versionInfo"], "npm")
