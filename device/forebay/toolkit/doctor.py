"""``forebay doctor``: checks every step from the environment to an open session, and says what to do about the first that fails."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points

from forebay import process
from forebay.errors import ForebayError, NotConfigured
from forebay.service import FLAVOR_VARIABLE, LOCAL, URL_VARIABLE, Service, check_url, configured, service_at
from forebay.service.proxy import proxy_for
from forebay.toolkit import pool, table

TORCH_MIN = (2, 11)
AUTOLOAD_VARIABLE = "TORCH_DEVICE_BACKEND_AUTOLOAD"
DESCRIPTION = (
    "Checks every step from the environment to an open session. Opens no lease and costs nothing. The exit status is 0 if all is well."
)


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    name: str
    good: bool
    text: str
    """What was found, or what to do."""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand."""
    command = commands.add_parser("doctor", help="check that the virtual device can work", description=DESCRIPTION)
    command.set_defaults(perform=perform)


def perform(_arguments: argparse.Namespace) -> int:
    """Prints a line per check."""
    good = True
    for finding in findings():
        sys.stdout.write(f"{'ok' if finding.good else 'FAIL':<5} {finding.name:<11} {finding.text}\n")
        sys.stdout.flush()
        good = good and finding.good
    return 0 if good else 1


def findings() -> Iterator[Finding]:
    """The checks in order; those of the service end with the first that fails, since each needs the one before."""
    environment = _find("environment", check_environment)
    yield environment
    yield _find("torch", check_torch)
    yield _find("extension", check_extension)
    if not environment.good:
        return
    yield _find("activation", check_activation)
    with contextlib.ExitStack() as stack:
        try:
            service = stack.enter_context(pool.remote_or_own())
        except ForebayError as error:
            yield Finding("pool", False, str(error))
            return
        checks = {"pool": check_pool, "token": check_token, "flavor": check_flavor, "session": check_session}
        for name, check in checks.items():
            finding = _find(name, lambda check=check: check(service))  # type: ignore[misc]
            yield finding
            if not finding.good:
                return


def _find(name: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(name, True, check())
    except (ForebayError, ImportError) as error:
        return Finding(name, False, str(error))


def check_environment() -> str:
    """FOREBAY_URL and the token are set and readable, or somebody is signed in."""
    url = configured()
    if url is None:
        raise NotConfigured(
            f"{URL_VARIABLE} is not set, so torch has no cuda:0; sign in with `forebay login`, set it to your pool's address, or use "
            "`forebay run`."
        )
    check_url(url)
    if url == LOCAL:
        return f"{URL_VARIABLE}={LOCAL}: a pool is started on this machine when it is needed"
    return f"{service_at(url).variable}={url}, with a token"


def check_torch() -> str:
    """torch is there, new enough, and loads its back ends."""
    import torch

    numbers = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if numbers < TORCH_MIN:
        raise ForebayError(f"torch {torch.__version__} is too old; install {'.'.join(map(str, TORCH_MIN))} or later.")
    if os.environ.get(AUTOLOAD_VARIABLE, "1") != "1":
        raise ForebayError(f"{AUTOLOAD_VARIABLE}={os.environ[AUTOLOAD_VARIABLE]} keeps torch from loading the virtual device; unset it.")
    if not any(point.name == "forebay" for point in entry_points(group="torch.backends")):
        raise ForebayError("torch does not find the virtual device: forebay is not installed in this environment; `pip install` it here.")
    return f"torch {torch.__version__} in {sys.prefix}"


def check_extension() -> str:
    """The C++ half is built for this torch."""
    importlib.import_module("torch")
    try:
        importlib.import_module("forebay._C")
    except ImportError as error:
        raise ForebayError(f"forebay._C cannot be loaded ({error}); install forebay again for this version of torch.") from None
    return "forebay._C is built for this torch"


def check_activation() -> str:
    """``import torch`` took cuda:0 over."""
    if not process.active:
        raise ForebayError(process.failure or "`import torch` did not activate the virtual device; the lines above say why.")
    return "torch.cuda.is_available() is True, cuda:0 is virtual"


def check_pool(service: Service) -> str:
    """Something answers at the address."""
    service.get("health")
    proxy = proxy_for(service.url)
    return f"{service.url} answers" + ("" if proxy is None else f", through the proxy {proxy.address}")


def check_token(service: Service) -> str:
    """The token is accepted, by a pool."""
    return f"accepted; the pool has {table.counted(len(pool.rows(service, 'api/flavors')), 'flavor')}"


def check_flavor(service: Service) -> str:
    """The flavor that a new session would get can be served."""
    flavors = {str(flavor["name"]): flavor for flavor in pool.rows(service, "api/flavors")}
    name = os.environ.get(FLAVOR_VARIABLE) or pool.chosen_flavor(service)
    if name is None:
        return "none chosen, so the pool's default; choose with `forebay flavor set NAME`"
    flavor = flavors.get(name)
    if flavor is None:
        raise ForebayError(f"There is no flavor {name}; choose one with `forebay flavor set NAME`.")
    if not flavor.get("servable"):
        raise ForebayError(f"{name} cannot be served now: {flavor.get('reason')}; choose another with `forebay flavor set NAME`.")
    return f"{name}, {table.rate(flavor.get('price_nano_per_hour'), flavor.get('currency'))}, can be served"


class _NoStream:
    """A session that is only looked at moves no commands."""

    def connect(self, address: str, ticket: bytes, meeting: int | None, certificate: str, authorization: str = "", /) -> None: ...
    def connected(self) -> bool:
        return False

    def lease_opened(self, epoch: int, memory_bytes: int, /) -> None: ...
    def lease_closed(self) -> None: ...
    def leave(self) -> bool:
        return False

    def is_torn(self) -> bool:
        return False

    def break_off(self) -> bool:
        return False

    def broken(self) -> bool:
        return False

    def replay_differences(self) -> tuple[int, int]:
        return 0, 0

    def lose(self, message: str, /) -> None: ...


def check_session(service: Service) -> str:
    """The WebSocket of the session link opens; no lease is asked for."""
    import torch

    from forebay.session import Session

    session = Session(lambda: service, _NoStream(), torch.__version__, os.environ.get(FLAVOR_VARIABLE) or None)
    try:
        flavor = session.flavor()
    finally:
        session.close()
    return f"opened and closed: {flavor.name}, {table.memory(flavor.memory_bytes)}"
