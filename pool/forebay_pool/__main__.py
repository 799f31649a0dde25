"""``python -m forebay_pool``: the pool as a JupyterHub service, alone, or embedded for one process."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from forebay_service import process
from forebay_service.errors import SettingsError
from forebay_service.identity import Authenticator, HubAuthenticator

from forebay_pool import embedded
from forebay_pool.errors import PoolError
from forebay_pool.garbage import collect_rarely
from forebay_pool.service import Service
from forebay_pool.settings import Settings
from forebay_pool.standby import Follower
from forebay_pool.store.database import Store
from forebay_pool.store.leadership import Leadership


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a pool until it is told to stop; the exit status."""
    options = _parser().parse_args(arguments)
    return process.run(Settings.package, lambda: _main(options), (SettingsError, PoolError))


def _parser() -> argparse.ArgumentParser:
    parser = process.parser(Settings, "Forebay's pool: lends devices to sessions, and meters it.")
    parser.add_argument("--discover", action="store_true", help="print this host's accelerators as [[devices]] tables, and exit")
    parser.add_argument("--embedded", action="store_true", help="serve this user alone, with this host's devices and a generated token")
    parser.add_argument("--state-dir", metavar="DIR", help="overrides state_dir; with --embedded, pool.json is written here")
    parser.add_argument("--parent-pid", type=int, metavar="PID", help="with --embedded: exit when this process is gone")
    return parser


async def _main(options: argparse.Namespace) -> int:
    if options.parent_pid is not None and not options.embedded:
        raise SettingsError("--parent-pid goes with --embedded")
    settings = process.begin(Settings, options, managed=not (options.embedded or options.discover))
    collect_rarely()
    if options.discover:
        return await _discover(settings)
    return await (_embedded(settings, options) if options.embedded else _serve(settings, os.environ))


async def _discover(settings: Settings) -> int:
    found = await embedded.found_devices(settings, os.environ)
    print(embedded.as_toml(found) if found else "# no accelerator is seen here; the log says what the drivers know besides")
    return 0


async def _serve(settings: Settings, environ: Mapping[str, str]) -> int:
    if settings.hub_api_url is None:
        raise SettingsError("hub_api_url is not set, so nobody can be identified: run as a JupyterHub service, or use --embedded")
    authenticator: Authenticator = HubAuthenticator(settings.hub_api_url, own_token=settings.hub_token)
    asked = asyncio.Event()
    while not asked.is_set():
        process.set_when_asked_to_stop(asked)
        leadership, store = Leadership(settings.database), Store(settings.database)
        leads = await Follower(settings, store, leadership).until_leading(asked)
        store.close()
        if not leads:
            leadership.release()
            break
        service = Service(settings, authenticator, environ, leadership=leadership)
        process.set_when_asked_to_stop(asked, service.stopped)
        status = await _run(service)
        if not service.deposed:
            return status
    return 0


async def _embedded(settings: Settings, options: argparse.Namespace) -> int:
    token = secrets.token_hex(32)
    service = await embedded.prepare(settings, token, os.environ)
    process.set_when_asked_to_stop(service.stopped)
    if options.parent_pid is not None:
        embedded.watch_parent(options.parent_pid, service.stopped.set)
    return await _run(service, token)


async def _run(service: Service, embedded_token: str | None = None) -> int:
    await service.start()
    address: Path | None = None
    idle: asyncio.Task[None] | None = None
    if embedded_token is not None:
        address = embedded.write_address(service.settings.state_dir, service.url, embedded_token)
        idle = asyncio.create_task(embedded.leave_when_idle(service, service.settings.embedded_idle_exit_seconds))
    print(f"forebay-pool serves {service.url}", flush=True)
    await service.stopped.wait()
    if idle is not None:
        idle.cancel()
    if address is not None:
        address.unlink(missing_ok=True)
    if service.deposed or len(service.settings.replicas) > 1:
        await service.leave()
    else:
        await service.stop()
    return 1 if service.broken else 0


if __name__ == "__main__":
    sys.exit(main())
