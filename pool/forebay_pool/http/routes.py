"""Every endpoint of the pool: who answers it, who may ask, what it takes and gives.

Tests hold this table against what a running pool answers.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.metadata import version
from typing import Any, Literal

from forebay_service.audit import AuditPage, AuditQuery
from forebay_service.errors import Conflict, NotFound, UpgradeRequired
from forebay_service.identity import COMPUTE, OPERATE, SERVICE, TENANT
from forebay_service.openapi import describe
from forebay_service.routes import SWITCHING, Route
from typing_extensions import TypedDict

from forebay_pool.http import audit, events, flavors, health, jobs, nodes, queue, receipts, sessions, shared_notebooks, trends
from forebay_pool.http.handler import Api
from forebay_pool.http.job_files import JobFilesLink
from forebay_pool.http.jobs import BeginBody, EndBody, JobBody, JobQuery, OutputQuery, PrintedBody, ScheduleBody, ScheduleQuery
from forebay_pool.http.links import SessionLink, WorkerLink
from forebay_pool.http.nodes import DeviceBody, ModelBody, NodeBody
from forebay_pool.http.queue import QuotaBody
from forebay_pool.http.receipts import ReceiptsQuery
from forebay_pool.http.sessions import ChoiceBody
from forebay_pool.http.shared_notebooks import KeyQuery, SharedNotebookBody, SharedNotebookQuery
from forebay_pool.http.trends import TimelineQuery, TrendQuery
from forebay_pool.placement.forecast import Forecast
from forebay_pool.store.flavors import FlavorBody
from forebay_pool.views.jobs import JobRow, OutputRow, ScheduleRow
from forebay_pool.views.receipts import ReceiptKeyRow, ReceiptPage
from forebay_pool.views.rows import (
    DeviceRow,
    FlavorRow,
    LeaseRow,
    ModelRow,
    NodeRow,
    QueueRow,
    QuotaRow,
    SessionRow,
    ShareRow,
    SuggestionRow,
)
from forebay_pool.views.shared_notebooks import NewSharedNotebookRow, NotebookPageRow, SharedNotebookRow
from forebay_pool.views.timeline import Timeline
from forebay_pool.views.trends import TrendRows

EVERYBODY = (COMPUTE, SERVICE, OPERATE)
STAFF = (SERVICE, OPERATE)
OVERSEERS = (COMPUTE, TENANT, OPERATE)
INFO = {
    "title": "Forebay pool",
    "version": version("forebay-pool"),
    "description": "Sessions, leases, the queue, quotas, devices, nodes and flavors. What ends in `_ns` is whole nanoseconds.",
}


class Choice(TypedDict):
    flavor: str


class Revoked(TypedDict):
    lease: str
    seconds: float


class Door(TypedDict):
    address: str
    certificate: str | None
    """The SHA-256 of what is shown there, in hex; none: in clear."""


class Parked(TypedDict):
    session: str
    device: str
    bytes: int


Moved = TypedDict("Moved", {"session": str, "from": str})
"""``from``: the device that it leaves."""


class Healthy(TypedDict):
    status: Literal["ok"]
    role: Literal["leader", "follower"]
    troubles: dict[str, str]
    """Of `hub`, `database` and `billing` those that do not answer as they should, each with a sentence."""


class ReleaseRow(TypedDict):
    version: str
    protocol: int
    """That programs and workers must speak."""
    index: str | None


class Description(Api):
    """``GET api/openapi.json``: for everybody, as it says nothing of anybody."""

    def get(self) -> None:
        self.write_json_text(_document(self.context.settings.prefix))


@cache
def _document(base_path: str) -> str:
    """It takes a tenth of a second to make, and never changes."""
    return json.dumps(describe(ROUTES, base_path, INFO))


ROUTES = (
    Route(
        *("GET", "api/session", SessionLink, "The session link of a process (WebSocket)"),
        scopes=(COMPUTE,),
        refusals=(UpgradeRequired.status,),
        status=SWITCHING,
    ),
    Route(
        *("GET", "api/worker", WorkerLink, "The link of a worker (WebSocket)"),
        refusals=(UpgradeRequired.status,),
        status=SWITCHING,
        who="a worker that this pool started",
    ),
    Route("GET", "api/flavors", flavors.Flavors, "All flavors, whether they can be had and why not, and their prices", list[FlavorRow]),
    Route(
        *("PUT", "api/flavors/{name}", flavors.FlavorItem, "Makes a flavor, or changes one for later leases", FlavorRow, FlavorBody),
        scopes=(OPERATE,),
        tagged=True,
        conditional=True,
    ),
    Route(
        *("DELETE", "api/flavors/{name}", flavors.FlavorItem, "Nobody gets it any more; refused while a session has it"),
        scopes=(OPERATE,),
        refusals=(NotFound.status, Conflict.status),
        conditional=True,
        status=204,
    ),
    Route(
        *("GET", "api/suggestions", flavors.Suggestions),
        summary="Flavors that the devices which are here could serve, and that are not there yet",
        answer=list[SuggestionRow],
        scopes=(OPERATE,),
    ),
    Route("GET", "api/leases", sessions.Leases, "Open leases", list[LeaseRow], scopes=STAFF),
    Route("GET", "api/sessions", sessions.Sessions, "Sessions; users see their own", list[SessionRow], scopes=EVERYBODY),
    Route(
        *("DELETE", "api/sessions/{session}", sessions.SessionItem, "Ends a session; its tensors are lost"),
        scopes=(COMPUTE, OPERATE),
        refusals=(NotFound.status,),
        status=204,
    ),
    Route(
        *("POST", "api/sessions/{session}/revoke", queue.Revocation, "Takes a session's lease back, with grace", Revoked),
        scopes=(OPERATE,),
        refusals=(NotFound.status, Conflict.status),
        status=202,
    ),
    Route(
        *("POST", "api/sessions/{session}/move", queue.Move, "Lets a session go on on another device", Moved),
        scopes=(OPERATE,),
        refusals=(NotFound.status, Conflict.status),
        status=202,
    ),
    Route(
        *("POST", "api/sessions/{session}/park", queue.Parking, "Has the tensors of a session that rests leave its device", Parked),
        scopes=(OPERATE,),
        refusals=(NotFound.status, Conflict.status),
        status=202,
    ),
    Route(
        *("GET", "api/doors/{tenant}/{user}/{worker}", sessions.WorkerDoor, "Where the worker of a session from outside is reached", Door),
        scopes=(SERVICE,),
        refusals=(NotFound.status,),
    ),
    Route("GET", "api/queue", queue.Queue, "Who waits, by position, and why; users see their own", list[QueueRow], scopes=EVERYBODY),
    Route(
        *("GET", "api/quotas", queue.Quotas, "Quotas that are set, and what of them is held and used; a tenant's admin sees its own"),
        answer=list[QuotaRow],
        scopes=queue.QUOTA_READERS,
    ),
    Route("GET", "api/quotas/{tenant}", queue.QuotaItem, "A tenant's quota", QuotaRow, scopes=queue.QUOTA_READERS, tagged=True),
    Route(
        *("PUT", "api/quotas/{tenant}", queue.QuotaItem, "Replaces a tenant's quota", QuotaRow, QuotaBody),
        scopes=(OPERATE,),
        tagged=True,
        conditional=True,
    ),
    Route("GET", "api/quotas/{tenant}/{user}", queue.QuotaItem, "A user's quota", QuotaRow, scopes=queue.QUOTA_READERS, tagged=True),
    Route(
        *("PUT", "api/quotas/{tenant}/{user}", queue.QuotaItem),
        summary="Replaces a user's quota; an owner's does not replace an operator's",
        answer=QuotaRow,
        body=QuotaBody,
        scopes=(OPERATE, TENANT),
        tagged=True,
        conditional=True,
    ),
    Route(
        *("GET", "api/shares", queue.Shares, "Tenants' parts in the fair share: weights, and what was used lately"),
        answer=list[ShareRow],
        scopes=STAFF,
    ),
    Route("GET", "api/devices", nodes.Devices, "Physical devices, who holds them, and how they are", list[DeviceRow], scopes=STAFF),
    Route(
        *("PUT", "api/devices/{device:path}", nodes.DeviceItem, "Closes a device to new leases, or opens it", DeviceRow, DeviceBody),
        scopes=(OPERATE,),
        refusals=(NotFound.status,),
    ),
    Route("GET", "api/nodes", nodes.Nodes, "Hosts of devices", list[NodeRow], scopes=STAFF),
    Route(
        *("PUT", "api/nodes/{node}", nodes.NodeItem, "Drains a node, or lends its devices again", NodeRow, NodeBody),
        scopes=(OPERATE,),
        refusals=(NotFound.status,),
    ),
    Route("GET", "api/models", nodes.Models, "Models of devices, and their policies", list[ModelRow], scopes=STAFF),
    Route(
        *("PUT", "api/models/{model:path}", nodes.ModelItem, "Says who may have a model", ModelRow, ModelBody),
        scopes=(OPERATE,),
        tagged=True,
        conditional=True,
        refusals=(NotFound.status,),
    ),
    Route("GET", "api/forecast", nodes.Forecasts, "What each flavor's demand will come to", list[Forecast], scopes=STAFF),
    Route(
        *("GET", "api/trends", trends.Trends, "How devices were used over the last day, week or month", TrendRows),
        scopes=STAFF,
        query=TrendQuery,
    ),
    Route(
        *("GET", "api/timeline", trends.DeviceTimeline, "Who held which device when; short leases that lie together are one", Timeline),
        scopes=STAFF,
        query=TimelineQuery,
    ),
    Route("GET", "api/choice", sessions.Choice, "The flavor that the user's sessions begin with", Choice, scopes=(COMPUTE,)),
    Route(
        *("PUT", "api/choice", sessions.Choice, "Chooses the flavor of the user's new sessions", Choice, ChoiceBody),
        scopes=(COMPUTE,),
        refusals=(Conflict.status,),
    ),
    Route(
        *("GET", "api/jobs", jobs.Jobs, "Jobs, newest first; users see their own", list[JobRow]),
        scopes=OVERSEERS,
        query=JobQuery,
    ),
    Route(
        *("POST", "api/jobs", jobs.Jobs, "Has a program of the user's run once, without the user being there", JobRow, JobBody),
        scopes=(COMPUTE,),
        refusals=(Conflict.status,),
        status=201,
    ),
    Route(
        *("GET", "api/jobs/{job}", jobs.JobItem, "A job", JobRow), scopes=OVERSEERS, refusals=(NotFound.status,)
    ),
    Route(
        *("POST", "api/jobs/{job}/cancel", jobs.Cancellation, "Ends a job, or has it never start", JobRow),
        scopes=OVERSEERS,
        refusals=(NotFound.status, Conflict.status),
        status=202,
    ),
    Route(
        *("GET", "api/jobs/{job}/output", jobs.Output, "What a run of a job printed; waits for more", OutputRow),
        scopes=(COMPUTE,),
        query=OutputQuery,
        refusals=(NotFound.status,),
    ),
    Route(
        *("POST", "api/jobs/{job}/begin", jobs.Beginning, "A runner takes its job", JobRow, BeginBody),
        scopes=(COMPUTE,),
        who="the runner of the job",
        refusals=(NotFound.status, Conflict.status),
        link=True,
    ),
    Route(
        *("POST", "api/jobs/{job}/printed", jobs.Printed, "What a run printed since, and that it goes on"),
        body=PrintedBody,
        scopes=(COMPUTE,),
        who="the runner of the job",
        refusals=(NotFound.status, Conflict.status),
        status=204,
        link=True,
    ),
    Route(
        *("POST", "api/jobs/{job}/end", jobs.Ending, "How a run ended"),
        body=EndBody,
        scopes=(COMPUTE,),
        who="the runner of the job",
        refusals=(NotFound.status, Conflict.status),
        status=204,
        link=True,
    ),
    Route(
        *("GET", "api/job-files", JobFilesLink, "Files that jobs begin with, and that they leave (WebSocket)"),
        scopes=(COMPUTE,),
        refusals=(UpgradeRequired.status,),
        status=SWITCHING,
    ),
    Route(
        *("GET", "api/schedules", jobs.Schedules, "What is run again and again; users see their own", list[ScheduleRow]),
        scopes=OVERSEERS,
        query=ScheduleQuery,
    ),
    Route(
        *("POST", "api/schedules", jobs.Schedules, "Has a program of the user's run again and again", ScheduleRow, ScheduleBody),
        scopes=(COMPUTE,),
        refusals=(Conflict.status,),
        status=201,
    ),
    Route(
        *("DELETE", "api/schedules/{schedule}", jobs.ScheduleItem, "Has a program run no more; a job of it that runs goes on"),
        scopes=OVERSEERS,
        refusals=(NotFound.status,),
        status=204,
    ),
    Route(
        *("GET", "api/shared-notebooks", shared_notebooks.SharedNotebooks, "Notebooks that are shared to be read; users see their own"),
        answer=list[SharedNotebookRow],
        scopes=OVERSEERS,
        query=SharedNotebookQuery,
    ),
    Route(
        *("POST", "api/shared-notebooks", shared_notebooks.SharedNotebooks, "Shares a notebook within the tenant, as a page"),
        answer=NewSharedNotebookRow,
        body=SharedNotebookBody,
        scopes=(COMPUTE,),
        refusals=(Conflict.status,),
        status=201,
    ),
    Route(
        *("GET", "api/shared-notebooks/{shared}", shared_notebooks.SharedNotebookItem, "What a link opens", SharedNotebookRow),
        scopes=(COMPUTE,),
        who="members of the tenant who have the link, and who shares it",
        query=KeyQuery,
        refusals=(NotFound.status,),
    ),
    Route(
        *("DELETE", "api/shared-notebooks/{shared}", shared_notebooks.SharedNotebookItem, "Takes it back: its link opens nothing more"),
        scopes=OVERSEERS,
        refusals=(NotFound.status,),
        status=204,
    ),
    Route(
        *("GET", "api/shared-notebooks/{shared}/page", shared_notebooks.NotebookPage, "Its HTML, that another user made", NotebookPageRow),
        scopes=(COMPUTE,),
        who="members of the tenant who have the link, and who shares it",
        query=KeyQuery,
        refusals=(NotFound.status,),
    ),
    Route(
        *("GET", "api/receipts", receipts.UsersReceipts, "Signed receipts of the bearer's leases of a month, and of prices", ReceiptPage),
        scopes=(COMPUTE,),
        query=ReceiptsQuery,
    ),
    Route("GET", "api/receipts/key", receipts.ReceiptKey, "The key that receipts are signed with", ReceiptKeyRow, scopes=None),
    Route("GET", "api/audit", audit.Audit, "What operators did, newest first", AuditPage, scopes=(OPERATE,), query=AuditQuery),
    Route(
        *("GET", "api/events", events.Events, "Rows that change, as server-sent events", str),
        scopes=EVERYBODY,
        media=("text/event-stream",),
    ),
    Route("GET", "api/release", health.ReleasePage, "What people's environments should be, and from where", ReleaseRow, scopes=None),
    Route("GET", "api/openapi.json", Description, "This description", dict[str, Any], scopes=None),
    Route(
        *("GET", "metrics", health.MetricsPage, "Metrics for Prometheus; to `metrics_token`, or without one from this host", str),
        scopes=STAFF,
        media=("text/plain",),
    ),
    Route("GET", "health", health.Health, "Whether the pool serves", Healthy, scopes=None),
)
