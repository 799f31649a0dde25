"""The pool's tables."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, LargeBinary, MetaData, String, Table, Text, false

METADATA = MetaData()

FLAVORS = Table(
    "flavors",
    METADATA,
    Column("name", String(64), primary_key=True),
    Column("memory_bytes", BigInteger, nullable=False),
    Column("residents_max", Integer, nullable=True),
    Column("images", String(8), nullable=True, comment="Where images of its sessions are kept; null: where the pool keeps those of others"),
    Column("runtimes", String(64), nullable=True, comment="What it offers, with spaces between; null: all that its hosts serve"),
    Column(
        "egress",
        Text,
        nullable=True,
        comment="Places that its processes may reach, with spaces between; empty: none; null: those of the installation",
    ),
    Column("equivalents", Text, nullable=False, comment="JSON: [[model, count] or [model, count, share_milli], ...]"),
    Column("removed", Boolean, nullable=False, server_default=false(), comment="Else a start would add it anew"),
)

CHOICES = Table(
    "choices",
    METADATA,
    Column("tenant", String(255), primary_key=True),
    Column("user", String(255), primary_key=True),
    Column("flavor", String(64), nullable=False),
)

QUOTAS = Table(
    "quotas",
    METADATA,
    Column("tenant", String(255), primary_key=True),
    Column("user", String(255), primary_key=True, comment="Empty: the quota is the tenant's"),
    Column("devices_milli", BigInteger, nullable=True),
    Column("device_seconds", BigInteger, nullable=True),
    Column("window_seconds", BigInteger, nullable=True),
    Column("on_exhausted", String(8), nullable=False),
    Column("priority_max", Integer, nullable=True),
    Column("weight", Integer, nullable=False),
    Column("parked_bytes", BigInteger, nullable=True),
    Column("on_parked_full", String(8), nullable=False, server_default="stay"),
    Column("origin", String(8), nullable=False, server_default="operator"),
)

SEGMENTS = Table(
    "lease_segments",
    METADATA,
    Column("id", String(255), primary_key=True),
    Column("lease", String(255), nullable=False),
    Column("session", String(255), nullable=False),
    Column("tenant", String(255), nullable=False),
    Column("user", String(255), nullable=False),
    Column("flavor", String(64), nullable=False),
    Column("device_model", String(128), nullable=False),
    Column("devices", Integer, nullable=False),
    Column("started_at_unix_ns", BigInteger, nullable=False),
    Column("duration_ns", BigInteger, nullable=False),
    Column("close_reason", String(16), nullable=False),
    Column("share_milli", BigInteger, nullable=False, server_default="1000", comment="Of each device, in thousandths"),
    Column("span", Text, nullable=False, comment="JSON of the wire's Span"),
    Column("parked_bytes", BigInteger, nullable=True, comment="Of a stretch of parked time, whose name is in lease; null for a lease"),
    Column("energy_mj", BigInteger, nullable=True, comment="Millijoules that the devices drew; null where no driver tells"),
)
Index("lease_segments_by_lease", SEGMENTS.c.lease)
Index("lease_segments_by_tenant", SEGMENTS.c.tenant, SEGMENTS.c.started_at_unix_ns)
Index("lease_segments_by_end", SEGMENTS.c.started_at_unix_ns + SEGMENTS.c.duration_ns)

HOLDINGS = Table(
    "holdings",
    METADATA,
    Column("device", String(255), primary_key=True),
    Column("ended_ns", BigInteger, primary_key=True, comment="Unix time"),
    Column("segment", String(255), primary_key=True, comment="Of the usage record; a gang's has a row for each device"),
    Column("started_ns", BigInteger, nullable=False, comment="An hour before the end at most"),
    sqlite_with_rowid=False,
)

OUTBOX = Table(
    "usage_outbox",
    METADATA,
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("segment", String(255), ForeignKey("lease_segments.id"), nullable=False, unique=True),
    Column("refused", Text, nullable=True, comment="What billing said when it refused the record"),
)

LEADERSHIP = Table(
    "leadership",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False, comment="1: there is one row"),
    Column("epoch", BigInteger, nullable=False, comment="Counts the pools that led; every write of a former one is refused"),
    Column("url", Text, nullable=False, comment="Where the one that leads serves"),
)

RECEIPT_KEY = Table(
    "receipt_key",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False, comment="1: there is one row"),
    Column("private_key", String(64), nullable=False, comment="Hex; Ed25519"),
)

SESSIONS = Table(
    "sessions",
    METADATA,
    Column("id", String(255), primary_key=True),
    Column("secret", String(128), nullable=False, comment="Hex; tickets are derived from it"),
    Column("tenant", String(255), nullable=False),
    Column("user", String(255), nullable=False),
    Column("process", Text, nullable=False, comment="JSON string"),
    Column("flavor", String(64), nullable=False),
    Column("since_unix_ns", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False, comment="Of its latest lease"),
    Column("span", Text, nullable=True, comment="JSON of its latest lease's span"),
    Column("worker", String(255), nullable=True),
    Column("opened", Integer, nullable=False, comment="1: its worker was ever given a lease"),
    Column("reserved_bytes", BigInteger, nullable=False, comment="Set aside for it on its worker's device"),
    Column("parked_bytes", BigInteger, nullable=True, comment="In host memory, where it is parked"),
    Column("priority", Integer, nullable=False, server_default="0"),
    Column("waits", Text, nullable=True, comment="JSON: {number, arrived_unix_ns, order} of its request, while it waits"),
    Column("left_worker", String(255), nullable=True, comment="That its tensors left last; its client may not have come to the next yet"),
    Column("replay", Text, nullable=True, comment="JSON: {worked_ns, loss, image}; its client can send what it sent to another worker"),
)

WORKERS = Table(
    "workers",
    METADATA,
    Column("id", String(255), primary_key=True),
    Column("devices", Text, nullable=False, comment="JSON list of ids; it computes on the first"),
    Column("token", String(64), nullable=False, comment="SHA-256 of the token that it links up with"),
    Column("boot", String(64), nullable=False, comment="Which run of which host the process belongs to"),
    Column("pid", BigInteger, nullable=False),
    Column("started", BigInteger, nullable=False, comment="When the process began, in the host's clock ticks since its boot"),
)

OPEN_LEASES = Table(
    "open_leases",
    METADATA,
    Column("id", String(255), primary_key=True),
    Column("session", String(255), nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("number", BigInteger, nullable=False, comment="The client's request that it answered"),
    Column("tenant", String(255), nullable=False),
    Column("user", String(255), nullable=False),
    Column("flavor", String(64), nullable=False),
    Column("devices", Text, nullable=False, comment="JSON list of ids"),
    Column("device_model", String(128), nullable=False),
    Column("share_milli", BigInteger, nullable=False, comment="Of each device, in thousandths"),
    Column("span", Text, nullable=False, comment="JSON of the wire's Span"),
    Column("price_nano_per_hour", BigInteger, nullable=True),
    Column("currency", String(3), nullable=True),
    Column("waited_ns", BigInteger, nullable=False),
    Column("boot", String(64), nullable=False, comment="Whose monotonic clock opened_ns is of"),
    Column("opened_ns", BigInteger, nullable=False),
    Column("opened_unix_ns", BigInteger, nullable=False),
    Column("confirmed_ns", BigInteger, nullable=False, comment="For how long its worker has confirmed to hold it"),
    Column("segment", BigInteger, nullable=False, server_default="1", comment="The number of the segment that runs"),
    Column("metered_ns", BigInteger, nullable=False, server_default="0", comment="For how long the segments before were metered"),
)

PARKINGS = Table(
    "parkings",
    METADATA,
    Column("id", String(255), primary_key=True),
    Column("session", String(255), nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("span", Text, nullable=False, comment="JSON of the wire's Span: what the session computed last"),
    Column("boot", String(64), nullable=False, comment="Whose monotonic clock opened_ns is of"),
    Column("opened_ns", BigInteger, nullable=False),
    Column("opened_unix_ns", BigInteger, nullable=False),
    Column("segment", BigInteger, nullable=False, comment="The number of the segment that runs"),
    Column("metered_ns", BigInteger, nullable=False, comment="For how long the segments before were metered"),
    Column("image", Boolean, nullable=False, server_default=false(), comment="Whether it is of the session's image, not of its tensors"),
)

AUDIT = Table(
    "audit",
    METADATA,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("at_unix_ns", BigInteger, nullable=False),
    Column("who", String(255), nullable=False),
    Column("action", String(64), nullable=False),
    Column("subject", String(600), nullable=False),
    Column("before", Text, nullable=True, comment="JSON; null: there was nothing"),
    Column("after", Text, nullable=False, comment="JSON"),
)
Index("audit_by_subject", AUDIT.c.subject, AUDIT.c.id)

CLOSURES = Table(
    "closures",
    METADATA,
    Column("kind", String(8), primary_key=True, comment="node or device"),
    Column("name", String(255), primary_key=True),
    Column("cause", Text, nullable=False),
)

MODEL_POLICIES = Table(
    "model_policies",
    METADATA,
    Column("model", String(128), primary_key=True),
    Column("tenants", Text, nullable=True, comment="JSON: [tenant, ...]; null: all"),
)


def _number() -> Column[int]:
    return Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True)


def _program() -> tuple[Column[Any], ...]:
    """What is run for a user: the same of a job and of a schedule."""
    return (
        Column("tenant", String(255), nullable=False),
        Column("user", String(255), nullable=False),
        Column("kind", String(16), nullable=False, comment="script, module or notebook"),
        Column("file", Text, nullable=False, comment="In the user's home; of a module its name"),
        Column("arguments", Text, nullable=False, comment="JSON: [text, ...]"),
        Column("folder", Text, nullable=False, comment="In the user's home"),
        Column("name", String(128), nullable=False),
        Column("flavor", String(64), nullable=True),
        Column("retries_max", Integer, nullable=False),
        Column("time_limit_seconds", Integer, nullable=True),
        Column("notify", String(16), nullable=True, comment="none, failures or all; null: as the user prefers"),
        Column("environment", String(32), nullable=True, comment="null: the one in use, or a notebook's"),
        Column("label", String(128), nullable=True, comment="What usage calls its work; null: the job's number and name"),
        Column("files", String(64), nullable=True, comment="The list of files that it begins with; null: those of the user's home"),
        Column("created_ns", BigInteger, nullable=False),
    )


JOBS = Table(
    "jobs",
    METADATA,
    _number(),
    *_program(),
    Column("state", String(16), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("not_before_ns", BigInteger, nullable=False),
    Column("since_ns", BigInteger, nullable=False, comment="When it came into its state"),
    Column("started_ns", BigInteger, nullable=True),
    Column("heard_ns", BigInteger, nullable=True, comment="When its runner last spoke"),
    Column("server", Boolean, nullable=False, comment="Whether JupyterHub may have a server for it"),
    Column("key", String(64), nullable=True, comment="Of the runner that has it"),
    Column("reason", String(32), nullable=True),
    Column("exit_status", Integer, nullable=True),
    Column("schedule", BigInteger, nullable=True),
    sqlite_autoincrement=True,
)
Index("jobs_by_user", JOBS.c.tenant, JOBS.c.user, JOBS.c.id)
Index("jobs_by_state", JOBS.c.state)
Index("jobs_by_server", JOBS.c.server)
Index("jobs_by_schedule", JOBS.c.schedule)

JOB_NOTICES = Table(
    "job_notices",
    METADATA,
    _number(),
    Column("body", Text, nullable=False, comment="JSON"),
    sqlite_autoincrement=True,
)
"""What users are to be told of their jobs, until billing has it."""

JOB_OUTPUT = Table(
    "job_output",
    METADATA,
    Column("job", BigInteger, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("number", BigInteger, primary_key=True, comment="From 1; the first ones are dropped of a long output"),
    Column("text", Text, nullable=False),
    Column("bytes", BigInteger, nullable=False, server_default="0", comment="What it counts: the text's, and the row's"),
)
JOB_RUNS = Table(
    "job_runs",
    METADATA,
    Column("job", BigInteger, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("tenant", String(255), nullable=False),
    Column("user", String(255), nullable=False),
    Column("bytes", BigInteger, nullable=False, comment="Of the output that is kept"),
    Column("last", BigInteger, nullable=False, comment="Number of the last piece that was kept"),
)
Index("job_runs_by_user", JOB_RUNS.c.tenant, JOB_RUNS.c.user, JOB_RUNS.c.job)

SCHEDULES = Table(
    "schedules",
    METADATA,
    _number(),
    *_program(),
    Column("cron", String(128), nullable=False),
    Column("zone", String(64), nullable=False),
    Column("next_ns", BigInteger, nullable=False),
    Column("skipped_ns", BigInteger, nullable=True, comment="When it last came due while its job before was not over"),
    sqlite_autoincrement=True,
)
Index("schedules_by_time", SCHEDULES.c.next_ns)

SHARED_NOTEBOOKS = Table(
    "shared_notebooks",
    METADATA,
    _number(),
    Column("tenant", String(255), nullable=False),
    Column("user", String(255), nullable=False),
    Column("name", String(128), nullable=False),
    Column("made_ns", BigInteger, nullable=False, comment="Unix time"),
    Column("expires_ns", BigInteger, nullable=False, comment="Unix time"),
    Column("digest", String(64), nullable=False, comment="SHA-256 of the link's key, which is kept nowhere"),
    Column("page", LargeBinary, nullable=False, comment="HTML in UTF-8, deflated (zlib)"),
    sqlite_autoincrement=True,
)
Index("shared_notebooks_by_user", SHARED_NOTEBOOKS.c.tenant, SHARED_NOTEBOOKS.c.user, SHARED_NOTEBOOKS.c.id)

TRENDS = Table(
    "trends",
    METADATA,
    Column("step_ns", BigInteger, primary_key=True, comment="A minute or an hour"),
    Column("start_ns", BigInteger, primary_key=True, comment="Unix time"),
    Column("samples", BigInteger, nullable=False, comment="What follows are sums over them"),
    Column("held", BigInteger, nullable=False),
    Column("idle", BigInteger, nullable=False),
    Column("free", BigInteger, nullable=False),
    Column("closed", BigInteger, nullable=False),
    Column("waiting", BigInteger, nullable=False),
    Column("waiting_max", BigInteger, nullable=False, comment="No sum"),
    Column("asked_milli", BigInteger, nullable=False),
    Column("held_milli", BigInteger, nullable=False),
    Column("waits", Text, nullable=False, comment="JSON: {bucket: how many waits ended in it}"),
)
