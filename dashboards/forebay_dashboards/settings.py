"""The settings: a TOML file, then the environment, then what JupyterHub tells its managed service; the later wins."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from forebay_dashboards.errors import SettingsError

ENVIRONMENT_PREFIX = "FOREBAY_DASHBOARDS_"

Seconds = Annotated[float, Field(gt=0, le=3600)]
HttpUrl = Annotated[str, Field(pattern=r"^https?://[^\s/]+(/\S*)?$")]

_FROM_HUB = {
    "hub_api_url": "JUPYTERHUB_API_URL",
    "hub_token": "JUPYTERHUB_API_TOKEN",
    "prefix": "JUPYTERHUB_SERVICE_PREFIX",
    "url": "JUPYTERHUB_SERVICE_URL",
}


class Settings(BaseModel):
    """Every setting may stand in the TOML file, or in the environment as ``FOREBAY_DASHBOARDS_`` and its name in capitals."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: HttpUrl = Field(default="http://127.0.0.1:8783", description="Address to listen on; JupyterHub gives it.")
    prefix: Annotated[str, Field(pattern="^/([^/]+/)*$")] = Field(
        default="/services/dashboards/", description="Path under which the pages live; JupyterHub gives it."
    )
    hub_api_url: HttpUrl = Field(default="http://127.0.0.1:8081/hub/api", description="JupyterHub's API; JupyterHub gives it.")
    hub_token: str = Field(
        min_length=1, repr=False, description="This service's own token, with custom:forebay:service; JupyterHub gives it."
    )
    hub_home: str = Field(default="/hub/home", description="Where the link to the notebooks leads.")
    pool_url: HttpUrl = Field(description="The pool's address with its prefix, such as http://127.0.0.1:8781/services/pool/.")
    billing_url: HttpUrl = Field(description="Billing's address with its prefix, such as http://127.0.0.1:8782/services/billing/.")
    upstream_seconds: Seconds = Field(default=5, description="Longest wait for an answer of pool or billing.")
    feed_silence_seconds: Seconds = Field(default=45, description="Silence on the pool's event stream after which it is opened anew.")
    feed_retry_seconds_max: Seconds = Field(default=10, description="Longest pause between attempts to open the pool's event stream.")
    update_seconds: Seconds = Field(default=0.2, description="A browser is told of changes at most this often.")
    browser_stall_seconds: Seconds = Field(default=10, description="A browser that has not read for this long is dropped; it reconnects.")
    browser_quiet_seconds: Seconds = Field(default=15, description="A sign of life is sent to a browser after this much quiet.")
    browsers_max: Annotated[int, Field(ge=1, le=100_000)] = Field(default=2000, description="Most open event streams of browsers.")
    page_records: Annotated[int, Field(ge=1, le=200)] = Field(default=25, description="Usage records on one page.")
    identity_seconds: Annotated[int, Field(ge=1, le=300)] = Field(
        default=10, description="How long JupyterHub's answer about a visitor is trusted; a revoked role works no longer than this."
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(default="INFO", description="Least severe level that is logged.")

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to listen on."""
        parts = urlsplit(self.url)
        return parts.hostname or "127.0.0.1", parts.port or 80


def load(path: Path | None, environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings of ``path`` (None: no file) and the environment, which wins. Raises SettingsError with one sentence."""
    values = {} if path is None else _read(path)
    for key, value in environment.items():
        if key.startswith(ENVIRONMENT_PREFIX):
            values[key.removeprefix(ENVIRONMENT_PREFIX).lower()] = value
    values |= {name: environment[key] for name, key in _FROM_HUB.items() if environment.get(key)}
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise SettingsError(_sentence(error)) from None


def describe() -> str:
    """All settings, for ``--help``."""
    lines = []
    for name, field in Settings.model_fields.items():
        default = "required" if field.is_required() else f"default {field.default!r}"
        lines.append(f"  {name} ({default})\n      {field.description}")
    return "\n".join(lines)


def _read(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"The configuration {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"The configuration {path} is not TOML: {error}.") from None


def _sentence(error: ValidationError) -> str:
    first = error.errors(include_input=False, include_url=False)[0]
    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"There is no setting {name!r}; python -m forebay_dashboards --help lists them."
    if first["type"] == "missing":
        return f"The setting {name} is missing: give it in the configuration file or as {ENVIRONMENT_PREFIX}{name.upper()}."
    return f"The setting {name} cannot be used: {first['msg']}."
