"""What tests of several services share: repeatable property tests, and a real PostgreSQL server."""

from __future__ import annotations

import contextlib
import gc
import os
import pwd
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from hypothesis import settings

sys.path.append(str(Path(__file__).parent))  # for fork_server, standin

import fork_server

gc.disable()  # until all is imported: to look for garbage among what stays took a quarter of that time

settings.register_profile("repeatable", derandomize=True, database=None, deadline=None, print_blob=True)
settings.register_profile("searching", database=None, deadline=None, print_blob=True)
settings.load_profile("repeatable")
"""Every run tries the same examples; ``pytest --hypothesis-profile=searching`` looks for new ones."""

COSTLY_EXAMPLES = 60
FEW_COSTLY_EXAMPLES = 12
"""Without --full-sweep: of examples that take a tenth of a second and more."""

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell leaves it for what it starts in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests press Ctrl-C, also in what they start

os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads of one operator wait in a loop for each other while other tests have the processors

MEMORY = Path("/dev/shm")
MEMORY_FREE_BYTES = 4 << 30
"""What the tests of a room may write at once, with room to spare."""


def _is_fit_for_files(folder: Path) -> bool:
    """Whether the tests' files fit there, and programs among them run."""
    if not folder.is_dir():
        return False
    disk = os.statvfs(folder)
    return not disk.f_flag & os.ST_NOEXEC and min(disk.f_bavail * disk.f_frsize, psutil.virtual_memory().available) >= MEMORY_FREE_BYTES


if "TMPDIR" not in os.environ and _is_fit_for_files(MEMORY):
    os.environ["TMPDIR"] = str(MEMORY)  # databases wait for the disk at each commit: 4 ms on a disk, 10 µs here
    tempfile.tempdir = None

_new_context = ssl.create_default_context


@cache
def _context_of(purpose: ssl.Purpose, cafile: str) -> ssl.SSLContext:
    return _new_context(purpose, cafile=cafile)


def _shared_context(purpose: ssl.Purpose = ssl.Purpose.SERVER_AUTH, *, cafile: str | None = None, **more: Any) -> ssl.SSLContext:
    return _new_context(purpose, **more) if cafile is None or more else _context_of(purpose, cafile)


ssl.create_default_context = _shared_context  # httpx reads all certificates for each client, also of plain HTTP: 30 ms

_pip = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "pip" / "pip.conf"
if _pip.is_file():
    os.environ.setdefault("PIP_CONFIG_FILE", str(_pip))  # tests that install find packages where the user does
_configuration = tempfile.TemporaryDirectory(prefix="forebay-configuration-")
os.environ["XDG_CONFIG_HOME"] = os.environ["XDG_STATE_HOME"] = _configuration.name
"""What the user of this machine keeps (``forebay device add``) is no part of a test; set before any test imports torch, which reads it."""

_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
for _program in ("pip", "uv"):
    os.environ.setdefault(f"{_program.upper()}_CACHE_DIR", str(_cache / _program))  # what was downloaded once stays where the user has it
os.environ["XDG_CACHE_HOME"] = f"{_configuration.name}/cache"  # else libraries that other programs made would serve those of tests


@pytest.hookimpl(trylast=True)  # after --hypothesis-profile
def pytest_configure(config: pytest.Config) -> None:
    """``@settings(settings.get_profile("costly"))`` makes more examples with --full-sweep."""
    examples = COSTLY_EXAMPLES if config.getoption("--full-sweep") else FEW_COSTLY_EXAMPLES
    settings.register_profile("costly", settings(), max_examples=examples)


def pytest_unconfigure() -> None:
    fork_server.close()
    _configuration.cleanup()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full-sweep", action="store_true", help="all dtypes, layouts, screens, seeds and examples, every hostile call")
    parser.addoption("--every-device", action="store_true", help="the worker's tests on the stand-in for a GPU too, all of them")
    parser.addoption("--on-device", metavar="NAME", help="the worker's tests on this device alone, as cuda:0 on a GPU server")
    parser.addoption("--search-seeds", action="store_true", help="find anew which seed of the simulators catches what")
    parser.addoption("--hostile-calls", type=int, default=12, metavar="N", help="hostile calls of each operator")
    parser.addoption("--compiled-programs", type=int, default=100, metavar="N", help="random programs of which libraries are made")
    parser.addoption("--deaths", type=int, default=60, metavar="N", help="processes that are killed while six notebooks train")
    parser.addoption("--hostile-seed", type=int, default=20261121, metavar="N", help="which hostile calls")


