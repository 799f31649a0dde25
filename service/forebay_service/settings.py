"""Settings of the services: what all of them have, and where they come from.

The first source that gives a setting wins: the command line, the environment (``FOREBAY_<SERVICE>_<SETTING>``), what JupyterHub tells
a service that it manages, the TOML file, the default. The keys of a table are taken one by one in the same way.
"""

from __future__ import annotations

import importlib.util
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from forebay_service.errors import SettingsError
from forebay_service.peers.tls import ServerCertificate, is_local, is_open

HUB_VARIABLES = {
    "hub_api_url": "JUPYTERHUB_API_URL",
    "hub_token": "JUPYTERHUB_API_TOKEN",
    "prefix": "JUPYTERHUB_SERVICE_PREFIX",
    "host": "JUPYTERHUB_SERVICE_URL",
    "port": "JUPYTERHUB_SERVICE_URL",
}
"""Where JupyterHub tells what: https://jupyterhub.readthedocs.io/en/stable/reference/services.html."""


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


Prefix = Annotated[str, Field(pattern=r"^/([^\s?#]*/)?$")]
PREFIX = "Path that all endpoints stand under, with a slash at both ends."
MetricsToken = Annotated[str, Field(pattern=r"^([!-~]{16,})?$")]
LogLevel = Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower)]


def check_driver(database_url: str, package: str) -> str:
    """The URL of a database whose driver is installed. Raises SettingsError."""
    if database_url.startswith("postgresql") and importlib.util.find_spec("psycopg") is None:
        raise SettingsError(f"database_url asks for PostgreSQL, whose driver is not installed: pip install '{package}[postgresql]'.")
    return database_url


class ServiceSettings(BaseModel):
    """What every service can be told; each adds its own. Made directly, it reads no source and is what its arguments say."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    package: ClassVar[str]
    """Of the service: its command is ``python -m PACKAGE``, and its variables begin with ``PACKAGE_`` in capitals."""
    peers: ClassVar[tuple[str, ...]] = ("hub_api_url",)
    """The settings that are addresses of other services."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(0, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    tls_certificate: Path | None = Field(None, description="PEM file of this service's certificate and its chain; none: no TLS.")
    tls_key: Path | None = Field(None, description="PEM file of its private key; none: it is in tls_certificate.")
    tls_authority: Path | None = Field(
        None, description="PEM file of the authorities whose certificates other services show; none: those that the system knows."
    )
    plaintext: bool = Field(False, description="Whether this service may listen, and reach others, beyond this host without TLS.")
    prefix: Prefix = Field("/", description=PREFIX)
    hub_api_url: str | None = Field(None, pattern="^https?://", description="JupyterHub's API, which tells whose token it is.")
    peers_share: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Share of this service's time that requests and messages of users may take; who used least lately goes first. 1: all.",
    )
    connections_max: int = Field(
        10_000, ge=16, le=1_000_000, description="Most connections for requests, and no more than 3/4 of the open files that it may have."
    )
    metrics_token: MetricsToken = Field(
        "", repr=False, description="Who reads the metrics sends it; none: programs on this host need none."
    )
    log_level: LogLevel = Field("info", description="Least serious log record that is written: debug, info, warning or error.")
    log_format: Literal["text", "json"] = Field("text", description="What a log record is: a line of text, or an object of JSON on a line.")

    @classmethod
    def load(
        cls, path: Path | None, environment: Mapping[str, str], command_line: Mapping[str, Any] | None = None, *, managed: bool = True
    ) -> Self:
        """The settings of all sources; JupyterHub's variables count where the service is ``managed``. Raises SettingsError."""
        variables = _Environment(cls.model_fields, f"{cls.package.upper()}_", environment)
        listed = f"python -m {cls.package} --help lists all settings"
        for name in variables.unknown():
            raise SettingsError(f"{name} names no setting; {listed}.")
        sources: list[Source] = [_CommandLine(BaseSettings, dict(command_line or {})), variables]
        sources += [_Hub(cls.model_fields, environment)] if managed else []
        sources += [_File(path)] if path is not None else []
        try:
            found = cls.model_validate(_merged(sources))
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            raise SettingsError(f"{_sentence(first, sources, variables)}; {listed}.") from None
        found.check_plaintext()
        return found

    def tls(self) -> ServerCertificate | None:
        """What this service's listener shows; None without TLS. Raises SettingsError."""
        return None if self.tls_certificate is None else ServerCertificate(self.tls_certificate, self.tls_key)

    def check_plaintext(self) -> None:
        """Raises SettingsError where tokens would go over a network in clear, and ``plaintext`` does not say that they may."""
        if self.plaintext:
            return
        if self.tls_certificate is None and not is_local(self.host):
            raise SettingsError(
                f"host is {self.host or 'every address'}, which other hosts reach, and this service has no TLS: set tls_certificate and"
                " tls_key, or plaintext = true where the network is closed to others."
            )
        for name in self.peers:
            given = getattr(self, name)
            for url in (given,) if isinstance(given, str) else given or ():
                if is_open(url):
                    raise SettingsError(
                        f"{name} is {url}, which is reached over a network without TLS: use https, or set plaintext = true where the"
                        " network is closed to others."
                    )


