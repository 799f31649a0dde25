"""A service as a process: its command line, its log, where it listens, and how it is asked to stop.

A record of the log is one line, whoever chose the names in it, so that no name can be read as another record or field:
``TIME LEVEL LOGGER action=… field=value … message="…"``. Fields come from ``extra``;
a message without fields, such as a library's, stands as it is. With ``log_format`` ``json`` it is an object of JSON instead.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from tornado.httpclient import AsyncHTTPClient
from tornado.netutil import bind_sockets

from forebay_service.errors import SettingsError
from forebay_service.peers.tls import Trust
from forebay_service.settings import ServiceSettings, describe

FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
S = TypeVar("S", bound=ServiceSettings)
_UNFIT = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_PLAIN = re.compile(r'[^\s"=]+')
_ARGUMENT = r"(?:key|token|code|state|_xsrf|code_verifier|access_token|refresh_token)"
_ESCAPED = r"%(?:25)*"
"""Begins a character that is escaped, however often."""
_SECRETS = re.compile(
    rf"([?&]{_ARGUMENT}=)[^&\s\"'<>)]+|({_ESCAPED}(?:3F|26){_ARGUMENT}{_ESCAPED}3D)(?:(?!{_ESCAPED}26)[^&\s\"'<>)])+", re.IGNORECASE
)
"""Arguments of an address that are secret, also where the address stands in another one, as where a sign-in leads to."""
_OF_EVERY_RECORD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


def one_line(text: str) -> str:
    """The text with what would break or turn a line written as Python writes it."""
    return _UNFIT.sub(lambda found: ascii(found[0])[1:-1], text)


def without_secrets(text: str) -> str:
    """The text without keys of links, tokens, and codes of sign-in that stand in addresses."""
    return _SECRETS.sub(lambda found: f"{found[1] or found[2]}[secret]", text)


class WithoutSecrets(logging.Filter):
    """Takes them out of what is logged, before any handler has it."""

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            text = record.getMessage()
        except (TypeError, ValueError):  # logging itself tells of a message that does not fit its arguments
            return True
        record.msg, record.args = without_secrets(text), ()
        return True


def keep_secrets(*loggers: str) -> None:
    """Has these loggers tell no secrets."""
    for logger in map(logging.getLogger, loggers):
        if not any(isinstance(one, WithoutSecrets) for one in logger.filters):
            logger.addFilter(WithoutSecrets())


class OneLine(logging.Formatter):
    """Writes fields before the message, their values in quotes where need be, and escapes both; what failed stands below, indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = {name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD}
        if fields:
            fields = {"action": fields.pop("action", record.levelname.lower()), **fields, "message": record.message}
            record.message = " ".join(f"{name}={_value(value)}" for name, value in fields.items())
        record.message = one_line(without_secrets(record.message))
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        lines = super().formatException(ei).splitlines()
        return "\n".join(f"  | {one_line(without_secrets(line))}" for line in lines)


class JsonLines(logging.Formatter):
    """An object for each record: ``time``, ``level``, ``logger``, ``message``, its fields, and ``exception`` with what failed."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD}
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        told = {"time": time, "level": record.levelname, "logger": record.name, "message": without_secrets(record.getMessage())}
        if record.exc_info:
            told["exception"] = without_secrets(self.formatException(record.exc_info))
        if record.stack_info:
            told["stack"] = record.stack_info
        return json.dumps({**{name: _without_secrets(value) for name, value in fields.items()}, **told}, default=str)


def _without_secrets(value: object) -> object:
    return without_secrets(value) if isinstance(value, str) else value


def _value(value: object) -> str:
    """In quotes where it could be read as more than one value."""
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def log_to_stderr(level: str, form: str = "text") -> None:
    """Sets up the root logger of a service; of libraries that tell every step it hears warnings alone."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else OneLine(FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in ("alembic", "tornado.access", "tornado.application"):
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))


def parser(settings: type[ServiceSettings], description: str) -> argparse.ArgumentParser:
    """The options of every service. Those that are settings have their names, and are checked as settings are."""
    command = argparse.ArgumentParser(
        prog=f"python -m {settings.package}",
        description=description,
        epilog=f"settings, in the file, or as {settings.package.upper()}_<NAME> in the environment:\n{describe(settings)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--config", type=Path, metavar="FILE", help="TOML file of settings")
    command.add_argument("--port", help="overrides the setting port; 0 takes a free one")
    command.add_argument("--log-level", metavar="LEVEL", help="overrides the setting log_level")
    return command


def begin(settings: type[S], options: argparse.Namespace, *, managed: bool = True) -> S:
    """The settings of all sources, with the log and the trust of Tornado's clients set up as they say. Raises SettingsError."""
    given = {name: value for name, value in vars(options).items() if name in settings.model_fields and value is not None}
    loaded = settings.load(options.config, os.environ, given, managed=managed)
    log_to_stderr(loaded.log_level, loaded.log_format)
    if loaded.tls_authority is not None:
        Trust(loaded.tls_authority)
        AsyncHTTPClient.configure(None, defaults={"ca_certs": str(loaded.tls_authority)})  # each request reads it
    return loaded


def run(package: str, main: Callable[[], Coroutine[Any, Any, int]], refusals: tuple[type[Exception], ...]) -> int:
    """The exit status of ``main``; 2, with a sentence on standard error, where one of ``refusals`` prevents a start."""
    try:
        return asyncio.run(main())
    except refusals as error:
        print(f"{package.replace('_', '-')}: {error}", file=sys.stderr)
        return 2


def set_when_asked_to_stop(*events: asyncio.Event) -> None:
    """Has SIGTERM and SIGINT set these events of the running loop, and no others any more."""

    def ask() -> None:
        for event in events:
            event.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ask)


def listen(host: str, port: int) -> list[socket.socket]:
    """Listening sockets at this address, without Nagle's delay; the first one's port is the one taken. Raises SettingsError."""
    try:
        sockets = bind_sockets(port, host)
    except OSError as error:
        raise SettingsError(f"Cannot listen on {host}:{port} ({error.strerror}); stop what holds it, or choose another port.") from None
    for listener in sockets:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sockets