def _postgres_folder() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).parent if on_path else None


DATABASES = ("sqlite", "postgresql")


def is_for_full_sweep(item: pytest.Item) -> bool:
    """Marked so; or what is no matter of the database, on another than those of its mark ``databases``."""
    mark = item.get_closest_marker("databases")
    given = item.callspec.params.values() if mark and hasattr(item, "callspec") else ()
    return item.get_closest_marker("full_sweep") is not None or any(one in DATABASES and one not in mark.args for one in given)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full-sweep"):
        return
    left = [item for item in items if is_for_full_sweep(item)]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What is imported by now stays: to look through it takes half a second, at each full collection of garbage that a framework makes."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def full_sweep(pytestconfig: pytest.Config) -> bool:
    """Whether to try all there is, which takes hours."""
    return bool(pytestconfig.getoption("--full-sweep"))


@pytest.fixture(scope="session")
def postgres_binaries() -> Path:
    """The folder of ``initdb`` and ``pg_ctl``."""
    found = _postgres_folder()
    if found is None:
        pytest.skip("no PostgreSQL is installed (Debian: apt-get install postgresql)")
    return found


class PostgresServer:
    """A PostgreSQL server of our own on a Unix socket in ``folder``."""

    def __init__(self, binaries: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="forebay-pg-"))
        self._binaries = binaries
        self._as_owner: list[str] = []
        if os.geteuid() == 0:
            owner = pwd.getpwnam("postgres")
            os.chown(self.folder, owner.pw_uid, owner.pw_gid)
            self._as_owner = ["runuser", "-u", "postgres", "--"]
        self._run("initdb", "-D", str(self.folder / "data"), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._as_owner, str(self._binaries / program), *arguments]
        subprocess.run(command, check=True, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def start(self) -> None:
        options = f"-c listen_addresses='' -c unix_socket_directories={self.folder} -c fsync=off"
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-l", str(self.folder / "log"), "-o", options, "-w", "start")

    def stop(self, mode: str = "fast") -> None:
        """``immediate``: as where its host loses power."""
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-m", mode, "-w", "stop")

    def new_database(self, name: str) -> str:
        """Its URL."""
        with psycopg.connect(host=str(self.folder), user="postgres", dbname="postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return f"postgresql+psycopg://postgres@/{name}?host={self.folder}"


@pytest.fixture(scope="session")
def postgres_server(postgres_binaries: Path) -> Iterator[str]:
    """The folder of a server for all tests."""
    server = PostgresServer(postgres_binaries)
    server.start()
    try:
        yield str(server.folder)
    finally:
        server.stop()
        shutil.rmtree(server.folder)


@pytest.fixture
def own_postgres(postgres_binaries: Path) -> Iterator[PostgresServer]:
    """A server for one test, which stops and starts it; it runs at first."""
    server = PostgresServer(postgres_binaries)
    server.start()
    try:
        yield server
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):  # the test has stopped it
            server.stop("immediate")
        shutil.rmtree(server.folder)


@pytest.fixture(scope="session")
def new_postgres_database(postgres_server: str) -> Callable[..., str]:
    """Makes databases, empty or copies of another one, in place of what had their name, and gives their URL."""

    def make(name: str = "forebay", template: str = "template1") -> str:
        with psycopg.connect(host=postgres_server, user="postgres", dbname="postgres", autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return f"postgresql+psycopg://postgres@/{name}?host={postgres_server}"

    return make


@pytest.fixture
def postgres_url(new_postgres_database: Callable[..., str]) -> str:
    """An empty database."""
    return new_postgres_database()


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind that is supported."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/forebay.sqlite3"
    url: str = request.getfixturevalue("postgres_url")
    return url
