CREATE TABLE audit (
    id bigint NOT NULL,
    at_unix_ns bigint NOT NULL,
    who character varying(255) NOT NULL,
    action character varying(64) NOT NULL,
    subject character varying(600) NOT NULL,
    before text,
    after text NOT NULL
)
-- next
COMMENT ON COLUMN audit.before IS 'JSON; null: there was nothing'
-- next
COMMENT ON COLUMN audit.after IS 'JSON'
-- next
CREATE SEQUENCE audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
-- next
ALTER SEQUENCE audit_id_seq OWNED BY audit.id
-- next
CREATE TABLE choices (
    tenant character varying(255) NOT NULL,
    "user" character varying(255) NOT NULL,
    flavor character varying(64) NOT NULL
)
-- next
CREATE TABLE closures (
    kind character varying(8) NOT NULL,
    name character varying(255) NOT NULL,
    cause text NOT NULL
)
-- next
COMMENT ON COLUMN closures.kind IS 'node or device'
-- next
CREATE TABLE flavors (
    name character varying(64) NOT NULL,
    memory_bytes bigint NOT NULL,
    equivalents text NOT NULL,
    residents_max integer,
    removed boolean DEFAULT false NOT NULL
)
-- next
COMMENT ON COLUMN flavors.equivalents IS 'JSON: [[model, count], ...]'
-- next
CREATE TABLE holdings (
    device character varying(255) NOT NULL,
    ended_ns bigint NOT NULL,
    segment character varying(255) NOT NULL,
    started_ns bigint NOT NULL
)
-- next
COMMENT ON COLUMN holdings.ended_ns IS 'Unix time'
-- next
COMMENT ON COLUMN holdings.segment IS 'Of the usage record; a gang''s has a row for each device'
-- next
COMMENT ON COLUMN holdings.started_ns IS 'An hour before the end at most'
-- next
CREATE TABLE job_notices (
    id bigint NOT NULL,
    body text NOT NULL
)
-- next
COMMENT ON COLUMN job_notices.body IS 'JSON'
-- next
CREATE SEQUENCE job_notices_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
-- next
ALTER SEQUENCE job_notices_id_seq OWNED BY job_notices.id
-- next
CREATE TABLE job_output (
    job bigint NOT NULL,
    attempt integer NOT NULL,
    number bigint NOT NULL,
    text text NOT NULL
)
-- next
COMMENT ON COLUMN job_output.number IS 'From 1; the first ones are dropped of a long output'
-- next
CREATE TABLE jobs (
    id bigint NOT NULL,
    tenant character varying(255) NOT NULL,
    "user" character varying(255) NOT NULL,
    kind character varying(16) NOT NULL,
    file text NOT NULL,
    arguments text NOT NULL,
    folder text NOT NULL,
    name character varying(128) NOT NULL,
    flavor character varying(64),
    retries_max integer NOT NULL,
    time_limit_seconds integer,
    created_ns bigint NOT NULL,
    state character varying(16) NOT NULL,
    attempt integer NOT NULL,
    not_before_ns bigint NOT NULL,
    since_ns bigint NOT NULL,
    started_ns bigint,
    heard_ns bigint,
    server boolean NOT NULL,
    key character varying(64),
    reason character varying(32),
    exit_status integer,
    schedule bigint,
    notify character varying(16),
    environment character varying(32)
)
-- next
COMMENT ON COLUMN jobs.kind IS 'script, module or notebook'
-- next
COMMENT ON COLUMN jobs.file IS 'In the user''s home; of a module its name'
-- next
COMMENT ON COLUMN jobs.arguments IS 'JSON: [text, ...]'
-- next
COMMENT ON COLUMN jobs.folder IS 'In the user''s home'
-- next
COMMENT ON COLUMN jobs.since_ns IS 'When it came into its state'
-- next
COMMENT ON COLUMN jobs.heard_ns IS 'When its runner last spoke'
-- next
COMMENT ON COLUMN jobs.server IS 'Whether JupyterHub may have a server for it'
-- next
COMMENT ON COLUMN jobs.key IS 'Of the runner that has it'
-- next
COMMENT ON COLUMN jobs.notify IS 'none, failures or all; null: as the user prefers'
-- next
COMMENT ON COLUMN jobs.environment IS 'null: the one in use, or a notebook''s'
-- next
CREATE SEQUENCE jobs_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
-- next
ALTER SEQUENCE jobs_id_seq OWNED BY jobs.id
-- next
CREATE TABLE leadership (
    id integer NOT NULL,
    epoch bigint NOT NULL,
    url text NOT NULL
)
-- next
COMMENT ON COLUMN leadership.id IS '1: there is one row'
-- next
COMMENT ON COLUMN leadership.epoch IS 'Counts the pools that led; every write of a former one is refused'
-- next
COMMENT ON COLUMN leadership.url IS 'Where the one that leads serves'
-- next
CREATE TABLE lease_segments (
    id character varying(255) NOT NULL,
    lease character varying(255) NOT NULL,
    session character varying(255) NOT NULL,
    tenant character varying(255) NOT NULL,
    "user" character varying(255) NOT NULL,
    flavor character varying(64) NOT NULL,
    device_model character varying(128) NOT NULL,
    devices integer NOT NULL,
    started_at_unix_ns bigint NOT NULL,
    duration_ns bigint NOT NULL,
    close_reason character varying(16) NOT NULL,
    span text NOT NULL,
    share_milli bigint DEFAULT '1000'::bigint NOT NULL,
    parked_bytes bigint,
    energy_mj bigint
)
-- next
COMMENT ON COLUMN lease_segments.span IS 'JSON of the wire''s Span'
-- next
COMMENT ON COLUMN lease_segments.share_milli IS 'Of each device, in thousandths'
-- next
COMMENT ON COLUMN lease_segments.parked_bytes IS 'Of a stretch of parked time, whose name is in lease; null for a lease'
-- next
CREATE TABLE model_policies (
    model character varying(128) NOT NULL,
    tenants text
)
-- next
COMMENT ON COLUMN model_policies.tenants IS 'JSON: [tenant, ...]; null: all'
-- next
CREATE TABLE open_leases (
    id character varying(255) NOT NULL,
    session character varying(255) NOT NULL,
    epoch bigint NOT NULL,
    number bigint NOT NULL,
    tenant character varying(255) NOT NULL,
    "user" character varying(255) NOT NULL,
    flavor character varying(64) NOT NULL,
    devices text NOT NULL,
    device_model character varying(128) NOT NULL,
    share_milli bigint NOT NULL,
    span text NOT NULL,
    price_nano_per_hour bigint,
    currency character varying(3),
    waited_ns bigint NOT NULL,
    boot character varying(64) NOT NULL,
    opened_ns bigint NOT NULL,
    opened_unix_ns bigint NOT NULL,
    confirmed_ns bigint NOT NULL,
    segment bigint DEFAULT '1'::bigint NOT NULL,
    metered_ns bigint DEFAULT '0'::bigint NOT NULL
)
-- next
COMMENT ON COLUMN open_leases.number IS 'The client''s request that it answered'
-- next
COMMENT ON COLUMN open_leases.devices IS 'JSON list of ids'
-- next
COMMENT ON COLUMN open_leases.share_milli IS 'Of each device, in thousandths'
-- next
COMMENT ON COLUMN open_leases.span IS 'JSON of the wire''s Span'
-- next
COMMENT ON COLUMN open_leases.boot IS 'Whose monotonic clock opened_ns is of'
-- next
COMMENT ON COLUMN open_leases.confirmed_ns IS 'For how long its worker has confirmed to hold it'
-- next
COMMENT ON COLUMN open_leases.segment IS 'The number of the segment that runs'
-- next
COMMENT ON COLUMN open_leases.metered_ns IS 'For how long the segments before were metered'
-- next
CREATE TABLE parkings (
    id character varying(255) NOT NULL,
    session character varying(255) NOT NULL,
    bytes bigint NOT NULL,
    span text NOT NULL,
    boot character varying(64) NOT NULL,
    opened_ns bigint NOT NULL,
    opened_unix_ns bigint NOT NULL,
    segment bigint NOT NULL,
    metered_ns bigint NOT NULL
)
-- next
COMMENT ON COLUMN parkings.span IS 'JSON of the wire''s Span: what the session computed last'
-- next
COMMENT ON COLUMN parkings.boot IS 'Whose monotonic clock opened_ns is of'
-- next
COMMENT ON COLUMN parkings.segment IS 'The number of the segment that runs'
-- next
COMMENT ON COLUMN parkings.metered_ns IS 'For how long the segments before were metered'
-- next
CREATE TABLE quotas (
    tenant character varying(255) NOT NULL,
    "user" character varying(255) NOT NULL,
    devices_milli bigint,
    device_seconds bigint,
    window_seconds bigint,
    on_exhausted character varying(8) NOT NULL,
    priority_max integer,
    weight integer NOT NULL,
    parked_bytes bigint,
    on_parked_full character varying(8) DEFAULT 'stay'::character varying NOT NULL,
    origin character varying(8) DEFAULT 'operator'::character varying NOT NULL
)
-- next
COMMENT ON COLUMN quotas."user" IS 'Empty: the quota is the tenant''s'
-- next
CREATE TABLE schedules (
    id bigint NOT NULL,
    tenant character varying(255) NOT NULL,
    "user" character varying(255) NOT NULL,
    kind character varying(16) NOT NULL,
    file text NOT NULL,
    arguments text NOT NULL,
    folder text NOT NULL,
    name character varying(128) NOT NULL,
    flavor character varying(64),
    retries_max integer NOT NULL,
    time_limit_seconds integer,
    created_ns bigint NOT NULL,
    cron character varying(128) NOT NULL,
    zone character varying(64) NOT NULL,
    next_ns bigint NOT NULL,
    skipped_ns bigint,
    notify character varying(16),
    environment character varying(32)
)
-- next
COMMENT ON COLUMN schedules.kind IS 'script, module or notebook'
-- next
COMMENT ON COLUMN schedules.file IS 'In the user''s home; of a module its name'
-- next
COMMENT ON COLUMN schedules.arguments IS 'JSON: [text, ...]'
-- next
COMMENT ON COLUMN schedules.folder IS 'In the user''s home'
-- next
COMMENT ON COLUMN schedules.skipped_ns IS 'When it last came due while its job before was not over'
-- next
COMMENT ON COLUMN schedules.notify IS 'none, failures or all; null: as the user prefers'
-- next
COMMENT ON COLUMN schedules.environment IS 'null: the one in use, or a notebook''s'
-- next
CREATE SEQUENCE schedules_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
-- next
ALTER SEQUENCE schedules_id_seq OWNED BY schedules.id
-- next
CREATE TABLE sessions (
    id character varying(255) NOT NULL,
    secret character varying(128) NOT NULL,
    tenant character varying(255) NOT NULL,
    "user" character varying(255) NOT NULL,
    process text NOT NULL,
    flavor character varying(64) NOT NULL,
    since_unix_ns bigint NOT NULL,
    epoch bigint NOT NULL,
    span text,
    worker character varying(255),
    opened integer NOT NULL,
    reserved_bytes bigint NOT NULL,
    parked_bytes bigint,
    priority integer DEFAULT 0 NOT NULL,
    waits text,
    left_worker character varying(255)
)
-- next
COMMENT ON COLUMN sessions.secret IS 'Hex; tickets are derived from it'
-- next
COMMENT ON COLUMN sessions.process IS 'JSON string'
-- next
COMMENT ON COLUMN sessions.epoch IS 'Of its latest lease'
-- next
COMMENT ON COLUMN sessions.span IS 'JSON of its latest lease''s span'
-- next
COMMENT ON COLUMN sessions.opened IS '1: its worker was ever given a lease'
-- next
COMMENT ON COLUMN sessions.reserved_bytes IS 'Set aside for it on its worker''s device'
-- next
COMMENT ON COLUMN sessions.parked_bytes IS 'In host memory, where it is parked'
-- next
COMMENT ON COLUMN sessions.waits IS 'JSON: {number, arrived_unix_ns, order} of its request, while it waits'
-- next
COMMENT ON COLUMN sessions.left_worker IS 'That its tensors left last; its client may not have come to the next yet'
-- next
CREATE TABLE shared_notebooks (
    id bigint NOT NULL,
    tenant character varying(255) NOT NULL,
    "user" character varying(255) NOT NULL,
    name character varying(128) NOT NULL,
    made_ns bigint NOT NULL,
    expires_ns bigint NOT NULL,
    digest character varying(64) NOT NULL,
    page bytea NOT NULL
)
-- next
COMMENT ON COLUMN shared_notebooks.made_ns IS 'Unix time'
-- next
COMMENT ON COLUMN shared_notebooks.expires_ns IS 'Unix time'
-- next
COMMENT ON COLUMN shared_notebooks.digest IS 'SHA-256 of the link''s key, which is kept nowhere'
-- next
COMMENT ON COLUMN shared_notebooks.page IS 'HTML in UTF-8, deflated (zlib)'
-- next
CREATE SEQUENCE shared_notebooks_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
-- next
ALTER SEQUENCE shared_notebooks_id_seq OWNED BY shared_notebooks.id
-- next
CREATE TABLE trends (
    step_ns bigint NOT NULL,
    start_ns bigint NOT NULL,
    samples bigint NOT NULL,
    held bigint NOT NULL,
    idle bigint NOT NULL,
    free bigint NOT NULL,
    closed bigint NOT NULL,
    waiting bigint NOT NULL,
    waiting_max bigint NOT NULL,
    asked_milli bigint NOT NULL,
    held_milli bigint NOT NULL,
    waits text NOT NULL
)
-- next
COMMENT ON COLUMN trends.step_ns IS 'A minute or an hour'
-- next
COMMENT ON COLUMN trends.start_ns IS 'Unix time'
-- next
COMMENT ON COLUMN trends.samples IS 'What follows are sums over them'
-- next
COMMENT ON COLUMN trends.waiting_max IS 'No sum'
-- next
COMMENT ON COLUMN trends.waits IS 'JSON: {bucket: how many waits ended in it}'
-- next
CREATE TABLE usage_outbox (
    seq bigint NOT NULL,
    segment character varying(255) NOT NULL,
    refused text
)
-- next
COMMENT ON COLUMN usage_outbox.refused IS 'What billing said when it refused the record'
-- next
CREATE SEQUENCE usage_outbox_seq_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
-- next
ALTER SEQUENCE usage_outbox_seq_seq OWNED BY usage_outbox.seq
-- next
CREATE TABLE workers (
    id character varying(255) NOT NULL,
    devices text NOT NULL,
    token character varying(64) NOT NULL,
    boot character varying(64) NOT NULL,
    pid bigint NOT NULL,
    started bigint NOT NULL
)
-- next
COMMENT ON COLUMN workers.devices IS 'JSON list of ids; it computes on the first'
-- next
COMMENT ON COLUMN workers.token IS 'SHA-256 of the token that it links up with'
-- next
COMMENT ON COLUMN workers.boot IS 'Which run of which host the process belongs to'
-- next
COMMENT ON COLUMN workers.started IS 'When the process began, in the host''s clock ticks since its boot'
-- next
ALTER TABLE ONLY audit ALTER COLUMN id SET DEFAULT nextval('audit_id_seq'::regclass)
-- next
ALTER TABLE ONLY job_notices ALTER COLUMN id SET DEFAULT nextval('job_notices_id_seq'::regclass)
-- next
ALTER TABLE ONLY jobs ALTER COLUMN id SET DEFAULT nextval('jobs_id_seq'::regclass)
-- next
ALTER TABLE ONLY schedules ALTER COLUMN id SET DEFAULT nextval('schedules_id_seq'::regclass)
-- next
ALTER TABLE ONLY shared_notebooks ALTER COLUMN id SET DEFAULT nextval('shared_notebooks_id_seq'::regclass)
-- next
ALTER TABLE ONLY usage_outbox ALTER COLUMN seq SET DEFAULT nextval('usage_outbox_seq_seq'::regclass)
-- next
INSERT INTO leadership VALUES (1, 0, '')
-- next
SELECT pg_catalog.setval('audit_id_seq', 1, false)
-- next
SELECT pg_catalog.setval('job_notices_id_seq', 1, false)
-- next
SELECT pg_catalog.setval('jobs_id_seq', 1, false)
-- next
SELECT pg_catalog.setval('schedules_id_seq', 1, false)
-- next
SELECT pg_catalog.setval('shared_notebooks_id_seq', 1, false)
-- next
SELECT pg_catalog.setval('usage_outbox_seq_seq', 1, false)
-- next
ALTER TABLE ONLY audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (id)
-- next
ALTER TABLE ONLY choices
    ADD CONSTRAINT choices_pkey PRIMARY KEY (tenant, "user")
