"""For each alert what makes it fire, and what is nearly the same and does not: series by the minute, as promtool writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

GPU = 'DCGM_FI_DEV_{}{{gpu="0",UUID="GPU-1",device="nvidia0",modelName="H100",Hostname="node-a"}}'
GPU_LABELS = {"gpu": "0", "UUID": "GPU-1", "device": "nvidia0", "modelName": "H100", "Hostname": "node-a"}
DEVICE = "device nvidia0 of node-a (H100)"
POOL = 'job="forebay-pool",instance="pool:8003"'
POOL_LABELS = {"job": "forebay-pool", "instance": "pool:8003"}
BUDGET = 'forebay_billing_budget_used_ratio{tenant="acme",currency="USD",window="month",origin="owner"}'
BUDGET_LABELS = {"tenant": "acme", "currency": "USD", "window": "month", "origin": "owner"}
BUCKETS = 'forebay_pool_lease_wait_seconds_bucket{{flavor="small.64gb",le="{}"}}'


@dataclass(frozen=True)
class Case:
    """``fires`` and ``quiet`` are series with their values, looked at after ``minutes``."""

    alert: str
    fires: Mapping[str, str]
    quiet: Mapping[str, str]
    minutes: int
    summary: str
    labels: Mapping[str, str] = field(default_factory=dict)


def gpu(alert: str, metric: str, fires: str, quiet: str, minutes: int, says: str) -> Case:
    name = GPU.format(metric)
    return Case(alert, {name: fires}, {name: quiet}, minutes, f"{DEVICE} {says}", GPU_LABELS)


def pool(alert: str, metric: str, fires: str, quiet: str, minutes: int, says: str, **labels: str) -> Case:
    """A series with a few labels that the alert keeps."""
    selector = ",".join(f'{name}="{value}"' for name, value in labels.items())
    name = f"{metric}{{{selector}}}" if labels else metric
    return Case(alert, {name: fires}, {name: quiet}, minutes, says, labels)


CASES = (
    Case(
        *("ForebayServiceDown", {f"up{{{POOL}}}": "1 0x4"}, {f"up{{{POOL}}}": "1 1 0 1 1"}, 4),
        *("forebay-pool at pool:8003 does not answer", POOL_LABELS),
    ),
    Case(
        "ForebayNoLeader",
        {'forebay_pool_leader{instance="a"}': "1 0x4", 'forebay_pool_leader{instance="b"}': "0x5"},
        {'forebay_pool_leader{instance="a"}': "1 0x4", 'forebay_pool_leader{instance="b"}': "0 1x4"},
        4,
        "no pool leads: nobody gets a device",
    ),
    pool(
        *("ForebayNotAccepting", "forebay_pool_accepting", "1 0x4", "1 0 1 1 1", 4),
        "the pool opens no lease: its database cannot be written",
    ),
    *(
        Case(
            "ForebayCertificateEnds",
            {f"forebay_{name}_certificate_left_seconds{{{POOL}}}": "1209599x2"},
            {f"forebay_{name}_certificate_left_seconds{{{POOL}}}": "1209601 +Inf"},
            1,
            "the certificate of forebay-pool at pool:8003 ends in 13d 23h 59m 59s",
            POOL_LABELS,
        )
        for name in ("pool", "billing", "dashboards")
    ),
    pool(
        *("ForebayBillingUnavailable", "forebay_billing_store_unavailable_total", "0+2x15", "7x15", 12),
        "billing answers some requests with 503",
    ),
    pool(
        *("ForebayPagesBlind", "forebay_dashboards_feed_connected", "1 0x5", "1 0 1x5", 5),
        "the pages do not hear the pool's events",
    ),
    gpu("ForebayDeviceWarm", "GPU_TEMP", "86x10", "85x10", 7, "is at 86 °C"),
    gpu("ForebayDeviceWarm", "GPU_TEMP", "93x10", "94x10", 7, "is at 93 °C"),
    gpu("ForebayDeviceHot", "GPU_TEMP", "94x5", "93x5", 4, "is at 94 °C and gets no new lease"),
    gpu("ForebayDeviceHot", "GPU_TEMP", "97x5", "98x5", 4, "is at 97 °C and gets no new lease"),
    gpu("ForebayDeviceTooHot", "GPU_TEMP", "90 98", "90 97", 1, "is at 98 °C and is emptied"),
    gpu("ForebayDeviceError", "XID_ERRORS", "79x2", "31x2", 1, "had Xid 79"),
    gpu("ForebayDeviceMemoryErrors", "ECC_DBE_VOL_TOTAL", "2x3 3x3", "2x6", 5, "had memory errors that were not corrected"),
    pool(
        *("ForebayDevicesClosed", "forebay_pool_closed_devices", "2x20", "2x12 0x8", 17),
        *("2 devices H100 of node-a get no lease",),
        node="node-a",
        model="H100",
    ),
    Case(
        "ForebayShortage",
        {
            'forebay_pool_waiting_requests{tenant="acme",flavor="small.64gb",reason="shortage"}': "1x15",
            'forebay_pool_waiting_requests{tenant="globex",flavor="small.64gb",reason="fragmentation"}': "2x15",
        },
        {'forebay_pool_waiting_requests{tenant="acme",flavor="small.64gb",reason="quota"}': "9x15"},
        12,
        "3 requests for small.64gb wait because devices are short",
        {"flavor": "small.64gb"},
    ),
    Case(
        "ForebayQueueWaitLong",
        {'forebay_pool_oldest_request_seconds{flavor="small.64gb",reason="restoring"}': "840+60x5"},
        {'forebay_pool_oldest_request_seconds{flavor="small.64gb",reason="quota"}': "840+60x5"},
        4,
        "a request for small.64gb waits for 18m 0s (restoring)",
        {"flavor": "small.64gb", "reason": "restoring"},
    ),
    Case(
        "ForebayLeaseWaitSlow",
        {BUCKETS.format("60"): "0+1x30", BUCKETS.format("300"): "0+10x30", BUCKETS.format("+Inf"): "0+10x30"},
        {BUCKETS.format("60"): "0+10x30", BUCKETS.format("300"): "0+10x30", BUCKETS.format("+Inf"): "0+10x30"},
        25,
        "one lease in twenty of small.64gb is waited for longer than 4m 46s",
        {"flavor": "small.64gb"},
    ),
    pool(
        *("ForebayHeartbeatsLost", "forebay_pool_heartbeats_lost_total", "4x3 5x3", "4x6", 5),
        *("workers fell silent",),
        link="worker",
    ),
    pool(*("ForebaySessionsLost", "forebay_pool_sessions_lost_total", "0x3 1x3", "1x6", 5), "sessions lost their tensors"),
    Case(
        "ForebayBillingHeartbeatsFail",
        {
            'forebay_pool_billing_heartbeats_total{outcome="failed"}': "0+6x10",
            'forebay_pool_billing_heartbeats_total{outcome="taken"}': "50x10",
        },
        {
            'forebay_pool_billing_heartbeats_total{outcome="failed"}': "0+6x10",
            'forebay_pool_billing_heartbeats_total{outcome="taken"}': "50+1x10",
        },
        8,
        "billing has taken no heartbeat of the pool for five minutes",
        {"outcome": "failed"},
    ),
    pool(
        *("ForebayUsageUndelivered", "forebay_pool_undelivered_oldest_seconds", "570+60x5", "0 30 599x4", 4),
        "usage waits for billing since 13m 30s",
    ),
    pool(
        *("ForebayUsageRefused", "forebay_pool_undelivered_records", "3x15", "3x8 0x7", 12),
        *("billing refuses 3 usage records",),
        state="refused",
    ),
    Case(
        "ForebayRowsSetAside",
        {'forebay_billing_rows_set_aside_total{kind="usage",outcome="metered"}': "0x3 1x3"},
        {'forebay_billing_rows_set_aside_total{kind="usage",outcome="metered"}': "1x6"},
        5,
        "rows of a pool cannot be kept as they came",
    ),
    pool(
        *("ForebayUnwritten", "forebay_pool_unwritten_records", "1+100x10", "900-50x10", 8),
        "usage records pile up in the pool's memory",
    ),
    pool(
        *("ForebayPaymentsDead", "forebay_billing_payment_orders", "0 1", "0 0", 1),
        *("1 orders to Stripe were given up",),
        state="dead",
    ),
    Case(
        "ForebayPaymentsStuck",
        {'forebay_billing_payment_orders{state="waiting"}': "2x80", 'forebay_billing_payment_sendings_total{outcome="sent"}': "7x80"},
        {'forebay_billing_payment_orders{state="waiting"}': "2x80", 'forebay_billing_payment_sendings_total{outcome="sent"}': "7+1x80"},
        75,
        "orders to Stripe wait, and none was sent for an hour",
        {"state": "waiting"},
    ),
    pool(
        *("ForebayAlertsUndelivered", "forebay_billing_alert_deliveries", "0 2", "0 0", 1),
        *("2 messages of budget alerts were given up",),
        state="dead",
    ),
    Case("ForebayBudgetNearlyUsed", {BUDGET: "0.8"}, {BUDGET: "0.79"}, 0, "acme has used 80% of its budget (month, owner)", BUDGET_LABELS),
    Case("ForebayBudgetUsedUp", {BUDGET: "1"}, {BUDGET: "0.999"}, 0, "acme has used up its budget (month, owner)", BUDGET_LABELS),
)

RECORDED: tuple[tuple[dict[str, str], str, list[tuple[dict[str, str], float]]], ...] = (
    (
        {
            'forebay_pool_devices{node="a",model="H100",state="leased"}': "3",
            'forebay_pool_devices{node="b",model="H100",state="placing"}': "1",
            'forebay_pool_devices{node="b",model="H100",state="idle"}': "4",
        },
        "model:forebay_pool_devices:held_ratio",
        [({"model": "H100"}, 0.5)],
    ),
    (
        {
            'forebay_pool_device_memory_reserved_bytes{node="a",model="H100"}': "20",
            'forebay_pool_device_memory_bytes{node="a",model="H100"}': "80",
        },
        "node_model:forebay_pool_device_memory_reserved:ratio",
        [({"node": "a", "model": "H100"}, 0.25)],
    ),
    (
        {BUCKETS.format("1"): "0+1x10", BUCKETS.format("2"): "0+2x10", BUCKETS.format("+Inf"): "0+2x10"},
        "flavor:forebay_pool_lease_wait_seconds:p50_5m",
        [({"flavor": "small.64gb"}, 1.0)],
    ),
    (
        {BUCKETS.format("1"): "0+1x10", BUCKETS.format("2"): "0+2x10", BUCKETS.format("+Inf"): "0+2x10"},
        "flavor:forebay_pool_lease_wait_seconds:p95_5m",
        [({"flavor": "small.64gb"}, 1.9)],
    ),
    (
        {
            'forebay_pool_waiting_requests{tenant="acme",flavor="small.64gb",reason="quota"}': "2",
            'forebay_pool_waiting_requests{tenant="acme",flavor="small.64gb",reason="shortage"}': "3",
        },
        "tenant_flavor:forebay_pool_waiting_requests:sum",
        [({"tenant": "acme", "flavor": "small.64gb"}, 5)],
    ),
    (
        {
            'forebay_pool_device_seconds_total{tenant="acme",flavor="small.64gb",model="H100"}': "0+60x10",
            'forebay_pool_device_seconds_total{tenant="acme",flavor="small.64gb",model="MI250"}': "0+120x10",
        },
        "tenant_flavor:forebay_pool_device_seconds:rate5m",
        [({"tenant": "acme", "flavor": "small.64gb"}, 3)],
    ),
    (
        {'forebay_billing_usage_cost_units_total{tenant="acme",flavor="small.64gb",currency="USD"}': "0+30x10"},
        "tenant_flavor_currency:forebay_billing_usage_cost_units:rate5m",
        [({"tenant": "acme", "flavor": "small.64gb", "currency": "USD"}, 0.5)],
    ),
    (
        {
            'forebay_billing_requests_total{job="forebay-billing",endpoint="usage",status="200"}': "0+3x10",
            'forebay_billing_requests_total{job="forebay-billing",endpoint="usage",status="503"}': "0+1x10",
        },
        "job:forebay_billing_requests:error_ratio5m",
        [({"job": "forebay-billing"}, 0.25)],
    ),
)
"""Series, a rule that is recorded of them, and what it says after five minutes."""
