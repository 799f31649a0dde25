"""Every operation of the pool's endpoints, as ``api/openapi.json`` describes them.

Tests hold this table against the routes, and against what a running pool answers.
"""

from __future__ import annotations

from typing import Any, Literal

from forebay_service.identity import COMPUTE, OPERATE, SERVICE
from typing_extensions import TypedDict

from forebay_pool.http.audit import AuditPage, AuditQuery
from forebay_pool.http.handler import Api
from forebay_pool.http.nodes import DeviceBody, ModelBody, NodeBody
from forebay_pool.http.openapi import CONFLICT, NOT_FOUND, UPGRADE_REQUIRED, Operation, describe
from forebay_pool.http.queue import QuotaBody
from forebay_pool.http.sessions import ChoiceBody
from forebay_pool.placement.forecast import Forecast
from forebay_pool.store.flavors import FlavorBody
from forebay_pool.views.rows import DeviceRow, FlavorRow, LeaseRow, ModelRow, NodeRow, QueueRow, QuotaRow, SessionRow, SuggestionRow

EVERYBODY = (COMPUTE, SERVICE, OPERATE)
STAFF = (SERVICE, OPERATE)
SWITCHING = 101
"""What a WebSocket begins with."""


class Choice(TypedDict):
    flavor: str


class Revoked(TypedDict):
    lease: str
    seconds: float


class Parked(TypedDict):
    session: str
    device: str
    bytes: int


Moved = TypedDict("Moved", {"session": str, "from": str})
"""``from``: the device that it leaves."""


class Healthy(TypedDict):
    status: Literal["ok"]
    role: Literal["leader", "follower"]


OPERATIONS = (
    Operation(
        *("GET", "api/session", "The session link of a process (WebSocket)"),
        scopes=(COMPUTE,),
        refusals=(UPGRADE_REQUIRED,),
        status=SWITCHING,
    ),
    Operation(
        *("GET", "api/worker", "The link of a worker that this pool started (WebSocket)"),
        refusals=(UPGRADE_REQUIRED,),
        status=SWITCHING,
    ),
    Operation("GET", "api/flavors", "All flavors, whether they can be had and why not, and their prices", list[FlavorRow]),
    Operation(
        *("PUT", "api/flavors/{name}", "Makes a flavor, or changes one for later leases", FlavorRow, FlavorBody),
        scopes=(OPERATE,),
        tagged=True,
    ),
    Operation(
        *("GET", "api/suggestions", "Flavors that the devices which are here could serve, and that are not there yet", list[SuggestionRow]),
        scopes=(OPERATE,),
    ),
    Operation("GET", "api/leases", "Open leases", list[LeaseRow], scopes=STAFF),
    Operation("GET", "api/sessions", "Sessions; users see their own", list[SessionRow], scopes=EVERYBODY),
    Operation(
        *("DELETE", "api/sessions/{session}", "Ends a session; its tensors are lost"),
        scopes=(COMPUTE, OPERATE),
        refusals=(NOT_FOUND,),
        status=204,
    ),
    Operation(
        *("POST", "api/sessions/{session}/revoke", "Takes a session's lease back, with grace", Revoked),
        scopes=(OPERATE,),
        refusals=(NOT_FOUND, CONFLICT),
        status=202,
    ),
    Operation(
        *("POST", "api/sessions/{session}/move", "Lets a session go on on another device", Moved),
        scopes=(OPERATE,),
        refusals=(NOT_FOUND, CONFLICT),
        status=202,
    ),
    Operation(
        *("POST", "api/sessions/{session}/park", "Has the tensors of a session that rests leave its device", Parked),
        scopes=(OPERATE,),
        refusals=(NOT_FOUND, CONFLICT),
        status=202,
    ),
    Operation("GET", "api/queue", "Who waits, by position, and why; users see their own", list[QueueRow], scopes=EVERYBODY),
    Operation("GET", "api/quotas", "Quotas that are set, and what of them is held and used", list[QuotaRow], scopes=STAFF),
    Operation("GET", "api/quotas/{tenant}", "A tenant's quota", QuotaRow, scopes=STAFF, tagged=True),
    Operation("PUT", "api/quotas/{tenant}", "Replaces a tenant's quota", QuotaRow, QuotaBody, scopes=(OPERATE,), tagged=True),
    Operation("GET", "api/quotas/{tenant}/{user}", "A user's quota", QuotaRow, scopes=STAFF, tagged=True),
    Operation("PUT", "api/quotas/{tenant}/{user}", "Replaces a user's quota", QuotaRow, QuotaBody, scopes=(OPERATE,), tagged=True),
    Operation("GET", "api/devices", "Physical devices, who holds them, and how they are", list[DeviceRow], scopes=STAFF),
    Operation(
        *("PUT", "api/devices/{device}", "Closes a device to new leases, or opens it", DeviceRow, DeviceBody),
        scopes=(OPERATE,),
        refusals=(NOT_FOUND,),
    ),
    Operation("GET", "api/nodes", "Hosts of devices", list[NodeRow], scopes=STAFF),
    Operation(
        *("PUT", "api/nodes/{node}", "Drains a node, or lends its devices again", NodeRow, NodeBody),
        scopes=(OPERATE,),
        refusals=(NOT_FOUND,),
    ),
    Operation("GET", "api/models", "Models of devices, and their policies", list[ModelRow], scopes=STAFF),
    Operation(
        *("PUT", "api/models/{model}", "Says who may have a model", ModelRow, ModelBody),
        scopes=(OPERATE,),
        tagged=True,
        refusals=(NOT_FOUND,),
    ),
    Operation("GET", "api/forecast", "What each flavor's demand will come to", list[Forecast], scopes=STAFF),
    Operation("GET", "api/choice", "The flavor that the user's sessions begin with", Choice, scopes=(COMPUTE,)),
    Operation(
        *("PUT", "api/choice", "Chooses the flavor of the user's new sessions", Choice, ChoiceBody),
        scopes=(COMPUTE,),
        refusals=(CONFLICT,),
    ),
    Operation("GET", "api/audit", "What operators did, newest first", AuditPage, scopes=(OPERATE,), query=AuditQuery),
    Operation("GET", "api/events", "Rows that change, as server-sent events", str, scopes=EVERYBODY, media="text/event-stream"),
    Operation("GET", "api/openapi.json", "This description", dict[str, Any], scopes=None),
    Operation("GET", "metrics", "Metrics for Prometheus; from this host itself without a token", str, scopes=STAFF, media="text/plain"),
    Operation("GET", "health", "Whether the pool serves", Healthy, scopes=None),
)


class Description(Api):
    """``GET api/openapi.json``: for everybody, as it says nothing of anybody."""

    def get(self) -> None:
        self.write_json(describe(OPERATIONS, self.context.settings.prefix))
