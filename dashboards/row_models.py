"""Writes the rows of pool and billing that the pages show, ``forebay_dashboards/rows``, from the services' OpenAPI documents.

``.venv/bin/python dashboards/row_models.py``, after a change in what a service answers. A row is read leniently: what is not listed here as
hidden is a field, what may be null or is a list may be missing, and a word of a fixed set may be any other, as a newer service may say.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datamodel_code_generator import DataModelType, InputFileType, LiteralType, PythonVersion, generate
from datamodel_code_generator.format import Formatter

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "device"))
from client_models import DOCUMENTS, for_code

FOLDER = Path(__file__).parent / "forebay_dashboards" / "rows"
ROWS = "forebay_dashboards.rows"
HEADER = '"""What the service ``{service}`` answers, as typed rows. Written by ``dashboards/row_models.py`` from its OpenAPI document."""'
NAMES = {
    "pool": {
        "SpanRow": "Span", "FlavorRow": "Flavor", "SuggestionRow": "Suggestion", "LeaseRow": "Lease", "SessionRow": "Session",
        "FaultRow": "Fault", "DeviceRow": "Device", "NodeRow": "Node", "EntryRow": "AuditEntry", "AuditPage": "AuditPage",
        "Healthy": "Health", "Forecast": "Forecast", "QuotaRow": "Quota", "ShareRow": "ShareRow", "ModelRow": "Model", "JobRow": "Job",
        "ScheduleRow": "Schedule", "PieceRow": "Piece", "OutputRow": "JobOutput", "SharedNotebookRow": "SharedNotebook",
        "NotebookPageRow": "NotebookPage", "TrendRow": "Trend", "TrendRows": "Trends", "HolderRow": "Holder", "StretchRow": "Stretch",
        "Timeline": "Timeline",
    },
    "billing": {
        "PriceRow": "PriceVersion", "SurchargeRow": "SurchargeVersion", "ChangeRow": "PriceChange", "Changes": "PriceChanges",
        "CostRow": "MonthCost", "PreviewRow": "PreviewRow", "Preview": "Preview", "TierRow": "Tier", "PlanRow": "Plan",
        "ChargeRow": "UsageRecord", "UsagePage": "UsagePage", "SummaryRow": "SummaryRow", "OutlookRow": "ForecastRow",
        "InvoiceSummary": "InvoiceRow", "CreditRow": "CreditRow", "BudgetStanding": "BudgetRow", "BalanceRow": "Balance",
        "StandingRow": "Standing", "TenantOrder": "TenantOrder", "TenantRows": "TenantRows", "ChannelRow": "Channel",
        "MailingRow": "Mailing", "RecipientRow": "Recipient", "ProfileBody": "Profile", "AlertRow": "Alert", "JobCostRow": "JobCost",
        "NoticeChannelRow": "NoticeChannel", "PreferencesRow": "NoticePreferences", "OutboxRow": "OutboxRow", "OutboxPage": "OutboxPage",
        "StripeDifference": "Difference", "Reconciliation": "Reconciliation", "PaymentInvoiceRow": "PaymentInvoice", "Portal": "Portal",
        "UserFound": "UserFound", "SearchHits": "SearchHits", "RevenueRow": "RevenueHour", "EnergyRow": "EnergyHour",
    },
}  # fmt: skip
"""By service, what the pages call a schema."""
ELSEWHERE = {"EquivalentRow": "Equivalent", "CauseRow": "Cause"}
"""Schemas whose class is written by hand."""
SHARED = {"SpanRow": "Span", "Span": "Span"}
"""Schemas of both services that are the same row."""
BASES = ("Flavor", "Lease", "Session", "Device", "Node", "AuditEntry", "UsageRecord", "BudgetRow", "Job")
"""Rows with properties, which their bases in ``rows/bases.py`` have."""
HIDDEN = {
    "Flavor": ("currency", "parked_nano_per_gib_hour", "price_nano_per_hour", "wait_seconds", "waiting"),
    "Session": ("ahead", "ahead_tenant", "image"),
    "Device": ("speed", "spot", "switch"),
    "Node": ("moving", "parked_bytes", "releases"),
    "PriceChange": ("version",),
    "MonthCost": ("adjustments", "total_exact"),
    "Preview": ("totals",),
    "UsageRecord": ("cost_exact", "price_nano_per_gib_hour", "price_version", "rates", "session", "share_milli"),
    "SummaryRow": ("parked_nano",),
    "InvoiceRow": ("credited", "credited_minor", "issued_at_ns", "open_minor", "paid", "paid_minor", "total_minor"),
    "CreditRow": ("amount_minor", "effective_at_ns", "granted_at_ns", "granted_by", "priority"),
    "BudgetRow": ("set_by",),
    "Channel": ("set_at_ns", "set_by"),
    "Health": ("role", "status"),
    "Recipient": ("set_at_ns", "set_by", "tenant"),
    "Profile": ("currency", "tax_bps", "tax_label"),
    "Alert": ("budget", "grace_seconds", "id", "on_limit", "origin", "thresholds", "window"),
    "Quota": ("budget", "decayed_device_seconds"),
    "Job": ("folder", "kind", "not_before_ns", "schedule"),
    "JobCost": ("cost_exact", "open_nano"),
    "Schedule": (
        "arguments", "created_at_ns", "environment", "file", "flavor", "folder", "kind", "label", "notify", "retries_max",
        "tenant", "time_limit_seconds", "user",
    ),
    "NoticeChannel": ("set_at_ns",),
    "OutboxRow": ("first_tried_at_ns", "next_at_ns", "settled_at_ns"),
    "Reconciliation": ("totals",),
    "PaymentInvoice": ("currency", "paid_minor", "refreshed_at_ns", "stripe_id", "tenant", "total_minor"),
    "Portal": ("tenant",),
    "SharedNotebook": ("tenant",),
    "Trends": ("over",),
}  # fmt: skip
"""Fields that no page shows."""
MISSING: dict[str, dict[str, object]] = {
    "Flavor": {"servable": False},
    "Lease": {"node": "", "devices": 1, "share_milli": 1000},
    "Session": {"process": ""},
    "Device": {"vendor": "", "cordoned": False, "free_milli": 0},
    "Node": {"switch": "", "closed": 0, "free_milli": 0, "leases": 0, "residents": 0, "parked": 0},
    "UsageRecord": {"source": "", "devices": 1, "close_reason": "", "gib_hours": ""},
    "SummaryRow": {"kind": "process", "notebook": "", "energy_duration_ns": 0},
    "BudgetRow": {"window": "month", "origin": "operator", "grace_seconds": 0, "set_at_ns": 0, "state": "open"},
    "Standing": {"tax_label": "", "tax_bps": 0},
    "Channel": {"waiting": 0, "done": 0, "dead": 0},
    "Profile": {"legal_name": "", "address": "", "tax_id": ""},
    "Quota": {
        "on_exhausted": "wait", "weight": 1, "on_parked_full": "stay", "origin": "operator", "held_milli": 0, "parked_bytes_held": 0,
        "used_device_seconds": 0.0,
    },
    "EnergyHour": {"energy_duration_ns": 0, "duration_ns": 0},
}  # fmt: skip
"""What a field holds if it is missing, as it is in a release of a service that did not have it, and in rows that pages make."""
WORDS = {
    ("Span", "kind"), ("PriceChange", "kind"), ("PriceChange", "unit"), ("BudgetRow", "window"), ("BudgetRow", "origin"),
    ("BudgetRow", "on_limit"), ("Quota", "origin"), ("NoticeChannel", "kind"),
}  # fmt: skip
"""Fields of which the pages know each word."""
MAY_BE_NULL = {
    "Flavor": ("etag",), "Session": ("memory_bytes",), "PriceVersion": ("etag", "changed_at_ns", "changed_by"),
    "SurchargeVersion": ("etag",), "Plan": ("etag",), "SummaryRow": ("tenant", "user", "flavor", "day"), "Quota": ("etag",),
    "Model": ("etag",),
}  # fmt: skip
"""Fields that are None in rows that pages make, and in what was not asked for."""
EMPTY = {"Session": ("values",), "Fault": ("values",), "Health": ("troubles",)}
"""Tables that may be missing."""
FORMATS = {("SummaryRow", "day"): "date"}
ADDED = {"Profile": {"etag": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}
"""Fields of an answer that its schema, which is that of a request, does not have."""
SIGNED = re.compile(r"_nano$|^(?:priority_max|temperature_celsius|exit_status|left_minor)$")
"""Numbers that may be less than 0; in sums of usage, which corrections are in, all may."""
SUMS = ("SummaryRow", "JobCost")
KEPT = ("type", "anyOf", "items", "additionalProperties", "$ref", "enum")
"""What a row takes of a field's schema: bounds of what a service answers are the service's."""


def schemas() -> dict[str, Any]:
    """The rows' schemas by the pages' names."""
    found: dict[str, Any] = {name: {"type": "object", "properties": {}} for name in ELSEWHERE.values()}
    for service, names in NAMES.items():
        for schema, name in names.items():
            found[name] = _lenient(name, for_code(DOCUMENTS[service]["components"]["schemas"][schema]), {**ELSEWHERE, **names, **SHARED})
    return found


def _lenient(name: str, schema: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The schema of a row as the pages read it. Raises KeyError for a row in it that has no name here."""
    shown = {field: one for field, one in schema["properties"].items() if field not in HIDDEN.get(name, ())} | ADDED.get(name, {})
    properties, required = {}, []
    for field, told in shown.items():
        one = _plain(told, names, (name, field) in WORDS)
        one |= {"format": FORMATS[name, field]} if (name, field) in FORMATS else {}
        if field in MISSING.get(name, {}):
            (one,) = [choice for choice in one.get("anyOf", [one]) if choice != {"type": "null"}]
            one = one | {"default": MISSING[name][field]}
        elif one.get("type") == "array":
            one["default"] = []
        elif field in EMPTY.get(name, ()):
            one["default"] = {}
        elif field in MAY_BE_NULL.get(name, ()) or {"type": "null"} in one.get("anyOf", ()):
            one = {"anyOf": [*one.get("anyOf", [one]), {"type": "null"}]} if field in MAY_BE_NULL.get(name, ()) else one
        else:
            required.append(field)
        properties[field] = one
    kept = {"type": "object", "properties": properties, "required": required}
    return kept | ({"description": schema["description"]} if "description" in schema else {})


