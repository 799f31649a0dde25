"""``python -m forebay_pool``: the pool as a JupyterHub service, alone, or embedded for one process."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import secrets
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from forebay_service.identity import Authenticator, HubAuthenticator
from forebay_service.logs import log_to_stderr

from forebay_pool import embedded
from forebay_pool.errors import PoolError, SettingsError
from forebay_pool.garbage import collect_rarely
from forebay_pool.service import Service
from forebay_pool.settings import Settings, load
from forebay_pool.standby import Follower
from forebay_pool.store.database import Store
from forebay_pool.store.leadership import Leadership


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a pool until it is told to stop; the exit status."""
    options = _parser().parse_args(arguments)
    try:
        settings = load(options.config, os.environ, _overrides(options), managed=not (options.embedded or options.discover))
        log_to_stderr(settings.log_level.upper())
        logging.getLogger("tornado.access").setLevel(logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        collect_rarely()
        if options.discover:
            return asyncio.run(_discover(settings))
        return asyncio.run(_embedded(settings, options) if options.embedded else _serve(settings, os.environ))
    except PoolError as error:
        print(f"forebay-pool: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    settings = "\n".join(f"  {name}: {field.description}" for name, field in Settings.model_fields.items())
    parser = argparse.ArgumentParser(
        prog="python -m forebay_pool",
        description="Forebay's pool: lends devices to sessions, and meters it.",
        epilog=f"settings (in the file, or FOREBAY_POOL_<NAME> in the environment):\n{settings}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file of settings")
    parser.add_argument("--discover", action="store_true", help="print this host's accelerators as [[devices]] tables, and exit")
    parser.add_argument("--embedded", action="store_true", help="serve this user alone, with this host's devices and a generated token")
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="overrides state_dir; with --embedded, pool.json is written here")
    parser.add_argument("--port", type=int, help="overrides the setting port; 0 takes a free one")
    parser.add_argument("--parent-pid", type=int, metavar="PID", help="with --embedded: exit when this process is gone")
    return parser


def _overrides(options: argparse.Namespace) -> dict[str, Any]:
    if options.parent_pid is not None and not options.embedded:
        raise SettingsError("--parent-pid goes with --embedded")
    overrides: dict[str, Any] = {}
    if options.state_dir is not None:
        overrides["state_dir"] = options.state_dir
    if options.port is not None:
        overrides["port"] = options.port
    return overrides


async def _discover(settings: Settings) -> int:
    found = await embedded.found_devices(settings, os.environ)
    print(embedded.as_toml(found) if found else "# no accelerator is seen here; the log says what the drivers know besides")
    return 0


async def _serve(settings: Settings, environ: Mapping[str, str]) -> int:
    if settings.hub_api_url is None:
        raise SettingsError("hub_api_url is not set, so nobody can be identified: run as a JupyterHub service, or use --embedded")
    authenticator: Authenticator = HubAuthenticator(settings.hub_api_url)
    asked = asyncio.Event()
    while not asked.is_set():
        _set_when_asked_to_stop(asked)
        leadership, store = Leadership(settings.database), Store(settings.database)
        leads = await Follower(settings, store, leadership).until_leading(asked)
        store.close()
        if not leads:
            leadership.release()
            break
        service = Service(settings, authenticator, environ, leadership=leadership)
        _set_when_asked_to_stop(asked, service.stopped)
        status = await _run(service)
        if not service.deposed:
            return status
    return 0


def _set_when_asked_to_stop(*events: asyncio.Event) -> None:
    def ask() -> None:
        for event in events:
            event.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ask)


async def _embedded(settings: Settings, options: argparse.Namespace) -> int:
    token = secrets.token_hex(32)
    service = await embedded.prepare(settings, token, os.environ)
    _set_when_asked_to_stop(service.stopped)
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
