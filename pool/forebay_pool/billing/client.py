"""What the pool asks of billing: to take usage records and heartbeats, to tell users of their jobs, and what flavors cost."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from forebay_wire.causes import cause_of_budget
from forebay_wire.message_parts import PriceReceipt, SurchargeReceipt
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest, HTTPResponse

from forebay_pool.billing.heartbeats import Budget
from forebay_pool.errors import BillingRefused, BillingUnavailable
from forebay_pool.model.causes import heard
from forebay_pool.model.prices import Tariff
from forebay_pool.model.types import BudgetState

CONNECT_SECONDS = 2.0
REQUEST_SECONDS = 10.0
REFUSALS = (400, 409, 413, 422)
"""Statuses that say the records are wrong; all others are worth another try."""
ANSWER_CHARACTERS_MAX = 500


class _PriceRow(BaseModel):
    model_config = ConfigDict(extra="ignore")

    flavor: str
    price_nano_per_hour: int
    currency: str


class _SurchargeRow(BaseModel):
    model_config = ConfigDict(extra="ignore")

    model: str
    surcharge_nano_per_hour: int
    currency: str


class _PriceVersionRow(_PriceRow):
    version: int
    valid_from_ns: int

    @property
    def receipt(self) -> PriceReceipt:
        return PriceReceipt(
            flavor=self.flavor,
            currency=self.currency,
            version=self.version,
            nano_per_hour=self.price_nano_per_hour,
            valid_from_ns=self.valid_from_ns,
        )


class _SurchargeVersionRow(_SurchargeRow):
    version: int
    valid_from_ns: int

    @property
    def receipt(self) -> SurchargeReceipt:
        return SurchargeReceipt(
            model=self.model,
            currency=self.currency,
            version=self.version,
            nano_per_hour=self.surcharge_nano_per_hour,
            valid_from_ns=self.valid_from_ns,
        )


class _ParkedPriceRow(BaseModel):
    model_config = ConfigDict(extra="ignore")

    currency: str
    version: int
    price_nano_per_gib_hour: int
    valid_from_ns: int


class _Currencies(BaseModel):
    model_config = ConfigDict(extra="ignore")

    currency: str
    tenants: dict[str, str]


class _BudgetRow(BaseModel):
    model_config = ConfigDict(extra="ignore")

    tenant: str
    user: str | None
    span: str | None
    state: BudgetState
    sentence: str = ""
    grace_seconds: float = 0.0
    period: str | None = None
    origin: str | None = None
    code: str | None = None
    """Whether it is used up, or nearly; a billing of an older release says so in ``sentence`` alone."""

    @property
    def budget(self) -> Budget:
        cause = cause_of_budget({**self.model_dump(), "notebook": self.span})
        why = self.sentence if cause is None else heard(cause) or self.sentence
        return Budget(self.tenant, self.user, self.span, self.state, why, self.grace_seconds)


class _HeartbeatAnswer(BaseModel):
    model_config = ConfigDict(extra="ignore")

    budgets: list[_BudgetRow]


_PRICES = TypeAdapter(list[_PriceRow])
_SURCHARGES = TypeAdapter(list[_SurchargeRow])
_PRICE_VERSIONS = TypeAdapter(list[_PriceVersionRow])
_SURCHARGE_VERSIONS = TypeAdapter(list[_SurchargeVersionRow])
_PARKED_PRICES = TypeAdapter(list[_ParkedPriceRow])
_CURRENCIES = TypeAdapter(_Currencies)

T = TypeVar("T")


class BillingClient:
    """Speaks to the billing service as the pool, with the pool's own token."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"token {token}", "Content-Type": "application/json"}

    async def send_usage(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Hands records over; those that billing has already are no error. Raises BillingRefused, BillingUnavailable."""
        await self._fetch("POST", "api/usage", json.dumps({"records": records}))

    async def send_heartbeat(self, body: Mapping[str, Any]) -> list[Budget]:
        """Tells of open leases; all budgets that are not open. Raises BillingRefused, BillingUnavailable."""
        response = await self._fetch("POST", "api/heartbeats", json.dumps(body))
        try:
            answer = _HeartbeatAnswer.model_validate_json(response.body)
        except ValidationError as error:
            raise BillingUnavailable(f"billing's budgets cannot be read: {error}") from None
        return [row.budget for row in answer.budgets]

    async def send_notice(self, body: Mapping[str, Any]) -> None:
        """Has a user told of a job; billing knows repeated ones by their key. Raises BillingRefused, BillingUnavailable."""
        await self._fetch("POST", "api/notices/jobs", json.dumps(body))

    async def tariff(self) -> Tariff:
        """What flavors, models of devices and parked bytes cost today, and what tenants are billed in. Raises BillingUnavailable."""
        prices = await self._read("api/prices", _PRICES)
        surcharges = await self._read("api/surcharges", _SURCHARGES)
        parked = await self._read("api/parked-prices", _PARKED_PRICES)
        currencies, now_ns = await self._read("api/currencies", _CURRENCIES), time.time_ns()
        return Tariff(
            {(row.flavor, row.currency): row.price_nano_per_hour for row in prices},
            {(row.model, row.currency): row.surcharge_nano_per_hour for row in surcharges},
            currencies.currency,
            currencies.tenants,
            {one.currency: one.price_nano_per_gib_hour for one in sorted(parked, key=attrgetter("version")) if one.valid_from_ns <= now_ns},
        )

    async def price_versions(self) -> list[PriceReceipt | SurchargeReceipt]:
        """All versions of what flavors and models of devices cost, those to come included. Raises BillingUnavailable."""
        prices = await self._read("api/prices?history=1", _PRICE_VERSIONS)
        surcharges = await self._read("api/surcharges?history=1", _SURCHARGE_VERSIONS)
        return [*(row.receipt for row in prices), *(row.receipt for row in surcharges)]

    async def _read(self, path: str, answer: TypeAdapter[T]) -> T:
        response = await self._fetch("GET", path, None)
        try:
            return answer.validate_json(response.body)
        except ValidationError as error:
            raise BillingUnavailable(f"billing's answer to GET {path} cannot be read: {error}") from None

    async def _fetch(self, method: str, path: str, body: str | None) -> HTTPResponse:
        request = HTTPRequest(
            f"{self._url}/{path}",
            method=method,
            headers=self._headers,
            body=body,
            connect_timeout=CONNECT_SECONDS,
            request_timeout=REQUEST_SECONDS,
        )
        try:
            return await AsyncHTTPClient().fetch(request)
        except HTTPClientError as error:
            answer = error.response.body.decode(errors="replace")[:ANSWER_CHARACTERS_MAX] if error.response and error.response.body else ""
            said = f"billing answered {error.code} to {method} {path}: {answer or error.message}"
            raise (BillingRefused(said) if error.code in REFUSALS else BillingUnavailable(said)) from None
        except OSError as error:
            raise BillingUnavailable(f"billing cannot be reached at {self._url} ({error})") from None