def _plain(schema: Any, names: Mapping[str, str], with_words: bool) -> Any:
    """The schema with the pages' names, and without what a row does not take."""
    if isinstance(schema, list):
        return [_plain(one, names, with_words) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return {"$ref": f"#/components/schemas/{names[schema['$ref'].rsplit('/', 1)[1]]}"}
    kept = {key: one for key, one in schema.items() if key in KEPT and (with_words or key != "enum")}
    return {key: one if key == "enum" else _plain(one, names, with_words) for key, one in kept.items()}


def _bounded(row: str) -> str:
    """A class with the types that bound numbers, currencies and tags, as ``rows/bases.py`` has them."""
    name, lines = row.split("(", 1)[0], []
    for line in row.splitlines():
        field = re.match(r"    (\w+): ", line)
        if field and not SIGNED.search(field[1]) and name not in SUMS:
            line = re.sub(r"\bint\b", "Count", line)
        if field and re.search(r"(?:^|_)currency$", field[1]):
            line = line.replace("str", "Currency")
        if field and re.search(r"(?:^|_)etag$", field[1]):
            line = re.sub(r"str(?: \| None)?", "Tag", line)
        line = re.sub(r"\blist\[([^\[\]]+)\]", r"tuple[\1, ...]", line)
        line = re.sub(r"(?<=\.\.\.\] = )(?:\[\]|Field\(\[\], validate_default=True\))$", "()", line)
        lines.append(re.sub(r"(?<= = )\{\}$", "Field(default_factory=dict)", line))
    return f"class {name}{row.removeprefix(name).split(chr(10), 1)[0]}\n" + "\n".join(lines[1:]).rstrip()


def _imports(rows: str, service: str) -> str:
    """What the rows of a module use."""
    used = set(re.findall(r"\w+", rows))
    typing = sorted({"Any", "Literal"} & used)
    standard = ["from datetime import date"] * ("date" in used) + [f"from typing import {', '.join(typing)}"] * bool(typing)
    others = ["from forebay_service.causes import Cause"] * ("Cause" in used) + ["from pydantic import Field"] * ("Field" in used)
    bases = ["Count", "Currency", "Equivalent", "Row", "Tag", *(f"{name}Base" for name in BASES)]
    names = "".join(f"    {name},\n" for name in sorted(set(bases) & used))
    own = [f"from {ROWS}.bases import (\n{names})", *[f"from {ROWS}.pool import Span"] * (service == "billing")]
    return "\n\n".join("\n".join(group) for group in (standard, others, own) if group)


def written(service: str) -> str:
    """The module of a service's rows."""
    text = generate(
        {"openapi": "3.1.0", "info": {"title": "rows", "version": "1"}, "paths": {}, "components": {"schemas": schemas()}},
        input_file_type=InputFileType.OpenAPI,
        output_model_type=DataModelType.PydanticV2BaseModel,
        base_class=f"{ROWS}.bases.Row",
        base_class_map={name: f"{ROWS}.bases.{name}Base" for name in BASES},
        type_overrides={"Equivalent": f"{ROWS}.bases.Equivalent", "Cause": "forebay_service.causes.Cause"},
        target_python_version=PythonVersion.PY_311,
        enum_field_as_literal=LiteralType.All,
        formatters=[Formatter.BUILTIN],
        strict_nullable=True,
        use_standard_collections=True,
        use_union_operator=True,
        use_double_quotes=True,
        use_schema_description=True,
        use_single_line_docstring=True,
        disable_timestamp=True,
    )
    blocks = re.split(r"^class ", str(text), flags=re.MULTILINE)[1:]
    rows = "\n\n\n".join(_bounded(block) for block in blocks if block.split("(", 1)[0] in NAMES[service].values())
    return f"{HEADER.format(service=service)}\n\nfrom __future__ import annotations\n\n{_imports(rows, service)}\n\n\n{rows}\n"


if __name__ == "__main__":
    for service in NAMES:
        (FOLDER / f"{service}.py").write_text(written(service), encoding="utf-8")