class _CommandLine(InitSettingsSource):
    def name_of(self, setting: str) -> str:
        return f"--{setting.replace('_', '-')}"


class _Environment(PydanticBaseSettingsSource):
    """A variable is a text as it stands; of a list or table it is the TOML value."""

    def __init__(self, fields: Mapping[str, FieldInfo], prefix: str, environment: Mapping[str, str]) -> None:
        super().__init__(BaseSettings)
        self._fields, self._prefix, self._environment = fields, prefix, environment

    def name_of(self, setting: str) -> str:
        return self._prefix + setting.upper()

    def unknown(self) -> list[str]:
        """Variables with the service's prefix that name no setting."""
        known = {self.name_of(name) for name in self._fields}
        return sorted(name for name in self._environment if name.startswith(self._prefix) and name not in known)

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return self._environment.get(self.name_of(field_name)), field_name, _has_parts(field.annotation)

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """What is no TOML stays a text: a list of one secret needs no brackets."""
        try:
            return tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            return value

    def __call__(self) -> dict[str, Any]:
        read = {name: self.get_field_value(field, name) for name, field in self._fields.items()}
        given = {name: (text, has_parts) for name, (text, _, has_parts) in read.items() if text is not None}
        return {name: self.prepare_field_value(name, self._fields[name], *value) for name, value in given.items()}


class _Hub(InitSettingsSource):
    def __init__(self, fields: Mapping[str, FieldInfo], environment: Mapping[str, str]) -> None:
        told: dict[str, Any] = {name: environment.get(variable) for name, variable in HUB_VARIABLES.items() if name in fields}
        if told.get("host"):
            told["host"], told["port"] = _address(told["host"])
        super().__init__(BaseSettings, {name: value for name, value in told.items() if value})

    def name_of(self, setting: str) -> str:
        return HUB_VARIABLES[setting]


class _File(TomlConfigSettingsSource):
    """Raises SettingsError where the file cannot be read, which pydantic-settings takes for an empty one."""

    def __init__(self, path: Path) -> None:
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                raise SettingsError(f"The settings file {path} cannot be read: it is no regular file.")
            super().__init__(BaseSettings, path)
        except OSError as error:
            raise SettingsError(f"The settings file {path} cannot be read: {error.strerror}.") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SettingsError(f"The settings file {path} is not TOML: {error}.") from None

    def name_of(self, setting: str) -> str:
        return f"{setting} in {self.toml_file_path}"


Source = _CommandLine | _Environment | _Hub | _File


def describe(model: type[BaseModel]) -> str:
    """All settings, for ``--help``."""
    return "\n".join(f"  {name} ({_default(field)})\n      {field.description}" for name, field in model.model_fields.items())


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    return "default none" if field.default in (None, "", (), {}) else f"default {field.default}"


def _merged(sources: Sequence[PydanticBaseSettingsSource]) -> dict[str, Any]:
    """What the sources give together, as it stands; the first wins."""

    class Merged(BaseSettings):
        model_config = SettingsConfigDict(extra="allow")

        @classmethod
        def settings_customise_sources(cls, *_: Any, **__: Any) -> tuple[PydanticBaseSettingsSource, ...]:
            return tuple(sources)

    return Merged().model_extra or {}


def _sentence(error: ErrorDetails, sources: Sequence[Source], variables: _Environment) -> str:
    """What is wrong with which setting of which source, without its value, which may be a secret."""
    setting, *parts = map(str, error["loc"])
    if error["type"] == "missing" and not parts:
        return f"The setting {setting} is missing: give it in the settings file, or as {variables.name_of(setting)}"
    name = next(_names(setting, sources)) + (f" ({'.'.join((setting, *parts))})" if parts else "")
    if error["type"] == "extra_forbidden":
        return f"{name} names no setting"
    problem = error["ctx"]["error"] if error["type"] == "value_error" else error["msg"]
    return f"{name} cannot be used: {problem}"


def _names(setting: str, sources: Sequence[Source]) -> Iterator[str]:
    yield from (source.name_of(setting) for source in sources if setting in source())
    yield f"The setting {setting}"


def _has_parts(annotation: Any) -> bool:
    """Whether values of this type are lists or tables."""
    return get_origin(annotation) in (tuple, dict) or any(map(_has_parts, get_args(annotation)))


def _address(url: str) -> tuple[str, int]:
    """Host and port. Raises SettingsError."""
    parts = urlsplit(url)
    try:
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (KeyError, ValueError):
        raise SettingsError(f"JUPYTERHUB_SERVICE_URL cannot be used: {url!r} is no http address of a host and port.") from None
    return parts.hostname or "127.0.0.1", port
