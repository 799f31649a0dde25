"""What a host is asked before it becomes a node: each answer is a sentence, and one that is not good says what to do."""

from __future__ import annotations

import email.utils
import errno
import glob
import json
import os
import re
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from forebay_admin.host.units import DEVICES
from forebay_admin.node.invitation import Invitation, NodeError, Releases
from forebay_admin.node.units import PORTS

DRIVER_FILES = {"/dev/nvidiactl": "NVIDIA", "/dev/kfd": "AMD"}
NODES = ("/dev/kfd", "/dev/dri/renderD*", "/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/nvidia-uvm")
"""What a worker opens."""
OPENS = ["sh", "-ec", 'for path; do : <>"$path"; done', "sh"]
"""A command that opens what is named after it, to read and to write."""
DESCRIBE_SECONDS_MAX = 120
CONNECT_SECONDS_MAX = 10
NO_LABEL = re.compile(r"[^A-Za-z0-9._-]+")
"""What Ray takes in no label's value."""
CLOCK_SECONDS_MAX = 5.0
"""Certificates begin five minutes early, and what is metered is counted in seconds."""
OTHER_RELEASE = "Install {wanted} into this environment, or write the invitation anew from the control host's release."


@dataclass(frozen=True)
class Finding:
    """What one check found."""

    check: str
    good: bool
    sentence: str


@dataclass(frozen=True)
class Devices:
    """Equal devices of this host. ``kind`` is ``cuda``, ``hip`` or ``cpu``."""

    kind: str
    model: str
    memory_bytes: int
    count: int

    @property
    def gpus(self) -> int:
        return 0 if self.kind == "cpu" else self.count

    @property
    def group(self) -> str:
        """The table of the pool's settings that offers them."""
        memory = f'memory = "{self.memory_bytes // 2**20} MiB"'
        return "\n".join(["[[devices]]", f'kind = "{self.kind}"', f'model = "{self.model}"', memory, f"count = {self.count}"])


def check_driver(files: Mapping[str, str] = DRIVER_FILES) -> Finding:
    """Whether the system has loaded a driver of accelerators."""
    found = [vendor for path, vendor in files.items() if Path(path).exists()]
    if found:
        return Finding("driver", True, f"{' and '.join(found)}'s driver is loaded.")
    return Finding("driver", False, f"No driver is loaded ({' and '.join(files)} are missing): install your GPUs' driver.")


def check_access(python: Path, uids: str, patterns: Iterable[str] = NODES) -> Finding:
    """Whether a worker opens the devices: one of ``uids`` tries, with the groups that open them, as the unit's will."""
    nodes = sorted(path for pattern in patterns for path in glob.glob(pattern))
    begun = [str(python), "-I", "-m", "forebay_service.account", uids, DEVICES, "--", *OPENS, *nodes]
    try:
        done = subprocess.run(begun, capture_output=True, text=True, check=False, timeout=DESCRIBE_SECONDS_MAX)
        said = done.stderr.strip().splitlines()[-1:] if done.returncode else []
    except (OSError, subprocess.SubprocessError) as error:
        said = [str(error)]
    if not said:
        return Finding("access", True, f"Workers open {', '.join(nodes)}.")
    sentence = (
        f"Workers cannot open the devices ({said[0]}): each must be open to a group other than root's (`chgrp render`, `chmod g+rw`), or to"
        " all, by a rule of udev, so that it is so after the next start too."
    )
    return Finding("access", False, sentence)