-- next
ALTER TABLE ONLY closures
    ADD CONSTRAINT closures_pkey PRIMARY KEY (kind, name)
-- next
ALTER TABLE ONLY flavors
    ADD CONSTRAINT flavors_pkey PRIMARY KEY (name)
-- next
ALTER TABLE ONLY holdings
    ADD CONSTRAINT holdings_pkey PRIMARY KEY (device, ended_ns, segment)
-- next
ALTER TABLE ONLY job_notices
    ADD CONSTRAINT job_notices_pkey PRIMARY KEY (id)
-- next
ALTER TABLE ONLY job_output
    ADD CONSTRAINT job_output_pkey PRIMARY KEY (job, attempt, number)
-- next
ALTER TABLE ONLY jobs
    ADD CONSTRAINT jobs_pkey PRIMARY KEY (id)
-- next
ALTER TABLE ONLY leadership
    ADD CONSTRAINT leadership_pkey PRIMARY KEY (id)
-- next
ALTER TABLE ONLY lease_segments
    ADD CONSTRAINT lease_segments_pkey PRIMARY KEY (id)
-- next
ALTER TABLE ONLY model_policies
    ADD CONSTRAINT model_policies_pkey PRIMARY KEY (model)
-- next
ALTER TABLE ONLY open_leases
    ADD CONSTRAINT open_leases_pkey PRIMARY KEY (id)
