"""The pool of one user on one host: a generated token, this host's devices, gone with the process that started it."""

from __future__ import annotations

import asyncio
import getpass
import itertools
import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
from forebay_service.errors import SettingsError
from forebay_service.identity import COMPUTE, OPERATE, Identity, TokenAuthenticator

from forebay_pool.hosts import discovery
from forebay_pool.hosts.image_folders import is_own
from forebay_pool.model.catalogue import name_of
from forebay_pool.model.types import Equivalent, Flavor, Kind
from forebay_pool.service import Service
from forebay_pool.settings import DeviceGroup, Settings
from forebay_pool.store.flavors import seeds

TENANT = "local"
FILE = "pool.json"
POLL_SECONDS = 0.5
CPU_MEMORY_SHARE = 2
"""A development device has the host's memory divided by this."""

log = logging.getLogger(__name__)


def user_name() -> str:
    """The operating system's name of the user."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.getuid()}"


def authenticator(token: str) -> TokenAuthenticator:
    return TokenAuthenticator({token: Identity(user_name(), "user", TENANT, frozenset({COMPUTE, OPERATE}))})


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Ours of this user, by the XDG Base Directory Specification; made by whoever keeps something in it."""
    given = environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if Path(given).is_absolute() else Path.home() / ".cache") / "forebay"


def cpu_memory_bytes() -> int:
    return int(psutil.virtual_memory().total) // CPU_MEMORY_SHARE


def write_address(state_dir: Path, url: str, token: str) -> Path:
    """``pool.json``: where the pool is and its token, readable by its user alone, whole or not at all."""
    path = state_dir / FILE
    temporary = state_dir / f".{FILE}.{secrets.token_hex(4)}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"url": url, "token": token, "pid": os.getpid()}, file)
    temporary.replace(path)
    return path


def watch_parent(pid: int, on_end: Callable[[], None]) -> None:
    """Calls ``on_end`` once the process is gone. Raises SettingsError if there is none."""
    loop = asyncio.get_running_loop()
    try:
        descriptor = os.pidfd_open(pid)
    except OSError as error:
        raise SettingsError(f"--parent-pid {pid}: {error.strerror}") from None

    def ended() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        log.info("process %d, which this pool was for, ended", pid, extra={"action": "parent_ended", "pid": pid})
        on_end()

    loop.add_reader(descriptor, ended)


async def leave_when_idle(service: Service, idle_seconds: float) -> None:
    """Stops the service after so long without a session."""
    last = time.monotonic()
    while time.monotonic() - last < idle_seconds:
        await asyncio.sleep(min(POLL_SECONDS, idle_seconds))
        if service.shell.machine.sessions:
            last = time.monotonic()
    log.info("no session for %.0f s", idle_seconds, extra={"action": "idle_exit"})
    service.stopped.set()


async def prepare(settings: Settings, token: str, environ: Mapping[str, str]) -> Service:
    """A service, not started, that lends this host's devices to this user. Raises SettingsError."""
    if settings.devices:
        devices, flavors = settings.devices, tuple[Flavor, ...]()
    else:
        found = await found_devices(settings, environ)
        devices = (DeviceGroup(kind="cpu", model="cpu-dev", memory=cpu_memory_bytes(), count=1), *found)
        flavors = _flavors_for(found, settings.flavors_file)
    libraries = settings.libraries_dir or cache_folder(environ) / "libraries"
    ahead = {} if "warm_workers" in settings.model_fields_set else {"warm_workers": 0}
    fixed = {**ahead, "billing_url": None, "resume_seconds": 0.0, "user_kernels": True, "peers_share": 1.0}
    folders = {"image_dirs": _image_folders(), "libraries_dir": libraries}
    own = settings.model_copy(update=fixed | folders | {"devices": devices})
    return Service(own, authenticator(token), environ, flavors)


def _image_folders() -> dict[str, Path]:
    """Where images of this process's sessions are; those of processes that are gone are removed."""
    parent = Path(f"/dev/shm/forebay-{os.getuid()}")  # noqa: S108 - used if it is this user's own
    if not is_own(parent):
        return {}
    for folder in parent.iterdir():
        if folder.name.isdigit() and not psutil.pid_exists(int(folder.name)):
            shutil.rmtree(folder, ignore_errors=True)
    return {"process": parent / str(os.getpid())}


async def found_devices(settings: Settings, environ: Mapping[str, str]) -> tuple[DeviceGroup, ...]:
    """This host's accelerators, each a group by itself, named as flavors name them."""
    pythons: dict[Kind, Path] = {kind: settings.python_of(kind) for kind in discovery.VENDORS}
    found = await discovery.accelerators(pythons, environ)
    return tuple(DeviceGroup(kind=one.kind, model=name_of(one.model, one.memory_bytes), memory=one.memory_bytes, count=1) for one in found)


def as_toml(groups: Sequence[DeviceGroup]) -> str:
    """``[[devices]]`` tables of a pool's settings, equal neighbours in one."""
    tables = []
    for group, equal in itertools.groupby(groups):
        found = {"kind": group.kind, "model": group.model, "memory": group.memory, "count": len(list(equal))}
        tables.append("\n".join(["[[devices]]", *(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in found.items())]))
    return "\n\n".join(tables)


def _flavors_for(groups: Sequence[DeviceGroup], file: Path | None) -> tuple[Flavor, ...]:
    """Every flavor, with each accelerator of this host that it does not name as one more equivalent where it fits into its memory."""
    flavors = []
    for flavor in seeds(file):
        named = {one.model for one in flavor.equivalents}
        models = sorted({group.model for group in groups if flavor.memory_bytes <= group.memory} - named)
        flavors.append(replace(flavor, equivalents=(*flavor.equivalents, *(Equivalent(model, 1) for model in models))))
    return tuple(flavors)
