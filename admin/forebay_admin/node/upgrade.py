"""``forebay node upgrade`` and ``rollback``: another release for a host that joined, and back. The host stays who it is: its name, its
address, its key and its certificate are those of the invitation that it joined with.

The new release's own code does it, from its wheels, as on the control host, which comes first: the pool tells which release it has.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from forebay.errors import ForebayError
from forebay.toolkit.release.packages import MISLEADING, Packages, order
from forebay_wire import torch_builds

from forebay_admin import systemd
from forebay_admin.host.files import PRIVATE, File
from forebay_admin.host.init import lay
from forebay_admin.host.layout import Layout
from forebay_admin.host.upgrade import ReleaseFolder, become, run, say, steps
from forebay_admin.node import checks
from forebay_admin.node import invitation as invitations
from forebay_admin.node.invitation import NodeError, Releases
from forebay_admin.node.join import kept
from forebay_admin.node.units import NODE

JOIN_SECONDS_MAX = 600


def before(layout: Layout) -> Path:
    """Where the invitation is kept that was of the release before the last upgrade."""
    return layout.settings / "node.toml.before"


def upgrade(layout: Layout, release: ReleaseFolder, check_only: bool) -> None:
    """May be repeated where it was interrupted. Raises ForebayError: nothing is changed, or the sentence says what is."""
    _check_root()
    environment = Packages(layout.prefix)
    here, joined = environment.version(), invitations.read_earlier(kept(layout))
    if order(release.version) < order(here) or joined.forebay == release.version:
        raise NodeError(f"This host has {here}, and {release.folder} is {release.version}; `forebay node rollback` goes back.")
    plan = None if here == release.version else steps(environment, release)
    if check_only:
        say(f"This host can be upgraded so, once the pool has {release.version}. Nothing was changed.")
        return
    there = checks.pool_release(joined)
    if there != release.version:
        raise NodeError(
            f"The pool at {joined.pool} {f'has {there}' if there else 'does not tell its release'}, and {release.folder} is"
            f" {release.version}: bring the control host to that first (`forebay admin upgrade`). Nothing is changed."
        )
    _stop(layout)
    if plan is not None:
        try:
            environment.exchange(*plan)
        except ForebayError:
            _start(layout)
            raise
        say(f"Installed {release.version} in {environment.prefix}.")
    carried = replace(joined, **vars(_releases(environment)))
    planned = [File(before(layout), kept(layout).read_bytes(), PRIVATE), File(kept(layout), carried.toml.encode(), PRIVATE)]
    lay(planned, layout)
    _join(layout, release.version)
    say(f"This host has {release.version}. `forebay node rollback` goes back to {joined.forebay}.")


def rollback(layout: Layout) -> None:
    """Raises ForebayError."""
    _check_root()
    if not before(layout).exists():
        raise NodeError(f"{before(layout)} is not there: no upgrade was made here, or it was undone.")
    environment = Packages(layout.prefix)
    joined, here, replaced = invitations.read_earlier(before(layout)), environment.version(), environment.before()
    if joined.forebay not in (here, replaced and replaced.version):
        raise NodeError(f"{environment.prefix} has {here}, and {joined.forebay} is kept there no longer: install it with pip first.")
    there = checks.pool_release(joined)
    if there not in ("", joined.forebay):
        raise NodeError(
            f"The pool at {joined.pool} has {there}: `forebay admin rollback` on the control host comes first. Nothing is changed."
        )
    _stop(layout)
    if here != joined.forebay:
        environment.put_back()
        say(f"Put back {joined.forebay} in {environment.prefix}.")
    before(layout).replace(kept(layout))
    _join(layout, joined.forebay)
    say(f"This host has {joined.forebay} again.")


def _check_root() -> None:
    found = checks.check_root()
    if not found.good:
        raise NodeError(found.sentence)


def _releases(environment: Packages) -> Releases:
    """What is installed now, this program's own interpreter being the environment's."""
    found = environment.installed()
    torch = torch_builds.release(found["torch"].version) if "torch" in found else ""
    return replace(Releases.here(), forebay=environment.version(), ray=found["ray"].version if "ray" in found else "", torch=torch)


def _stop(layout: Layout) -> None:
    """Nothing computes there: the pool lends nothing on a host of another release than its own."""
    if layout.root == Path("/"):
        systemd.call("systemctl", "stop", NODE)


def _start(layout: Layout) -> None:
    if layout.root == Path("/"):
        systemd.call("systemctl", "start", NODE)


def _join(layout: Layout, release: str) -> None:
    """By the command of the release that is installed now. Raises NodeError."""
    command = [str(layout.prefix / "bin" / "forebay"), "node", "join", "--root", str(layout.root)]
    variables = {name: value for name, value in os.environ.items() if name not in MISLEADING}
    sys.stdout.flush()
    if subprocess.run(command, env=variables, check=False, timeout=JOIN_SECONDS_MAX).returncode != 0:
        raise NodeError(f"{release} is installed here, and has not joined, as told above: mend that, and run `forebay node join`.")


# The commands


def perform_upgrade(arguments: argparse.Namespace) -> int:
    become(arguments, __name__)


def perform_rollback(arguments: argparse.Namespace) -> int:
    rollback(Layout(arguments.root.absolute()))
    return 0


if __name__ == "__main__":
    sys.exit(run("forebay node upgrade", __doc__, upgrade))