def check_pytorch(python: Path, cpu: bool, model: str) -> tuple[Finding, Devices | None]:
    """What the workers' PyTorch sees; the devices where it is good, under the name ``model`` if one is given."""
    try:
        rows = _described(python)
    except NodeError as error:
        return Finding("pytorch", False, str(error)), None
    if cpu:
        (host,) = (row for row in rows if row["kind"] == "cpu")
        return Finding("pytorch", True, "It computes on this host's CPU."), Devices("cpu", model or host["model"], host["memory_bytes"], 1)
    found = [row for row in rows if row["kind"] in ("cuda", "hip")]
    kinds = Counter((row["kind"], row["model"]) for row in found)
    if not found:
        sentence = f"The PyTorch of {python} sees no GPU: install its build for your driver (CUDA or ROCm)."
        return Finding("pytorch", False, sentence), None
    if len(kinds) > 1:
        names = ", ".join(f"{count} {model}" for (_, model), count in kinds.items())
        sentence = f"A node has devices of one model, and this host has {names}: let CUDA_VISIBLE_DEVICES name those of one."
        return Finding("pytorch", False, sentence), None
    name = model or NO_LABEL.sub("-", found[0]["model"]).strip("-._")
    devices = Devices(found[0]["kind"], name, min(row["memory_bytes"] for row in found), len(found))
    return Finding("pytorch", True, f"It sees {devices.count} {devices.model}."), devices


def _described(python: Path) -> list[dict[str, Any]]:
    command = [str(python), "-m", "forebay_worker", "--describe"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=DESCRIBE_SECONDS_MAX)
        return list(json.loads(done.stdout)["devices"])
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1:]
        why = said[0] if said else type(error).__name__
        raise NodeError(f"{python} cannot say which devices there are ({why}): install forebay-worker and PyTorch there.") from None


def check_releases(invitation: Invitation, here: Releases) -> Finding:
    """Whether this environment is of the control host's releases."""
    wanted, found = asdict(invitation.releases), asdict(here)
    other = {name: wanted[name] for name in wanted if wanted[name] != found[name]}
    if not other:
        return Finding("versions", True, ", ".join(f"{name} {value}" for name, value in found.items()) + ".")
    differ = ", ".join(f"{name} is {found[name] or 'missing'} and must be {value}" for name, value in other.items())
    return Finding("versions", False, f"{differ}. {OTHER_RELEASE.format(wanted=', '.join(other))}")


def check_address(invitation: Invitation) -> Finding:
    """Whether the address that others know this node by is this host's."""
    family = socket.AF_INET6 if ":" in invitation.address else socket.AF_INET
    with socket.socket(family) as trial:
        try:
            trial.bind((invitation.address, 0))
        except OSError as error:
            sentence = f"{invitation.address} is not this host's ({error.strerror}): write the invitation for one that `ip address` shows."
            return Finding("address", False, sentence)
    return Finding("address", True, f"{invitation.address} is this host's.")


def check_ports(invitation: Invitation, running: bool) -> Finding:
    """Whether Ray's ports are free here; ``running``: Ray's node of ours has them."""
    if running:
        return Finding("ports", True, "This node runs, and has its ports.")
    taken = [port for port in PORTS.values() if not _is_free(invitation.address, port)]
    if taken:
        listed = ", ".join(map(str, taken))
        return Finding("ports", False, f"Others listen on {listed}, which Ray needs: `ss -ltnp` says who; end them.")
    return Finding("ports", True, f"{min(PORTS.values())} to {max(PORTS.values())} are free.")


