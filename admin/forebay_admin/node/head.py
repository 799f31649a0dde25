"""On the control host: the head of the cluster, and invitations to it."""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
import time
from pathlib import Path

from forebay_admin import systemd
from forebay_admin.certificates import signing
from forebay_admin.certificates.signing import Pair
from forebay_admin.host import answers
from forebay_admin.host.answers import Answers
from forebay_admin.host.files import PRIVATE, File
from forebay_admin.host.init import lay
from forebay_admin.host.layout import Layout
from forebay_admin.host.units import PLAINTEXT
from forebay_admin.node.invitation import Invitation, NodeError, Releases, check_address, check_name
from forebay_admin.node.units import HEAD, HEAD_PORT, head_unit, pool_drop_in

LOOPBACK = ["localhost", "127.0.0.1"]
"""Ray's processes on one host reach each other so."""
START_SECONDS_MAX = 90.0
LOOK_SECONDS = 0.5
NEXT = """\
In {settings}/pool.toml, beside what is there:
  launcher = "ray"
  ray_address = "{address}:{port}"
  advertise_url = "{url}"
  worker_python = "{python}"
and a [[devices]] table for each model that nodes have. Then:
  systemctl restart forebay-pool
  forebay node invite NAME ADDRESS --out NAME.toml
"""


def perform_head(arguments: argparse.Namespace) -> int:
    """Makes this host, which ``forebay admin init`` has set up, the head."""
    layout, address = Layout(arguments.root.absolute()), check_address(arguments.address)
    url = pool_url(_answers(layout))
    if not Releases.here().ray:
        raise NodeError("Ray is not installed here: pip install 'forebay-admin[node]' into this environment.")
    changed = lay(_files(layout, address), layout)
    if layout.root == Path("/"):
        systemd.start(HEAD, again=changed)
        _await(address)
    values = {"settings": layout.settings, "address": address, "port": HEAD_PORT, "url": url, "python": layout.python}
    sys.stdout.write(NEXT.format(**values))
    return 0


def _await(address: str) -> None:
    """Returns once the head listens. Raises NodeError."""
    sys.stdout.write(f"{HEAD} starts …\n")
    sys.stdout.flush()
    until = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection((address, HEAD_PORT), START_SECONDS_MAX):
            sys.stdout.write(f"{HEAD} runs.\n")
            return
        time.sleep(LOOK_SECONDS)
    raise NodeError(f"Ray's head does not listen at {address}:{HEAD_PORT} after {START_SECONDS_MAX:g} s: `journalctl -u {HEAD}` says why.")


def _answers(layout: Layout) -> Answers:
    """What ``init`` was told. Raises NodeError where it has set nothing up."""
    file = layout.settings / "answers.toml"
    if not file.exists():
        raise NodeError(f"{file} is not there: run `forebay admin init` on the control host first.")
    return answers.read(file)


def pool_url(given: Answers) -> str:
    """The pool's public address."""
    return f"https://{given.name}{'' if given.port == 443 else f':{given.port}'}/services/pool/"


def _files(layout: Layout, address: str) -> list[File]:
    tls, variables = layout.settings / "tls", layout.settings / "secrets" / "pool.env"
    authority = Pair.read(tls, "nodes-ca") or signing.new_authority(f"nodes at {address}")
    own = Pair.read(tls, "node")
    if own is None or not signing.is_of(own.certificate, address):
        own = signing.new_node([*LOOPBACK, address], authority)
    return [
        File(tls / "nodes-ca.crt", authority.certificate),
        File(tls / "nodes-ca.key", authority.key, PRIVATE),
        File(tls / "node.crt", own.certificate),
        File(tls / "node.key", own.key, PRIVATE),
        File(variables, _with_plaintext(variables), PRIVATE),
        File(layout.units / f"{HEAD}.service", head_unit(layout, address).encode()),
        File(layout.pool_drop_in, pool_drop_in(layout).encode()),
    ]


def _with_plaintext(variables: Path) -> bytes:
    """The pool's variables, as ``init`` writes them from now on: workers on other hosts may be reached in clear, too."""
    content, line = variables.read_bytes(), f"{PLAINTEXT}='true'\n".encode()
    return content if line in content else content + line


def perform_invite(arguments: argparse.Namespace) -> int:
    """Writes an invitation, which no other than this user may read."""
    layout, name, address = Layout(arguments.root.absolute()), check_name(arguments.name), check_address(arguments.address)
    out = arguments.out or Path(f"{name}.toml")
    authority, web = Pair.read(layout.settings / "tls", "nodes-ca"), layout.settings / "tls" / "ca.crt"
    if authority is None:
        raise NodeError("This host is no cluster's head: run `forebay node head ADDRESS` first.")
    own, given = signing.new_node([*LOOPBACK, address], authority), _answers(layout)
    invitation = Invitation(
        name=name,
        address=address,
        head=_head(layout),
        pool=pool_url(given),
        devices="cpu" if arguments.cpu else "found",
        model="" if arguments.model is None else check_name(arguments.model),
        switch="" if arguments.switch is None else check_name(arguments.switch),
        worker_uids=given.worker_uids,
        **vars(Releases.here()),
        authority=authority.certificate.decode(),
        certificate=own.certificate.decode(),
        key=own.key.decode(),
        web_authority=web.read_text() if web.exists() and not given.acme else "",
    )
    out.unlink(missing_ok=True)
    with open(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "w", encoding="utf-8") as file:
        file.write(invitation.toml)
    sys.stdout.write(f"{out} is for {name}: copy it there over a safe way, then: forebay node join {out.name}\n")
    return 0


def _head(layout: Layout) -> str:
    """HOST:PORT of the head, as its unit says it."""
    words = (layout.units / f"{HEAD}.service").read_text().split()
    (address,) = (word.partition("=")[2] for word in words if word.startswith("--node-ip-address="))
    return f"[{address}]:{HEAD_PORT}" if ":" in address else f"{address}:{HEAD_PORT}"