-- next
ALTER TABLE ONLY parkings
    ADD CONSTRAINT parkings_pkey PRIMARY KEY (id)
-- next
ALTER TABLE ONLY quotas
    ADD CONSTRAINT quotas_pkey PRIMARY KEY (tenant, "user")
-- next
ALTER TABLE ONLY schedules
    ADD CONSTRAINT schedules_pkey PRIMARY KEY (id)
-- next
ALTER TABLE ONLY sessions
    ADD CONSTRAINT sessions_pkey PRIMARY KEY (id)
-- next
ALTER TABLE ONLY shared_notebooks
    ADD CONSTRAINT shared_notebooks_pkey PRIMARY KEY (id)
-- next
ALTER TABLE ONLY trends
    ADD CONSTRAINT trends_pkey PRIMARY KEY (step_ns, start_ns)
-- next
ALTER TABLE ONLY usage_outbox
    ADD CONSTRAINT usage_outbox_pkey PRIMARY KEY (seq)
-- next
ALTER TABLE ONLY usage_outbox
    ADD CONSTRAINT usage_outbox_segment_key UNIQUE (segment)
-- next
ALTER TABLE ONLY workers
    ADD CONSTRAINT workers_pkey PRIMARY KEY (id)
-- next
CREATE INDEX audit_by_subject ON audit USING btree (subject, id)
-- next
CREATE INDEX jobs_by_schedule ON jobs USING btree (schedule)
-- next
CREATE INDEX jobs_by_server ON jobs USING btree (server)
-- next
CREATE INDEX jobs_by_state ON jobs USING btree (state)
-- next
CREATE INDEX jobs_by_user ON jobs USING btree (tenant, "user", id)
-- next
CREATE INDEX lease_segments_by_end ON lease_segments USING btree (((started_at_unix_ns + duration_ns)))
-- next
CREATE INDEX lease_segments_by_lease ON lease_segments USING btree (lease)
-- next
CREATE INDEX lease_segments_by_tenant ON lease_segments USING btree (tenant, started_at_unix_ns)
-- next
CREATE INDEX schedules_by_time ON schedules USING btree (next_ns)
-- next
CREATE INDEX shared_notebooks_by_user ON shared_notebooks USING btree (tenant, "user", id)
-- next
ALTER TABLE ONLY usage_outbox
    ADD CONSTRAINT usage_outbox_segment_fkey FOREIGN KEY (segment) REFERENCES lease_segments(id)
