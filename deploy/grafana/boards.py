"""Grafana's dashboards, as code: ``python deploy/grafana/boards.py`` writes them anew into ``deploy/grafana/dashboards``.

Built with Grafana's own Foundation SDK. Each board asks the data source that its variable names, so that one file serves operators, and
tenants whose data source shows their own tenant alone. A test runs every query against a Prometheus that our services fill.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from grafana_foundation_sdk.builders import bargauge, common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as shapes
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

FOLDER = Path(__file__).parent / "dashboards"
SOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
WIDTH = 24
FIGURE_HEIGHT = 4
GRAPH_HEIGHT = 8
REFRESH = "30s"

Audience = Literal["operators", "tenants"]
Panel = timeseries.Panel | stat.Panel | bargauge.Panel | table.Panel
Query = tuple[str, str]
"""An expression, and what its series are called."""


@dataclass(frozen=True)
class Board:
    """A dashboard: rows of panels, each with a title."""

    uid: str
    title: str
    text: str
    audience: Audience
    variables: Sequence[dashboard.QueryVariable]
    rows: Sequence[tuple[str, Sequence[Panel]]]

    @property
    def file(self) -> Path:
        return FOLDER / self.audience / f"{self.uid.removeprefix('forebay-')}.json"

    def text_of(self) -> str:
        """What the file holds."""
        built = dashboard.Dashboard(self.title).uid(self.uid).description(self.text).tags(["forebay", self.audience])
        built = built.editable().refresh(REFRESH).time("now-6h", "now").timezone("browser")
        built = built.with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        for variable in self.variables:
            built = built.with_variable(variable)
        number = 0
        for title, panels in self.rows:
            number += 1
            built = built.with_row(dashboard.Row(title).id(number))
            for panel in panels:
                number += 1
                built = built.with_panel(panel.id(number))
        return json.dumps(built.build(), cls=JSONEncoder, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


# Panels


def _queries(queries: Iterable[Query], instant: bool = False) -> list[prometheus.Dataquery]:
    found = []
    for letter, (expression, legend) in zip("ABCDEFGH", queries, strict=False):
        query = prometheus.Dataquery().expr(expression).legend_format(legend).ref_id(letter).datasource(SOURCE)
        found.append(query.instant().format(PromQueryFormat.TABLE) if instant else query.range())
    return found


def graph(title: str, text: str, unit: str, *queries: Query, width: int = 12, stacked: bool = False, most: float | None = None) -> Panel:
    """Lines over time."""
    panel = timeseries.Panel().title(title).description(text).unit(unit).datasource(SOURCE).height(GRAPH_HEIGHT).span(width)
    panel = panel.min(0).fill_opacity(30 if stacked else 5).show_points(shapes.VisibilityMode.NEVER)
    panel = panel.legend(common.VizLegendOptions().show_legend(True).placement(shapes.LegendPlacement.BOTTOM))
    if most is not None:
        panel = panel.max(most)
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(shapes.StackingMode.NORMAL))
    for query in _queries(queries):
        panel = panel.with_target(query)
    return panel


def _steps(limits: Sequence[tuple[float, str]], base: str) -> dashboard.ThresholdsConfig:
    steps = [model.Threshold(value=None, color=base), *(model.Threshold(value=limit, color=color) for limit, color in limits)]
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps)


def figure(title: str, text: str, unit: str, *queries: Query, width: int = 4, limits: Sequence[tuple[float, str]] = ()) -> Panel:
    """The present value, large; its colour changes at the limits."""
    panel = stat.Panel().title(title).description(text).unit(unit).datasource(SOURCE).height(FIGURE_HEIGHT).span(width)
    panel = panel.thresholds(_steps(limits, "green" if limits else "text")).graph_mode(shapes.BigValueGraphMode.AREA)
    panel = panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    for query in _queries(queries):
        panel = panel.with_target(query)
    return panel


def bars(title: str, text: str, unit: str, *queries: Query, width: int = 12, limits: Sequence[tuple[float, str]] = ()) -> Panel:
    """The present values, side by side, of a whole of 1."""
    panel = bargauge.Panel().title(title).description(text).unit(unit).datasource(SOURCE).height(GRAPH_HEIGHT).span(width)
    panel = panel.min(0).max(1).thresholds(_steps(limits, "green")).orientation(shapes.VizOrientation.HORIZONTAL)
    panel = panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    for query in _queries(queries):
        panel = panel.with_target(query)
    return panel


def listing(title: str, text: str, *queries: Query, width: int = 12) -> Panel:
    """The present series with their labels."""
    panel = table.Panel().title(title).description(text).datasource(SOURCE).height(GRAPH_HEIGHT).span(width)
    hidden = dict.fromkeys(("Time", "__name__", "job", "instance"), True)
    panel = panel.with_transformation(model.DataTransformerConfig(id_val="organize", options={"excludeByName": hidden}))
    for query in _queries(queries, instant=True):
        panel = panel.with_target(query)
    return panel


def choice(name: str, label: str, query: str, all_of_them: bool = True) -> dashboard.QueryVariable:
    """A variable whose values Prometheus tells."""
    variable = dashboard.QueryVariable(name).label(label).query(query).datasource(SOURCE).sort(model.VariableSort.ALPHABETICAL_ASC)
    variable = variable.refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
    return variable.include_all(True).multi(True).current(ALL) if all_of_them else variable


ALL = model.VariableOption(selected=True, text="All", value="$__all")

# Boards

NODES = 'node=~"$node",model=~"$model"'
GPUS = 'Hostname=~"$node",modelName=~"$model"'
GPU = "{{Hostname}} {{device}}"
HOT = [(86.0, "yellow"), (94.0, "orange"), (98.0, "red")]
ANY_IS_BAD = [(1.0, "red")]


def fleet() -> Board:
    """Devices: who holds them, and how they are."""
    return Board(
        "forebay-fleet",
        "Forebay: fleet",
        "Devices by node and model: what they do, their health, and what is wrong with the services",
        "operators",
        [
            choice("node", "Node", "label_values(forebay_pool_devices, node)"),
            choice("model", "Model", 'label_values(forebay_pool_devices{node=~"$node"}, model)'),
        ],
        [("Now", _fleet_now()), ("Devices", _fleet_devices()), ("Health of devices", _fleet_health()), ("Faults", _fleet_faults())],
    )


def _fleet_now() -> list[Panel]:
    held = f'sum(forebay_pool_devices{{{NODES},state=~"placing|leased|draining"}}) / sum(forebay_pool_devices{{{NODES}}})'
    return [
        figure("Devices", "All that the pool knows of", "none", (f"sum(forebay_pool_devices{{{NODES}}})", "")),
        figure("Held", "Part of the devices that a lease holds, opens on or leaves", "percentunit", (held, "")),
        figure("Closed", "No lease opens on them", "none", (f"sum(forebay_pool_closed_devices{{{NODES}}})", ""), limits=ANY_IS_BAD),
        figure("Open leases", "In the whole pool", "none", ("sum(forebay_pool_leases) or vector(0)", "")),
        figure("Services that answer", "Of those that Prometheus asks", "percentunit", ('avg(up{job=~"forebay-.*"})', "")),
        figure(
            *("Alerts", "That fire now", "none", ('count(ALERTS{alertname=~"Forebay.*",alertstate="firing"}) or vector(0)', "")),
            limits=ANY_IS_BAD,
        ),
    ]


def _fleet_devices() -> list[Panel]:
    return [
        graph(
            "Devices by what they do",
            "idle: free, and tensors of resident sessions wait on it",
            *("none", (f"sum by (state) (forebay_pool_devices{{{NODES}}})", "{{state}}")),
            stacked=True,
        ),
        graph(
            *("Held, by model", "Part of a model's devices", "percentunit"),
            ('model:forebay_pool_devices:held_ratio{model=~"$model"}', "{{model}}"),
            most=1,
        ),
        graph(
            *("Memory set aside", "For sessions, of what the devices have", "percentunit"),
            (f"node_model:forebay_pool_device_memory_reserved:ratio{{{NODES}}}", "{{node}} {{model}}"),
            most=1,
        ),
        graph("Worker processes", "By state", "none", ("forebay_pool_workers", "{{state}}"), stacked=True),
        graph("Sessions", "By state", "none", ("forebay_pool_sessions", "{{state}}"), stacked=True),
        graph(
            *("Work per held device", "For how much of a second workers execute commands, by devices held", "percentunit"),
            ("sum(rate(forebay_pool_worker_busy_seconds_total[$__rate_interval])) / sum(forebay_pool_held_devices)", "busy"),
        ),
    ]


def _fleet_health() -> list[Panel]:
    return [
        graph("Temperature", "A warning from 86 °C, closed from 94, emptied from 98", "celsius", (f"DCGM_FI_DEV_GPU_TEMP{{{GPUS}}}", GPU)),
        graph("Utilisation", "As the driver tells it", "percent", (f"DCGM_FI_DEV_GPU_UTIL{{{GPUS}}}", GPU), most=100),
        graph("Power", "Of each device", "watt", (f"DCGM_FI_DEV_POWER_USAGE{{{GPUS}}}", GPU)),
        graph("Memory in use", "As the driver tells it", "mbytes", (f"DCGM_FI_DEV_FB_USED{{{GPUS}}}", GPU)),
        listing("Xids", "The last of each device that had one since an operator opened it", (f"DCGM_FI_DEV_XID_ERRORS{{{GPUS}}}", "")),
        listing("Memory errors", "Not corrected, since the driver was loaded", (f"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{{GPUS}}}", "")),
    ]


def _fleet_faults() -> list[Panel]:
    return [
        listing("Alerts", "Pending and firing", ('ALERTS{alertname=~"Forebay.*"}', "")),
        listing("Services", "1: it answers Prometheus", ('up{job=~"forebay-.*"}', "")),
        graph(
            *("Losses", "In the last hour", "none"),
            ("increase(forebay_pool_workers_failed_total[1h])", "workers died"),
            ("increase(forebay_pool_sessions_lost_total[1h])", "sessions lost"),
            ("sum by (link) (increase(forebay_pool_heartbeats_lost_total[1h]))", "{{link}} silent"),
            ("sum by (link) (increase(forebay_pool_bad_messages_total[1h]))", "{{link}} broke the protocol"),
        ),
        graph(
            *("Leadership", "1: leads and opens leases", "none"),
            ("forebay_pool_leader", "{{instance}} leads"),
            ("forebay_pool_accepting", "{{instance}} opens leases"),
        ),
    ]


def queue() -> Board:
    """Who waits, for how long, and why."""
    of_flavor = 'flavor=~"$flavor"'
    held = f"sum by (flavor) (forebay_pool_held_devices{{{of_flavor}}})"
    grants = f"sum by (flavor) (rate(forebay_pool_leases_opened_total{{{of_flavor}}}[$__rate_interval]))"
    return Board(
        "forebay-queue",
        "Forebay: queue",
        "Who waits, for how long, and why",
        "operators",
        [choice("flavor", "Flavor", "label_values(forebay_pool_leases_opened_total, flavor)")],
        [
            (
                "Now",
                [
                    figure("Waiting", "Requests in the line", "none", ("forebay_pool_queue_requests", "")),
                    figure(
                        *("Longest wait", "Of a request that is not granted yet", "s"),
                        ("max(forebay_pool_oldest_request_seconds) or vector(0)", ""),
                        limits=[(60.0, "yellow"), (900.0, "red")],
                    ),
                    figure("Opens leases", "0: the database cannot be written", "none", ("min(forebay_pool_accepting)", "")),
                    figure("Leases", "That are open", "none", (f"sum(forebay_pool_leases{{{of_flavor}}}) or vector(0)", "")),
                ],
            ),
            (
                "The line",
                [
                    graph(
                        *("By reason", "The words are in the pool's reference", "none"),
                        (f"sum by (reason) (forebay_pool_waiting_requests{{{of_flavor}}})", "{{reason}}"),
                        stacked=True,
                    ),
                    graph(
                        *("By tenant and flavor", "Requests that are not granted yet", "none"),
                        (f"tenant_flavor:forebay_pool_waiting_requests:sum{{{of_flavor}}}", "{{tenant}} {{flavor}}"),
                        stacked=True,
                    ),
                    graph(
                        *("Oldest request", "For how long it waits", "s"),
                        (f"max by (flavor, reason) (forebay_pool_oldest_request_seconds{{{of_flavor}}})", "{{flavor}} {{reason}}"),
                    ),
                    graph(
                        *("Wait until the grant", "Of leases of the last five minutes", "s"),
                        (f"flavor:forebay_pool_lease_wait_seconds:p50_5m{{{of_flavor}}}", "{{flavor}} half"),
                        (f"flavor:forebay_pool_lease_wait_seconds:p95_5m{{{of_flavor}}}", "{{flavor}} 19 of 20"),
                    ),
                ],
            ),
            (
                "Leases",
                [
                    graph("Grants", "In a second", "none", (grants, "{{flavor}}")),
                    graph(
                        *("Ends", "In a second, by reason", "none"),
                        (f"sum by (reason) (rate(forebay_pool_leases_closed_total{{{of_flavor}}}[$__rate_interval]))", "{{reason}}"),
                    ),
                    graph("Held devices", "By flavor", "none", (held, "{{flavor}}")),
                    graph(
                        *("Refusals", "In a second, by code", "none"),
                        ("sum by (code) (rate(forebay_pool_refusals_total[$__rate_interval]))", "{{code}}"),
                    ),
                ],
            ),
        ],
    )


OF_TENANT = 'tenant=~"$tenant"'
PER_HOUR = "tenant_flavor_currency:forebay_billing_usage_cost_units:rate5m"


def revenue() -> Board:
    """What usage brings, and whether it arrives."""
    return Board(
        "forebay-revenue",
        "Forebay: revenue",
        "What usage costs at list price, budgets, and what is on its way to billing and to Stripe; bills are made from the ledger alone",
        "operators",
        [choice("tenant", "Tenant", "label_values(forebay_billing_usage_cost_units_total, tenant)")],
        [("Now", _revenue_now()), ("Usage", _revenue_usage()), ("On its way", _revenue_on_its_way())],
    )


def _revenue_now() -> list[Panel]:
    return [
        figure("Revenue of the month", "Posted, at list price (UTC)", "none", ("forebay_billing_month_revenue_units", "{{currency}}")),
        figure("Per hour", "At the present rate", "none", (f"sum by (currency) ({PER_HOUR}{{{OF_TENANT}}}) * 3600", "{{currency}}")),
        figure(
            *("Refused by billing", "Usage records that are set aside", "none"),
            ('sum(forebay_pool_undelivered_records{state="refused"})', ""),
            limits=ANY_IS_BAD,
        ),
        figure(
            *("Given up", "Orders to Stripe and messages of alerts", "none"),
            (
                'sum(forebay_billing_payment_orders{state="dead"} or vector(0)) + sum(forebay_billing_alert_deliveries{state="dead"})',
                "",
            ),
            limits=ANY_IS_BAD,
        ),
        figure(
            *("Budgets that stop leases", "Of tenants, users and notebooks", "none"),
            ('sum(forebay_billing_budgets{state!="open"}) or vector(0)', ""),
        ),
    ]


def _revenue_usage() -> list[Panel]:
    device_seconds = f"sum by (flavor) (tenant_flavor:forebay_pool_device_seconds:rate5m{{{OF_TENANT}}})"
    return [
        graph(
            *("Cost per hour, by tenant", "At list price, by when usage arrives", "none"),
            (f"sum by (tenant, currency) ({PER_HOUR}{{{OF_TENANT}}}) * 3600", "{{tenant}} {{currency}}"),
            stacked=True,
        ),
        graph(
            *("Cost per hour, by flavor", "At list price, by when usage arrives", "none"),
            (f"sum by (flavor, currency) ({PER_HOUR}{{{OF_TENANT}}}) * 3600", "{{flavor}} {{currency}}"),
            stacked=True,
        ),
        graph("Devices that are paid for", "Metered device time in a second", "none", (device_seconds, "{{flavor}}"), stacked=True),
        bars(
            *("Budgets of tenants", "Part that is used", "percentunit"),
            (f"forebay_billing_budget_used_ratio{{{OF_TENANT}}}", "{{tenant}} {{window}} {{currency}} {{origin}}"),
            limits=[(0.8, "yellow"), (1.0, "red")],
        ),
    ]


def _revenue_on_its_way() -> list[Panel]:
    beats = "sum by (outcome) (rate(forebay_pool_billing_heartbeats_total[$__rate_interval]))"
    return [
        graph(
            *("Usage that is not with billing", "Records", "none"),
            ("forebay_pool_unwritten_records", "not on disk"),
            ("forebay_pool_undelivered_records", "{{state}}"),
        ),
        graph("Oldest of it", "Since the usage ended", "s", ("forebay_pool_undelivered_oldest_seconds", "waits")),
        graph(
            *("Usage records", "In a second", "none"),
            ("rate(forebay_pool_records_delivered_total[$__rate_interval])", "delivered"),
            ("rate(forebay_pool_deliveries_failed_total[$__rate_interval])", "attempts that failed"),
            ("sum by (outcome) (rate(forebay_billing_usage_records_total[$__rate_interval]))", "billing: {{outcome}}"),
        ),
        graph("Heartbeats to billing", "In a second", "none", (beats, "{{outcome}}")),
        graph(
            *("Stripe", "Orders that are not settled, and attempts in a second", "none"),
            ("forebay_billing_payment_orders", "{{state}}"),
            ("sum by (outcome) (rate(forebay_billing_payment_sendings_total[$__rate_interval]))", "{{outcome}} per second"),
        ),
        graph(
            *("Billing's answers", "In a second, by status", "none"),
            ("sum by (status) (rate(forebay_billing_requests_total[$__rate_interval]))", "{{status}}"),
        ),
    ]


def usage() -> Board:
    """A tenant's own: nothing in it is of another tenant."""
    own = 'tenant="$tenant"'
    cost = f"sum by (currency) (increase(forebay_billing_usage_cost_units_total{{{own}}}[$__range]))"
    busy = f"sum by (flavor) (rate(forebay_pool_worker_busy_seconds_total{{{own}}}[$__rate_interval]))"
    return Board(
        "forebay-usage",
        "Forebay: usage of a tenant",
        "What a tenant computes, waits for and spends; invoices are made from the ledger alone",
        "tenants",
        [choice("tenant", "Tenant", "label_values(forebay_billing_usage_cost_units_total, tenant)", all_of_them=False)],
        [
            (
                "Now",
                [
                    figure("Cost in this time", "At list price", "none", (cost, "{{currency}}")),
                    figure("Open leases", "That compute now", "none", (f"sum(forebay_pool_leases{{{own}}}) or vector(0)", "")),
                    figure("Devices", "Held; shares count in part", "none", (f"sum(forebay_pool_held_devices{{{own}}}) or vector(0)", "")),
                    figure("Waiting", "Requests", "none", (f"sum(forebay_pool_waiting_requests{{{own}}}) or vector(0)", "")),
                    figure("Parked", "Tensors kept off devices", "bytes", (f"sum(forebay_pool_parked_bytes{{{own}}}) or vector(0)", "")),
                    figure(
                        *("Budget", "Used of the one that is nearest its limit", "percentunit"),
                        (f"max(forebay_billing_budget_used_ratio{{{own}}})", ""),
                        limits=[(0.8, "yellow"), (1.0, "red")],
                    ),
                ],
            ),
            (
                "Over time",
                [
                    graph(
                        *("Cost per hour", "By flavor, at list price, by when usage arrives", "none"),
                        (f"sum by (flavor, currency) ({PER_HOUR}{{{own}}}) * 3600", "{{flavor}} {{currency}}"),
                        stacked=True,
                    ),
                    graph(
                        *("Devices in use", "Held by leases", "none"),
                        (f"sum by (flavor) (forebay_pool_held_devices{{{own}}})", "{{flavor}}"),
                        stacked=True,
                    ),
                    graph(
                        *("Waiting, by reason", "Requests", "none"),
                        (f"sum by (flavor, reason) (forebay_pool_waiting_requests{{{own}}}) or vector(0)", "{{flavor}} {{reason}}"),
                        stacked=True,
                    ),
                    graph("Computing", "Seconds of work in a second, by flavor", "none", (busy, "{{flavor}}")),
                    graph(
                        *("Budget", "Used, and its limit", "none"),
                        (f"forebay_billing_budget_used_units{{{own}}}", "used {{window}} {{currency}} {{origin}}"),
                        (f"forebay_billing_budget_limit_units{{{own}}}", "limit {{window}} {{currency}} {{origin}}"),
                    ),
                    graph(
                        *("Usage", "Seconds in an hour, by flavor", "s"),
                        (f"sum by (flavor) (rate(forebay_billing_usage_seconds_total{{{own}}}[$__rate_interval])) * 3600", "{{flavor}}"),
                    ),
                ],
            ),
        ],
    )


BOARDS = (fleet, queue, revenue, usage)


def main() -> int:
    """Writes the files."""
    argparse.ArgumentParser(prog="boards.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for make in BOARDS:
        board = make()
        board.file.parent.mkdir(parents=True, exist_ok=True)
        board.file.write_text(board.text_of(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
