"""Meters, their events, their sums by the hour, credit grants; errors of meter events are told later."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stripe_emulator.account import Account, Object, Refused

PAST_SECONDS_MAX = 35 * 86_400
FUTURE_SECONDS_MAX = 300
IDENTIFIER_SECONDS = 24 * 3600
VALUE_DIGITS_MAX = 15
SAMPLES_MAX = 10


@dataclass(frozen=True)
class Counted:
    """An event as it is counted."""

    meter: str
    customer: str
    timestamp: int
    value: int


class Meters:
    """``report(type, meter id or None, reason)`` makes a thin event."""

    def __init__(self, account: Account, report: Callable[[str, str | None, Object], None]) -> None:
        self._account = account
        self._report = report
        self._waiting: list[Object] = []
        self._identifiers: dict[str, int] = {}
        self.counted: list[Counted] = []

    @property
    def waiting(self) -> int:
        """How many events were taken, and not looked at."""
        return len(self._waiting)

    def create_meter(self, params: Object) -> Object:
        if self._named(params["event_name"]) is not None:
            raise Refused(f"An active meter with event name {params['event_name']} already exists.", "resource_already_exists")
        now = self._account.now_s()
        return self._account.keep(
            {
                "id": self._account.new_id("mtr"), "object": "billing.meter", "created": now, "updated": now, "livemode": False,
                "display_name": params["display_name"], "event_name": params["event_name"], "status": "active",
                "default_aggregation": params["default_aggregation"], "status_transitions": {},
                "customer_mapping": params.get("customer_mapping", {"type": "by_id", "event_payload_key": "stripe_customer_id"}),
                "value_settings": params.get("value_settings", {"event_payload_key": "value"}),
            }
        )  # fmt: skip

    def set_status(self, id: str, status: str) -> Object:
        meter = self._account.get("billing.meter", id)
        meter["status"] = status
        return meter

    def take(self, params: Object) -> Object:
        """An event: checked for time and identifier at once, for all else later."""
        now = self._account.now_s()
        timestamp, identifier = params.get("timestamp", now), params["identifier"]
        if timestamp < now - PAST_SECONDS_MAX:
            raise Refused("The timestamp must be within the past 35 calendar days.", "timestamp_too_far_in_past", param="timestamp")
        if timestamp > now + FUTURE_SECONDS_MAX:
            raise Refused("The timestamp must be at most 5 minutes in the future.", "timestamp_in_future", param="timestamp")
        if now - self._identifiers.get(identifier, -(10**12)) < IDENTIFIER_SECONDS:
            raise Refused(f"An event already exists with identifier {identifier}.")
        self._identifiers[identifier] = now
        event = {
            "object": "billing.meter_event", "created": now, "event_name": params["event_name"], "identifier": identifier,
            "livemode": False, "payload": params["payload"], "timestamp": timestamp,
        }  # fmt: skip
        self._waiting.append(event)
        return event

    def process(self) -> None:
        """What happens later: events are counted, or reported."""
        faults: dict[str | None, list[tuple[str, Object]]] = {}
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            meter = self._named(event["event_name"]) or self._named(event["event_name"], "inactive")
            fault = self._fault(meter, event)
            if fault is not None:
                faults.setdefault(None if meter is None else meter["id"], []).append((fault, event))
            elif meter is not None:
                key = meter["customer_mapping"]["event_payload_key"]
                value = int(event["payload"][meter["value_settings"]["event_payload_key"]])
                self.counted.append(Counted(meter["id"], event["payload"][key], event["timestamp"], value))
        for meter_id, found in faults.items():
            kind = "v1.billing.meter.no_meter_found" if meter_id is None else "v1.billing.meter.error_report_triggered"
            self._report(kind, meter_id, _reason(found))

    def _fault(self, meter: Object | None, event: Object) -> str | None:
        if meter is None:
            return "no_meter"
        if meter["status"] != "active":
            return "archived_meter"
        customer = event["payload"].get(meter["customer_mapping"]["event_payload_key"])
        if customer is None:
            return "meter_event_no_customer_defined"
        found = self._account.objects.get(customer)
        if found is None or found.get("deleted"):
            return "meter_event_customer_not_found"
        value = event["payload"].get(meter["value_settings"]["event_payload_key"], "")
        if not re.fullmatch(r"-?\d+", value):
            return "meter_event_invalid_value"
        return "meter_event_value_too_many_digits" if len(value.lstrip("-")) > VALUE_DIGITS_MAX else None

    def _named(self, name: str, status: str = "active") -> Object | None:
        return next(iter(self._account.of("billing.meter", event_name=name, status=status)), None)

    def summaries(self, meter: str, params: Object) -> list[Object]:
        """Sums by the hour; hours without events are not listed."""
        self._account.get("billing.meter", meter)
        sums: dict[int, int] = {}
        for event in self.counted:
            inside = params["start_time"] <= event.timestamp < params["end_time"]
            if inside and (event.meter, event.customer) == (meter, params["customer"]):
                hour = event.timestamp // 3600 * 3600
                sums[hour] = sums.get(hour, 0) + event.value
        return [
            {
                "id": f"mtrusg_{hour}", "object": "billing.meter_event_summary", "aggregated_value": float(value), "start_time": hour,
                "end_time": hour + 3600, "livemode": False, "meter": meter,
            }
            for hour, value in sorted(sums.items(), reverse=True)
        ]  # fmt: skip

    def create_grant(self, params: Object) -> Object:
        now = self._account.now_s()
        amount: dict[str, Any] = params["amount"]
        if amount["monetary"]["value"] <= 0:
            raise Refused("The amount of a credit grant must be positive.")
        if not 0 <= params.get("priority", 50) <= 100:
            raise Refused("The priority of a credit grant is 0 to 100.")
        if params.get("expires_at", now + 1) <= now or params.get("effective_at", now) < now - 60:
            raise Refused("A credit grant must expire, and become effective, in the future.")
        return self._account.keep(
            {
                "id": self._account.new_id("credgr"), "object": "billing.credit_grant", "created": now, "updated": now, "livemode": False,
                "amount": amount, "applicability_config": params["applicability_config"], "category": params.get("category", "paid"),
                "customer": self._account.live_customer(params["customer"])["id"], "name": params.get("name"),
                "metadata": dict(params.get("metadata") or {}), "priority": params.get("priority", 50), "voided_at": None,
                "effective_at": params.get("effective_at", now), "expires_at": params.get("expires_at"),
            }
        )  # fmt: skip


def _reason(faults: list[tuple[str, Object]]) -> Object:
    kinds = sorted({fault for fault, _ in faults})
    types = [
        {
            "code": kind,
            "error_count": sum(fault == kind for fault, _ in faults),
            "sample_errors": [
                {"error_message": f"The event failed with {kind}.", "request": {"identifier": event["identifier"]}}
                for fault, event in faults
                if fault == kind
            ][:SAMPLES_MAX],
        }
        for kind in kinds
    ]
    return {"error_count": len(faults), "error_types": types}