def _is_free(address: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((address, port))
        except OSError as error:
            return error.errno != errno.EADDRINUSE
    return True


def check_head(invitation: Invitation) -> Finding:
    """Whether the cluster's head answers, and each side takes the other's certificate."""
    host, _, port = invitation.head.rpartition(":")
    where = (host.strip("[]"), int(port))
    try:
        with socket.create_connection(where, CONNECT_SECONDS_MAX) as plain, _cluster_trust(invitation).wrap_socket(plain) as link:
            link.settimeout(CONNECT_SECONDS_MAX)
            if not link.recv(1):  # gRPC speaks first: what it does not trust it says nothing to
                raise ConnectionResetError("it closes the connection")
    except ssl.SSLError as error:
        return Finding("head", False, f"The head at {invitation.head} is of another cluster ({error.reason}): write the invitation anew.")
    except OSError as error:
        sentence = f"The head at {invitation.head} cannot be reached ({error.strerror or error}): start forebay-ray, and open the port."
        return Finding("head", False, sentence)
    return Finding("head", True, f"The head at {invitation.head} answers, with TLS.")


def _cluster_trust(invitation: Invitation) -> ssl.SSLContext:
    """Names are not looked at: every member of the cluster is one of its authority's."""
    context = ssl.create_default_context(cadata=invitation.authority)
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    with tempfile.NamedTemporaryFile("w") as file:  # ssl reads keys from files alone; this one is its owner's
        file.write(invitation.certificate + invitation.key)
        file.flush()
        context.load_cert_chain(file.name)
    return context


def check_pool(invitation: Invitation) -> Iterator[Finding]:
    """Whether the pool answers as the workers will ask it, and has this host's time."""
    trust = ssl.create_default_context(cadata=invitation.web_authority or None)
    began = time.time()
    try:
        with urllib.request.urlopen(f"{invitation.pool}health", timeout=CONNECT_SECONDS_MAX, context=trust) as answer:  # noqa: S310 # of the invitation
            told = answer.headers["Date"]
    except (OSError, HTTPException, ValueError) as error:
        why = getattr(error, "reason", error)
        sentence = f"{invitation.pool} cannot be reached ({why}): its name must be known here, its port open, and the pool run."
        yield Finding("pool", False, sentence)
        return
    yield check_pool_release(pool_release(invitation), invitation)
    yield check_clock(told, began, time.time())


def pool_release(invitation: Invitation) -> str:
    """The one that the pool has; empty where it does not tell."""
    url, trust = f"{invitation.pool}api/release", ssl.create_default_context(cadata=invitation.web_authority or None)
    try:
        with urllib.request.urlopen(url, timeout=CONNECT_SECONDS_MAX, context=trust) as answer:  # noqa: S310 # of the invitation
            return str(json.load(answer)["version"])
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        return ""


def check_pool_release(release: str, invitation: Invitation) -> Finding:
    """Whether the pool is still of the release that has written the invitation; a pool that does not tell is taken for one."""
    if release in ("", invitation.forebay):
        return Finding("pool", True, f"{invitation.pool} answers.")
    sentence = (
        f"{invitation.pool} has {release} by now, and the invitation is of {invitation.forebay}: `forebay node upgrade` brings"
        f" a host that has joined to {release}; on another one install {release}, and write its invitation anew (`forebay node invite`)."
    )
    return Finding("pool", False, sentence)


def check_clock(told: str | None, began: float, ended: float) -> Finding:
    """Whether the time of an answer's header, in whole seconds, lies between those at which it was asked and came (seconds since 1970)."""
    if told is None:
        return Finding("clock", True, "The pool does not tell its time.")
    there = email.utils.parsedate_to_datetime(told).timestamp()
    apart = max(began - (there + 1), there - ended, 0.0)
    if apart > CLOCK_SECONDS_MAX:
        sentence = f"This host's clock is {apart:.0f} s from the control host's: let both follow one time server (chrony)."
        return Finding("clock", False, sentence)
    return Finding("clock", True, "It agrees with the control host's.")


def check_root() -> Finding:
    """Whether units can be written."""
    if os.geteuid() == 0:
        return Finding("root", True, "Units can be written.")
    return Finding("root", False, "Only root writes units: begin the command with sudo.")


def check_all(invitation: Invitation, python: Path, running: bool) -> tuple[list[Finding], Devices | None]:
    """All of them, in the order in which they are told, and the devices. ``running``: this node's unit is."""
    cpu = invitation.devices == "cpu"
    seen, devices = check_pytorch(python, cpu, invitation.model)
    driver = Finding("driver", True, "None is needed for the CPU.") if cpu else check_driver()
    opened = [] if cpu or not driver.good or os.geteuid() != 0 else [check_access(python, invitation.worker_uids)]
    own = [check_root(), driver, seen, *opened, check_releases(invitation, Releases.here()), check_address(invitation)]
    return [*own, check_ports(invitation, running), check_head(invitation), *check_pool(invitation)], devices
