CREATE TABLE flavors (
	name VARCHAR(64) NOT NULL, 
	memory_bytes BIGINT NOT NULL, 
	equivalents TEXT NOT NULL, residents_max INTEGER, removed BOOLEAN DEFAULT 0 NOT NULL, 
	PRIMARY KEY (name)
)
-- next
CREATE TABLE choices (
	tenant VARCHAR(255) NOT NULL, 
	user VARCHAR(255) NOT NULL, 
	flavor VARCHAR(64) NOT NULL, 
	PRIMARY KEY (tenant, user)
)
-- next
CREATE TABLE lease_segments (
	id VARCHAR(255) NOT NULL, 
	lease VARCHAR(255) NOT NULL, 
	session VARCHAR(255) NOT NULL, 
	tenant VARCHAR(255) NOT NULL, 
	user VARCHAR(255) NOT NULL, 
	flavor VARCHAR(64) NOT NULL, 
	device_model VARCHAR(128) NOT NULL, 
	devices INTEGER NOT NULL, 
	started_at_unix_ns BIGINT NOT NULL, 
	duration_ns BIGINT NOT NULL, 
	close_reason VARCHAR(16) NOT NULL, 
	span TEXT NOT NULL, share_milli BIGINT DEFAULT '1000' NOT NULL, parked_bytes BIGINT, energy_mj BIGINT, 
	PRIMARY KEY (id)
)
-- next
CREATE INDEX lease_segments_by_tenant ON lease_segments (tenant, started_at_unix_ns)
-- next
CREATE TABLE usage_outbox (
	seq INTEGER NOT NULL, 
	segment VARCHAR(255) NOT NULL, 
	refused TEXT, 
	PRIMARY KEY (seq), 
	UNIQUE (segment), 
	FOREIGN KEY(segment) REFERENCES lease_segments (id)
)
-- next
CREATE TABLE leadership (
	id INTEGER NOT NULL, 
	epoch BIGINT NOT NULL, 
	url TEXT NOT NULL, 
	PRIMARY KEY (id)
)
-- next
CREATE TABLE sessions (
	id VARCHAR(255) NOT NULL, 
	secret VARCHAR(128) NOT NULL, 
	tenant VARCHAR(255) NOT NULL, 
	user VARCHAR(255) NOT NULL, 
	process TEXT NOT NULL, 
	flavor VARCHAR(64) NOT NULL, 
	since_unix_ns BIGINT NOT NULL, 
	epoch BIGINT NOT NULL, 
	span TEXT, 
	worker VARCHAR(255), 
	opened INTEGER NOT NULL, 
	reserved_bytes BIGINT NOT NULL, 
	parked_bytes BIGINT, priority INTEGER DEFAULT '0' NOT NULL, waits TEXT, left_worker VARCHAR(255), 
	PRIMARY KEY (id)
)
-- next
CREATE TABLE workers (
	id VARCHAR(255) NOT NULL, 
	devices TEXT NOT NULL, 
	token VARCHAR(64) NOT NULL, 
	boot VARCHAR(64) NOT NULL, 
	pid BIGINT NOT NULL, 
	started BIGINT NOT NULL, 
	PRIMARY KEY (id)
)
-- next
CREATE TABLE open_leases (
	id VARCHAR(255) NOT NULL, 
	session VARCHAR(255) NOT NULL, 
	epoch BIGINT NOT NULL, 
	number BIGINT NOT NULL, 
	tenant VARCHAR(255) NOT NULL, 
	user VARCHAR(255) NOT NULL, 
	flavor VARCHAR(64) NOT NULL, 
	devices TEXT NOT NULL, 
	device_model VARCHAR(128) NOT NULL, 
	share_milli BIGINT NOT NULL, 
	span TEXT NOT NULL, 
	price_nano_per_hour BIGINT, 
	currency VARCHAR(3), 
	waited_ns BIGINT NOT NULL, 
	boot VARCHAR(64) NOT NULL, 
	opened_ns BIGINT NOT NULL, 
	opened_unix_ns BIGINT NOT NULL, 
	confirmed_ns BIGINT NOT NULL, segment BIGINT DEFAULT '1' NOT NULL, metered_ns BIGINT DEFAULT '0' NOT NULL, 
	PRIMARY KEY (id)
)
-- next
CREATE TABLE quotas (
	tenant VARCHAR(255) NOT NULL, 
	user VARCHAR(255) NOT NULL, 
	devices_milli BIGINT, 
	device_seconds BIGINT, 
	window_seconds BIGINT, 
	on_exhausted VARCHAR(8) NOT NULL, 
	priority_max INTEGER, 
	weight INTEGER NOT NULL, parked_bytes BIGINT, on_parked_full VARCHAR(8) DEFAULT 'stay' NOT NULL, origin VARCHAR(8) DEFAULT 'operator' NOT NULL, 
	PRIMARY KEY (tenant, user)
)
-- next
CREATE TABLE closures (
	kind VARCHAR(8) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	cause TEXT NOT NULL, 
	PRIMARY KEY (kind, name)
)
-- next
CREATE TABLE model_policies (
	model VARCHAR(128) NOT NULL, 
	tenants TEXT, 
	PRIMARY KEY (model)
)
-- next
CREATE INDEX lease_segments_by_end ON lease_segments ((started_at_unix_ns + duration_ns))
-- next
CREATE INDEX lease_segments_by_lease ON lease_segments (lease)
-- next
CREATE TABLE parkings (
	id VARCHAR(255) NOT NULL, 
	session VARCHAR(255) NOT NULL, 
	bytes BIGINT NOT NULL, 
	span TEXT NOT NULL, 
	boot VARCHAR(64) NOT NULL, 
	opened_ns BIGINT NOT NULL, 
	opened_unix_ns BIGINT NOT NULL, 
	segment BIGINT NOT NULL, 
	metered_ns BIGINT NOT NULL, 
	PRIMARY KEY (id)
)
-- next
CREATE TABLE audit (
	id INTEGER NOT NULL, 
	at_unix_ns BIGINT NOT NULL, 
	who VARCHAR(255) NOT NULL, 
	action VARCHAR(64) NOT NULL, 
	subject VARCHAR(600) NOT NULL, 
	"before" TEXT, 
	"after" TEXT NOT NULL, 
	PRIMARY KEY (id)
)
-- next
CREATE INDEX audit_by_subject ON audit (subject, id)
-- next
CREATE TABLE jobs (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	tenant VARCHAR(255) NOT NULL, 
	user VARCHAR(255) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	file TEXT NOT NULL, 
	arguments TEXT NOT NULL, 
	folder TEXT NOT NULL, 
	name VARCHAR(128) NOT NULL, 
	flavor VARCHAR(64), 
	retries_max INTEGER NOT NULL, 
	time_limit_seconds INTEGER, 
	created_ns BIGINT NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	attempt INTEGER NOT NULL, 
	not_before_ns BIGINT NOT NULL, 
	since_ns BIGINT NOT NULL, 
	started_ns BIGINT, 
	heard_ns BIGINT, 
	server BOOLEAN NOT NULL, 
	"key" VARCHAR(64), 
	reason VARCHAR(32), 
	exit_status INTEGER, 
	schedule BIGINT
, notify VARCHAR(16), environment VARCHAR(32))
-- next
CREATE INDEX jobs_by_user ON jobs (tenant, user, id)
-- next
CREATE INDEX jobs_by_state ON jobs (state)
-- next
CREATE INDEX jobs_by_server ON jobs (server)
-- next
CREATE INDEX jobs_by_schedule ON jobs (schedule)
-- next
CREATE TABLE job_output (
	job BIGINT NOT NULL, 
	attempt INTEGER NOT NULL, 
	number BIGINT NOT NULL, 
	text TEXT NOT NULL, 
	PRIMARY KEY (job, attempt, number)
)
-- next
CREATE TABLE schedules (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	tenant VARCHAR(255) NOT NULL, 
	user VARCHAR(255) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	file TEXT NOT NULL, 
	arguments TEXT NOT NULL, 
	folder TEXT NOT NULL, 
	name VARCHAR(128) NOT NULL, 
	flavor VARCHAR(64), 
	retries_max INTEGER NOT NULL, 
	time_limit_seconds INTEGER, 
	created_ns BIGINT NOT NULL, 
	cron VARCHAR(128) NOT NULL, 
	zone VARCHAR(64) NOT NULL, 
	next_ns BIGINT NOT NULL, 
	skipped_ns BIGINT
, notify VARCHAR(16), environment VARCHAR(32))
-- next
CREATE INDEX schedules_by_time ON schedules (next_ns)
-- next
CREATE TABLE trends (
	step_ns BIGINT NOT NULL, 
	start_ns BIGINT NOT NULL, 
	samples BIGINT NOT NULL, 
	held BIGINT NOT NULL, 
	idle BIGINT NOT NULL, 
	free BIGINT NOT NULL, 
	closed BIGINT NOT NULL, 
	waiting BIGINT NOT NULL, 
	waiting_max BIGINT NOT NULL, 
	asked_milli BIGINT NOT NULL, 
	held_milli BIGINT NOT NULL, 
	waits TEXT NOT NULL, 
	PRIMARY KEY (step_ns, start_ns)
)
-- next
CREATE TABLE holdings (
	device VARCHAR(255) NOT NULL, 
	ended_ns BIGINT NOT NULL, 
	segment VARCHAR(255) NOT NULL, 
	started_ns BIGINT NOT NULL, 
	PRIMARY KEY (device, ended_ns, segment)
)
 WITHOUT ROWID
-- next
CREATE TABLE shared_notebooks (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	tenant VARCHAR(255) NOT NULL, 
	user VARCHAR(255) NOT NULL, 
	name VARCHAR(128) NOT NULL, 
	made_ns BIGINT NOT NULL, 
	expires_ns BIGINT NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	page BLOB NOT NULL
)
-- next
CREATE INDEX shared_notebooks_by_user ON shared_notebooks (tenant, user, id)
-- next
CREATE TABLE job_notices (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	body TEXT NOT NULL
)
-- next
INSERT INTO "leadership" VALUES(1,0,'')
