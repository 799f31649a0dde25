"""Lays a release of an earlier version and one of today's, which has a migration more.

No release came before the first one, so its sources are the last commit's under another version; its extensions are those that set-up built
today. Once there is a release, name its commit here, and take the made-up migration away as soon as there is a real one.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from pathlib import Path

import release
import wheels
from alembic.script import ScriptDirectory

COMMIT = "HEAD"
"""What its Python asks of extensions is what today's answer."""
VERSION = "0.0.9"
TODAY = release.version_of(wheels.CHECKOUT)
MIGRATED = {"pool": "v", "billing": "r"}
"""Whose databases go forward, and what the names of their migrations begin with."""
MADE_UP = '''"""Made up for a rehearsal."""

import sqlalchemy as sa
from alembic import op

revision = "{after}"
down_revision = "{before}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table("rehearsed", sa.Column("id", sa.Integer, primary_key=True))
'''
NATIVE = {"wire": {"wire/forebay_wire": "forebay_wire"}, "worker": {"worker/forebay_worker": "forebay_worker"}}
NATIVE["device"] = {"device/forebay": "forebay", "device/models": "forebay/models"}


def lay(folder: Path) -> None:
    """As people have a release: wheels, an index page, the sums."""
    folder.mkdir()
    epoch = wheels.epoch_of(wheels.CHECKOUT)
    with tempfile.TemporaryDirectory() as scratch:
        sources = Path(scratch)
        _unpack(sources)
        for package in wheels.PURE:
            wheels.build_pure(sources / package, folder, epoch)
        for package in wheels.BUILT_BY_SET_UP:
            (built,) = (wheels.SET_UP / package).glob("*.whl")
            older = sources / "older" / built.name
            older.parent.mkdir(exist_ok=True)
            _rewrite(built, older, NATIVE.get(package, {}), sources)
            wheels.seal([older], folder, epoch)
    wheels.write_index(folder)
    shutil.copy(wheels.CHECKOUT / "requirements" / "release.txt", folder / wheels.CONSTRAINTS)
    write_sums(folder)


def revision_of(service: str) -> str:
    """The newest of a service's schema."""
    migrations = wheels.CHECKOUT / service / f"forebay_{service}" / "migrations"
    return str(ScriptDirectory(str(migrations)).get_current_head())


def lay_today(folder: Path) -> None:
    """Today's, whose pool and billing each have a migration more than the checkout."""
    epoch = wheels.epoch_of(wheels.CHECKOUT)
    wheels.make(folder, [], None, epoch)
    for service, letter in MIGRATED.items():
        before = revision_of(service)
        after = f"{int(before) + 1:04}"
        (built,) = folder.glob(f"forebay_{service}-*.whl")
        with tempfile.TemporaryDirectory() as scratch:
            draft = Path(scratch) / built.name
            shutil.move(built, draft)
            with zipfile.ZipFile(draft, "a") as archive:
                place = f"forebay_{service}/migrations/versions/{letter}{after}_rehearsed.py"
                archive.writestr(place, MADE_UP.format(before=before, after=after))
            wheels.seal([draft], folder, epoch)
    wheels.write_index(folder)
    write_sums(folder)


def write_sums(folder: Path) -> None:
    names = sorted(path.name for path in folder.iterdir())
    listed = subprocess.run(["sha256sum", *names], cwd=folder, capture_output=True, text=True, check=True).stdout
    (folder / release.SUMS).write_text(listed)


def _unpack(sources: Path) -> None:
    archive = subprocess.run(["git", "archive", COMMIT], cwd=wheels.CHECKOUT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(sources, filter="data")
    for project in sources.glob("*/pyproject.toml"):
        project.write_text(_older(project.read_text()))


def _older(text: str) -> str:
    """With the version of then, which the commit itself calls by today's."""
    return re.sub(rf'(^version = "|^Version: |forebay[\w\[\],-]*==){re.escape(TODAY)}', rf"\g<1>{VERSION}", text, flags=re.MULTILINE)


def _rewrite(built: Path, older: Path, packages: dict[str, str], sources: Path) -> None:
    """A wheel of today's extensions around the Python of then."""
    with zipfile.ZipFile(built) as today, zipfile.ZipFile(older, "w") as archive:
        for name in today.namelist():
            if name.endswith(".so") or ".dist-info/" in name or ".data/" in name or not packages:
                content = today.read(name)
                moved = name.replace(f"-{TODAY}.dist-info/", f"-{VERSION}.dist-info/").replace(f"-{TODAY}.data/", f"-{VERSION}.data/")
                archive.writestr(moved, _older(content.decode()) if name.endswith(".dist-info/METADATA") else content)
        for source, target in packages.items():
            for path in sorted((sources / source).rglob("*")):
                if path.is_file() and path.suffix not in (".cpp", ".h"):
                    archive.writestr(f"{target}/{path.relative_to(sources / source)}", path.read_bytes())

