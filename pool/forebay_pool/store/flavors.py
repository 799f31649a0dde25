"""Flavors in the packaged data file, at the HTTP edge, and as rows."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Self

from forebay_service.errors import SettingsError
from forebay_wire.remote.runtimes import RUNTIMES, Runtime
from forebay_wire.texts import Name
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from forebay_pool.model.catalogue import ways_of
from forebay_pool.model.policies import ImagePolicy
from forebay_pool.model.types import WHOLE_MILLI, Equivalent, Flavor
from forebay_pool.settings import PLACES_MAX, Bytes, Place

NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,63}$"
DEVICES_MAX = 100_000
RESIDENTS_MAX = 100_000


def _in_order(named: tuple[Runtime, ...]) -> tuple[Runtime, ...]:
    """Each once."""
    return tuple(runtime for runtime in RUNTIMES if runtime in named)


Runtimes = Annotated[tuple[Runtime, ...], Field(min_length=1, max_length=16), AfterValidator(_in_order)]
"""What a flavor offers, some at least."""
Egress = Annotated[tuple[Place, ...], Field(max_length=PLACES_MAX), AfterValidator(lambda places: tuple(dict.fromkeys(places)))]
"""Places that processes of a flavor may reach, each once, maybe none."""


class EquivalentBody(BaseModel):
    """So many devices of a model together, or a share of one."""

    model_config = ConfigDict(extra="forbid")

    model: Name
    count: Annotated[int, Field(ge=1, le=DEVICES_MAX, strict=True)] = 1
    share_milli: Annotated[int, Field(ge=1, le=WHOLE_MILLI, strict=True)] = WHOLE_MILLI

    @model_validator(mode="after")
    def _either_a_gang_or_a_share(self) -> Self:
        if self.count > 1 and self.share_milli < WHOLE_MILLI:
            raise ValueError(f"several devices are leased whole: count {self.count} goes with share_milli {WHOLE_MILLI}")
        return self

    def equivalent(self) -> Equivalent:
        return Equivalent(self.model, self.count, self.share_milli)


class FlavorBody(BaseModel):
    """What ``PUT api/flavors/{name}`` takes."""

    model_config = ConfigDict(extra="forbid")

    memory_bytes: Annotated[int, Field(ge=2**20, lt=2**63, strict=True)]
    equivalents: Annotated[tuple[EquivalentBody, ...], Field(min_length=1, max_length=64)]

    residents_max: Annotated[int, Field(ge=1, le=RESIDENTS_MAX, strict=True)] | None = None
    images: ImagePolicy | None = None
    """None: where the pool keeps those of others."""
    runtimes: Runtimes | None = None
    """None: all that its hosts serve."""
    egress: Egress | None = None
    """None: those of the pool's setting ``process_egress``."""

    def named(self, name: str) -> Flavor:
        ways = tuple(e.equivalent() for e in self.equivalents)
        return Flavor(name, self.memory_bytes, ways, self.residents_max, self.images, self.runtimes, self.egress)


def settings_of(flavor: Flavor) -> dict[str, Any]:
    """What an operator sets of a flavor."""
    equivalents = [{"model": one.model, "count": one.count, "share_milli": one.share_milli} for one in flavor.equivalents]
    bounds = {"memory_bytes": flavor.memory_bytes, "residents_max": flavor.residents_max, "images": flavor.images}
    runtimes = {} if flavor.runtimes is None else {"runtimes": list(flavor.runtimes)}
    egress = {} if flavor.egress is None else {"egress": list(flavor.egress)}
    return {**bounds, **runtimes, **egress, "equivalents": equivalents}


class _Seed(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    memory: Bytes
    equivalents: Annotated[tuple[EquivalentBody, ...], Field(max_length=64)] = ()
    """None: what of the catalogue's accelerators holds its memory."""
    residents_max: Annotated[int, Field(ge=1, le=RESIDENTS_MAX)] | None = None
    images: ImagePolicy | None = None
    runtimes: Runtimes | None = None
    egress: Egress | None = None

    def flavor(self) -> Flavor:
        named = tuple(one.equivalent() for one in self.equivalents)
        ways = named or ways_of(self.memory)
        return Flavor(self.name, self.memory, ways, self.residents_max, self.images, self.runtimes, self.egress)


class _Seeds(BaseModel):
    model_config = ConfigDict(extra="forbid")

    flavors: Annotated[tuple[_Seed, ...], Field(min_length=1, max_length=1000)]


def seeds(path: Path | None = None) -> list[Flavor]:
    """The flavors of the file, or the packaged ones. Raises SettingsError."""
    return [seed.flavor() for seed in _read(path)]


def scale() -> list[Flavor]:
    """The packaged flavors that accelerators serve, the smallest first."""
    return sorted((seed.flavor() for seed in _read(None) if not seed.equivalents), key=attrgetter("memory_bytes"))


def _read(path: Path | None) -> tuple[_Seed, ...]:
    source = files("forebay_pool").joinpath("flavors.toml") if path is None else path
    try:
        return _Seeds.model_validate(tomllib.loads(source.read_text())).flavors
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"flavors cannot be read from {source}: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise SettingsError(f"flavors cannot be read from {source}: {where}: {first['msg']}") from None
