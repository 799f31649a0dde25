CREATE TABLE prices (
	id BIGINT NOT NULL, 
	flavor VARCHAR(128) NOT NULL, 
	currency VARCHAR(3) NOT NULL, 
	version INTEGER NOT NULL, 
	price_nano_per_hour BIGINT NOT NULL, 
	valid_from_ns BIGINT NOT NULL, 
	changed_at_ns BIGINT NOT NULL, 
	changed_by VARCHAR(255) NOT NULL, 
	CONSTRAINT pk_prices PRIMARY KEY (id), 
	CONSTRAINT uq_prices_flavor_currency_version UNIQUE (flavor, currency, version), 
	CONSTRAINT ck_prices_ck_prices_price_not_below_zero CHECK (price_nano_per_hour >= 0)
)
-- next
CREATE TABLE accounts (
	id INTEGER NOT NULL, 
	name VARCHAR(160) NOT NULL, 
	CONSTRAINT pk_accounts PRIMARY KEY (id), 
	CONSTRAINT uq_accounts_name UNIQUE (name)
)
-- next
CREATE TABLE audit (
	id BIGINT NOT NULL, 
	at_ns BIGINT NOT NULL, 
	who VARCHAR(255) NOT NULL, 
	action VARCHAR(32) NOT NULL, 
	subject VARCHAR(264) NOT NULL, 
	"before" TEXT, 
	"after" TEXT NOT NULL, 
	CONSTRAINT pk_audit PRIMARY KEY (id)
)
-- next
CREATE TABLE transactions (
	id BIGINT NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	posted_at_ns BIGINT NOT NULL, 
	reverses BIGINT, 
	CONSTRAINT pk_transactions PRIMARY KEY (id), 
	CONSTRAINT fk_transactions_id FOREIGN KEY(id) REFERENCES seals (transaction_id) DEFERRABLE INITIALLY DEFERRED, 
	CONSTRAINT fk_transactions_reverses FOREIGN KEY(reverses) REFERENCES transactions (id), 
	CONSTRAINT ck_transactions_ck_transactions_kind CHECK (kind IN ('usage', 'reversal', 'reserve', 'void', 'expire', 'post', 'credit', 'adjustment', 'payment', 'refund', 'fee')), 
	CONSTRAINT ck_transactions_ck_transactions_reversal_reverses CHECK ((kind = 'reversal') = (reverses IS NOT NULL))
)
-- next
CREATE INDEX ix_transactions_reverses ON transactions (reverses)
-- next
CREATE TABLE balances (
	account_id INTEGER NOT NULL, 
	period VARCHAR(7) NOT NULL, 
	currency VARCHAR(3) NOT NULL, 
	milli BIGINT NOT NULL, 
	grains BIGINT NOT NULL, 
	CONSTRAINT pk_balances PRIMARY KEY (account_id, period, currency), 
	CONSTRAINT fk_balances_account_id FOREIGN KEY(account_id) REFERENCES accounts (id), 
	CONSTRAINT ck_balances_ck_balances_milli_within_64_bits CHECK (milli > -9000000000000000000 AND milli < 9000000000000000000)
)
 WITHOUT ROWID
-- next
CREATE TABLE seals (
	transaction_id BIGINT NOT NULL, 
	CONSTRAINT pk_seals PRIMARY KEY (transaction_id), 
	CONSTRAINT fk_seals_transaction_id FOREIGN KEY(transaction_id) REFERENCES transactions (id)
)
 WITHOUT ROWID
-- next
CREATE TABLE reversals (
	usage_id BIGINT NOT NULL, 
	transaction_id BIGINT NOT NULL, 
	CONSTRAINT pk_reversals PRIMARY KEY (usage_id), 
	CONSTRAINT fk_reversals_usage_id FOREIGN KEY(usage_id) REFERENCES usage (id), 
	CONSTRAINT fk_reversals_transaction_id FOREIGN KEY(transaction_id) REFERENCES transactions (id), 
	CONSTRAINT uq_reversals_transaction_id UNIQUE (transaction_id)
)
 WITHOUT ROWID
-- next
CREATE TABLE periods (
	id BIGINT NOT NULL, 
	tenant VARCHAR(128) NOT NULL, 
	period VARCHAR(7) NOT NULL, 
	finalised_at_ns BIGINT NOT NULL, 
	CONSTRAINT pk_periods PRIMARY KEY (id), 
	CONSTRAINT uq_periods_tenant_period UNIQUE (tenant, period)
)
-- next
CREATE TABLE idempotency (
	caller VARCHAR(255) NOT NULL, 
	"key" VARCHAR(255) NOT NULL, 
	digest BLOB NOT NULL, 
	answer TEXT NOT NULL, 
	at_ns BIGINT NOT NULL, 
	CONSTRAINT pk_idempotency PRIMARY KEY (caller, "key")
)
 WITHOUT ROWID
-- next
CREATE TABLE payment_outbox (
	id BIGINT NOT NULL, 
	tenant VARCHAR(128) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	subject VARCHAR(512) NOT NULL, 
	body TEXT NOT NULL, 
	idempotency VARCHAR(64) NOT NULL, 
	generation INTEGER NOT NULL, 
	look INTEGER NOT NULL, 
	state VARCHAR(8) NOT NULL, 
	attempts INTEGER NOT NULL, 
	created_at_ns BIGINT NOT NULL, 
	next_at_ns BIGINT NOT NULL, 
	first_tried_at_ns BIGINT, 
	settled_at_ns BIGINT, 
	note TEXT, sent_at_ns BIGINT, 
	CONSTRAINT pk_payment_outbox PRIMARY KEY (id), 
	CONSTRAINT uq_payment_outbox_kind_subject UNIQUE (kind, subject), 
	CONSTRAINT uq_payment_outbox_idempotency UNIQUE (idempotency), 
	CONSTRAINT ck_payment_outbox_ck_payment_outbox_state CHECK (state IN ('waiting', 'done', 'dead', 'skipped'))
)
-- next
CREATE INDEX ix_payment_outbox_state_next_at_ns ON payment_outbox (state, next_at_ns)
-- next
CREATE INDEX ix_payment_outbox_tenant_state_id ON payment_outbox (tenant, state, id)
-- next
CREATE TABLE payment_objects (
	kind VARCHAR(16) NOT NULL, 
	subject VARCHAR(512) NOT NULL, 
	tenant VARCHAR(128) NOT NULL, 
	stripe_id VARCHAR(255) NOT NULL, 
	status VARCHAR(32) NOT NULL, 
	currency VARCHAR(3), 
	total_minor BIGINT, 
	paid_minor BIGINT, 
	url TEXT, 
	refreshed_at_ns BIGINT NOT NULL, 
	CONSTRAINT pk_payment_objects PRIMARY KEY (kind, subject), 
	CONSTRAINT uq_payment_objects_stripe_id UNIQUE (stripe_id)
)
-- next
CREATE INDEX ix_payment_objects_tenant ON payment_objects (tenant)
-- next
CREATE TABLE payment_meter_hours (
	tenant VARCHAR(128) NOT NULL, 
	meter VARCHAR(100) NOT NULL, 
	hour_ns BIGINT NOT NULL, 
	sequence INTEGER NOT NULL, 
	currency VARCHAR(3) NOT NULL, 
	value BIGINT NOT NULL, 
	late VARCHAR(512), 
	CONSTRAINT pk_payment_meter_hours PRIMARY KEY (tenant, meter, hour_ns, sequence)
)
-- next
CREATE INDEX ix_payment_meter_hours_hour_ns ON payment_meter_hours (hour_ns)
-- next
CREATE TABLE payment_events (
	id VARCHAR(255) NOT NULL, 
	type VARCHAR(128) NOT NULL, 
	object_id VARCHAR(255), 
	received_at_ns BIGINT NOT NULL, 
	state VARCHAR(8) NOT NULL, 
	attempts INTEGER NOT NULL, 
	next_at_ns BIGINT NOT NULL, 
	note TEXT, 
	CONSTRAINT pk_payment_events PRIMARY KEY (id), 
	CONSTRAINT ck_payment_events_ck_payment_events_state CHECK (state IN ('waiting', 'done', 'ignored', 'dead'))
)
-- next
CREATE INDEX ix_payment_events_state_next_at_ns ON payment_events (state, next_at_ns)
-- next
CREATE TABLE payment_contacts (
	tenant VARCHAR(128) NOT NULL, 
	version INTEGER NOT NULL, 
	name VARCHAR(150) NOT NULL, 
	email VARCHAR(512), 
	changed_at_ns BIGINT NOT NULL, 
	changed_by VARCHAR(255) NOT NULL, 
	CONSTRAINT pk_payment_contacts PRIMARY KEY (tenant)
)
-- next
CREATE TABLE plans (
	id BIGINT NOT NULL, 
	tenant VARCHAR(128) NOT NULL, 
	version INTEGER NOT NULL, 
	valid_from VARCHAR(7) NOT NULL, 
	currency VARCHAR(3) NOT NULL, 
	terms TEXT NOT NULL, 
	changed_at_ns BIGINT NOT NULL, 
	changed_by VARCHAR(255) NOT NULL, 
	CONSTRAINT pk_plans PRIMARY KEY (id), 
	CONSTRAINT uq_plans_tenant_version UNIQUE (tenant, version)
)
-- next
CREATE TABLE parked_prices (
	id BIGINT NOT NULL, 
	currency VARCHAR(3) NOT NULL, 
	version INTEGER NOT NULL, 
	price_nano_per_gib_hour BIGINT NOT NULL, 
	valid_from_ns BIGINT NOT NULL, 
	changed_at_ns BIGINT NOT NULL, 
	changed_by VARCHAR(255) NOT NULL, 
	CONSTRAINT pk_parked_prices PRIMARY KEY (id), 
	CONSTRAINT uq_parked_prices_currency_version UNIQUE (currency, version), 
	CONSTRAINT ck_parked_prices_ck_parked_prices_price_not_below_zero CHECK (price_nano_per_gib_hour >= 0)
)
-- next
CREATE TABLE profiles (
	id BIGINT NOT NULL, 
	tenant VARCHAR(128) NOT NULL, 
	version INTEGER NOT NULL, 
	legal_name VARCHAR(150) NOT NULL, 
	address VARCHAR(500) NOT NULL, 
	tax_id VARCHAR(128) NOT NULL, 
	tax_label VARCHAR(128) NOT NULL, 
	tax_bps INTEGER NOT NULL, 
	currency VARCHAR(3), 
	email VARCHAR(500), 
	changed_at_ns BIGINT NOT NULL, 
	changed_by VARCHAR(255) NOT NULL, 
	CONSTRAINT pk_profiles PRIMARY KEY (id), 
	CONSTRAINT uq_profiles_tenant_version UNIQUE (tenant, version), 
	CONSTRAINT ck_profiles_ck_profiles_tax_bps CHECK (tax_bps >= 0 AND tax_bps <= 10000)
)
-- next
CREATE TABLE invoices (
	id BIGINT NOT NULL, 
	series VARCHAR(128) NOT NULL, 
	number INTEGER NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	tenant VARCHAR(128) NOT NULL, 
	period VARCHAR(7) NOT NULL, 
	currency VARCHAR(3) NOT NULL, 
	issued_at_ns BIGINT NOT NULL, 
	due_at_ns BIGINT NOT NULL, 
	net_minor BIGINT NOT NULL, 
	credit_minor BIGINT NOT NULL, 
	tax_minor BIGINT NOT NULL, 
	total_minor BIGINT NOT NULL, 
	profile TEXT NOT NULL, 
	issuer TEXT NOT NULL, 
	transaction_id BIGINT NOT NULL, 
	CONSTRAINT pk_invoices PRIMARY KEY (id), 
	CONSTRAINT uq_invoices_name UNIQUE (name), 
	CONSTRAINT uq_invoices_series_number UNIQUE (series, number), 
	CONSTRAINT uq_invoices_tenant_period_currency UNIQUE (tenant, period, currency), 
	CONSTRAINT ck_invoices_ck_invoices_total CHECK (total_minor >= 0 AND net_minor + credit_minor + tax_minor = total_minor), 
	CONSTRAINT fk_invoices_transaction_id FOREIGN KEY(transaction_id) REFERENCES transactions (id)
)
-- next
CREATE TABLE credit_grants (
	id BIGINT NOT NULL, 
	tenant VARCHAR(128) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	name VARCHAR(128) NOT NULL, 
	currency VARCHAR(3) NOT NULL, 
	amount_minor BIGINT NOT NULL, 
	priority INTEGER NOT NULL, 
	effective_at_ns BIGINT NOT NULL, 
	expires_at_ns BIGINT, 
	granted_at_ns BIGINT NOT NULL, 
	granted_by VARCHAR(255) NOT NULL, 
	transaction_id BIGINT NOT NULL, 
	CONSTRAINT pk_credit_grants PRIMARY KEY (id), 
	CONSTRAINT ck_credit_grants_ck_credit_grants_kind CHECK (kind IN ('prepaid', 'promotional')), 
	CONSTRAINT ck_credit_grants_ck_credit_grants_amount_above_zero CHECK (amount_minor > 0), 
	CONSTRAINT fk_credit_grants_transaction_id FOREIGN KEY(transaction_id) REFERENCES transactions (id)
)
-- next
CREATE INDEX ix_credit_grants_tenant_currency ON credit_grants (tenant, currency)
-- next
CREATE TABLE credit_moves (
	id BIGINT NOT NULL, 
	grant_id BIGINT NOT NULL, 
	kind VARCHAR(8) NOT NULL, 
	amount_minor BIGINT NOT NULL, 
	invoice_id BIGINT, 
	reason VARCHAR(500) NOT NULL, 
	moved_at_ns BIGINT NOT NULL, 
	moved_by VARCHAR(255) NOT NULL, 
	transaction_id BIGINT NOT NULL, 
	CONSTRAINT pk_credit_moves PRIMARY KEY (id), 
	CONSTRAINT ck_credit_moves_ck_credit_moves_kind CHECK (kind IN ('use', 'refund', 'expire')), 
	CONSTRAINT ck_credit_moves_ck_credit_moves_amount_above_zero CHECK (amount_minor > 0), 
	CONSTRAINT ck_credit_moves_ck_credit_moves_invoice_of_use CHECK ((kind = 'use') = (invoice_id IS NOT NULL)), 
	CONSTRAINT fk_credit_moves_grant_id FOREIGN KEY(grant_id) REFERENCES credit_grants (id), 
	CONSTRAINT fk_credit_moves_invoice_id FOREIGN KEY(invoice_id) REFERENCES invoices (id), 
	CONSTRAINT fk_credit_moves_transaction_id FOREIGN KEY(transaction_id) REFERENCES transactions (id)
)
-- next
CREATE INDEX ix_credit_moves_grant_id ON credit_moves (grant_id)
-- next
CREATE TABLE invoice_lines (
	invoice_id BIGINT NOT NULL, 
	position INTEGER NOT NULL, 
	"key" VARCHAR(32) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	label VARCHAR(500) NOT NULL, 
	milli BIGINT NOT NULL, 
	grains BIGINT NOT NULL, 
	amount_minor BIGINT NOT NULL, 
	started_at_ns BIGINT NOT NULL, 
	ended_at_ns BIGINT NOT NULL, 
	grant_id BIGINT, 
	user_name VARCHAR(128), 
	price_id BIGINT, 
	surcharge_nano_per_hour BIGINT, 
	late BOOLEAN, 
	leases INTEGER, 
	seconds BIGINT, 
	nanoseconds BIGINT, 
	CONSTRAINT pk_invoice_lines PRIMARY KEY (invoice_id, position), 
	CONSTRAINT uq_invoice_lines_invoice_id_key UNIQUE (invoice_id, "key"), 
	CONSTRAINT fk_invoice_lines_invoice_id FOREIGN KEY(invoice_id) REFERENCES invoices (id), 
	CONSTRAINT fk_invoice_lines_grant_id FOREIGN KEY(grant_id) REFERENCES credit_grants (id), 
	CONSTRAINT fk_invoice_lines_price_id FOREIGN KEY(price_id) REFERENCES prices (id)
)
 WITHOUT ROWID
-- next
CREATE TABLE credit_notes (
	id BIGINT NOT NULL, 
	series VARCHAR(128) NOT NULL, 
	number INTEGER NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	invoice_id BIGINT NOT NULL, 
	amount_minor BIGINT NOT NULL, 
	tax_minor BIGINT NOT NULL, 
	reason VARCHAR(500) NOT NULL, 
	issued_at_ns BIGINT NOT NULL, 
	issued_by VARCHAR(255) NOT NULL, 
	transaction_id BIGINT NOT NULL, 
	CONSTRAINT pk_credit_notes PRIMARY KEY (id), 
	CONSTRAINT uq_credit_notes_name UNIQUE (name), 
	CONSTRAINT uq_credit_notes_series_number UNIQUE (series, number), 
	CONSTRAINT ck_credit_notes_ck_credit_notes_amount_above_zero CHECK (amount_minor > 0), 
	CONSTRAINT fk_credit_notes_invoice_id FOREIGN KEY(invoice_id) REFERENCES invoices (id), 
	CONSTRAINT fk_credit_notes_transaction_id FOREIGN KEY(transaction_id) REFERENCES transactions (id)
)
-- next
CREATE INDEX ix_credit_notes_invoice_id ON credit_notes (invoice_id)
-- next
CREATE TABLE settlements (
	id BIGINT NOT NULL, 
	invoice_id BIGINT NOT NULL, 
	kind VARCHAR(8) NOT NULL, 
	amount_minor BIGINT NOT NULL, 
	method VARCHAR(128) NOT NULL, 
	reference VARCHAR(500) NOT NULL, 
	settled_at_ns BIGINT NOT NULL, 
	settled_by VARCHAR(255) NOT NULL, 
	transaction_id BIGINT NOT NULL, 
	CONSTRAINT pk_settlements PRIMARY KEY (id), 
	CONSTRAINT uq_settlements_invoice_id_kind_reference UNIQUE (invoice_id, kind, reference), 
	CONSTRAINT ck_settlements_ck_settlements_kind CHECK (kind IN ('payment', 'refund', 'void')), 
	CONSTRAINT ck_settlements_ck_settlements_amount_above_zero CHECK (amount_minor > 0), 
	CONSTRAINT fk_settlements_invoice_id FOREIGN KEY(invoice_id) REFERENCES invoices (id), 
	CONSTRAINT fk_settlements_transaction_id FOREIGN KEY(transaction_id) REFERENCES transactions (id)
)
-- next
CREATE TABLE budgets (
	id BIGINT NOT NULL, 
	tenant VARCHAR(128) NOT NULL, 
	user_name VARCHAR(128), 
	notebook VARCHAR(2048), 
	currency VARCHAR(3) NOT NULL, 
	time_window VARCHAR(8) NOT NULL, 
	origin VARCHAR(8) NOT NULL, 
	limit_milli BIGINT NOT NULL, 
	limit_grains BIGINT NOT NULL, 
	thresholds VARCHAR(64) NOT NULL, 
	on_limit VARCHAR(8) NOT NULL, 
	grace_seconds INTEGER NOT NULL, 
	set_at_ns BIGINT NOT NULL, 
	set_by VARCHAR(255) NOT NULL, 
	removed_at_ns BIGINT, 
	CONSTRAINT pk_budgets PRIMARY KEY (id), 
	CONSTRAINT ck_budgets_ck_budgets_time_window CHECK (time_window IN ('month', 'total')), 
	CONSTRAINT ck_budgets_ck_budgets_origin CHECK (origin IN ('operator', 'owner')), 
	CONSTRAINT ck_budgets_ck_budgets_on_limit CHECK (on_limit IN ('notify', 'refuse', 'drain')), 
	CONSTRAINT ck_budgets_ck_budgets_notebook_has_user CHECK (notebook IS NULL OR user_name IS NOT NULL)
)
-- next
CREATE INDEX ix_budgets_tenant ON budgets (tenant)
-- next
CREATE TABLE budget_spending (
	budget_id BIGINT NOT NULL, 
	period VARCHAR(7) NOT NULL, 
	day INTEGER NOT NULL, 
	milli BIGINT NOT NULL, 
	grains BIGINT NOT NULL, 
	CONSTRAINT pk_budget_spending PRIMARY KEY (budget_id, period, day), 
	CONSTRAINT fk_budget_spending_budget_id FOREIGN KEY(budget_id) REFERENCES budgets (id)
)
 WITHOUT ROWID
-- next
CREATE TABLE budget_marks (
	id INTEGER NOT NULL, 
	usage_id BIGINT NOT NULL, 
	transaction_id BIGINT NOT NULL, 
	CONSTRAINT pk_budget_marks PRIMARY KEY (id), 
	CONSTRAINT ck_budget_marks_ck_budget_marks_one_row CHECK (id = 1)
)
-- next
CREATE TABLE budget_alerts (
	id BIGINT NOT NULL, 
	budget_id BIGINT NOT NULL, 
	period VARCHAR(7) NOT NULL, 
	threshold INTEGER NOT NULL, 
	limit_milli BIGINT NOT NULL, 
	limit_grains BIGINT NOT NULL, 
	used_milli BIGINT NOT NULL, 
	used_grains BIGINT NOT NULL, 
	at_ns BIGINT NOT NULL, 
	CONSTRAINT pk_budget_alerts PRIMARY KEY (id), 
	CONSTRAINT fk_budget_alerts_budget_id FOREIGN KEY(budget_id) REFERENCES budgets (id), 
	CONSTRAINT uq_budget_alerts_once UNIQUE (budget_id, period, threshold, limit_milli, limit_grains)
)
-- next
CREATE TABLE alert_deliveries (
	alert_id BIGINT NOT NULL, 
	channel_id BIGINT NOT NULL, 
	state VARCHAR(8) NOT NULL, 
	attempts INTEGER NOT NULL, 
	created_at_ns BIGINT NOT NULL, 
	next_at_ns BIGINT NOT NULL, 
	settled_at_ns BIGINT, 
	note TEXT, 
	CONSTRAINT pk_alert_deliveries PRIMARY KEY (alert_id, channel_id), 
	CONSTRAINT fk_alert_deliveries_alert_id FOREIGN KEY(alert_id) REFERENCES budget_alerts (id), 
	CONSTRAINT fk_alert_deliveries_channel_id FOREIGN KEY(channel_id) REFERENCES alert_channels (id), 
	CONSTRAINT ck_alert_deliveries_ck_alert_deliveries_state CHECK (state IN ('waiting', 'done', 'dead'))
)
-- next
CREATE INDEX ix_alert_deliveries_state_next_at_ns ON alert_deliveries (state, next_at_ns)
-- next
CREATE TABLE payment_marks (
	name VARCHAR(32) NOT NULL, 
	value BIGINT NOT NULL, 
	CONSTRAINT pk_payment_marks PRIMARY KEY (name)
)
-- next
CREATE TABLE surcharges (
	id BIGINT NOT NULL, 
	model VARCHAR(128) NOT NULL, 
	currency VARCHAR(3) NOT NULL, 
	version INTEGER NOT NULL, 
	surcharge_nano_per_hour BIGINT NOT NULL, 
	valid_from_ns BIGINT NOT NULL, 
	changed_at_ns BIGINT NOT NULL, 
	changed_by VARCHAR(255) NOT NULL, 
	CONSTRAINT pk_surcharges PRIMARY KEY (id), 
	CONSTRAINT uq_surcharges_model_currency_version UNIQUE (model, currency, version), 
	CONSTRAINT ck_surcharges_ck_surcharges_surcharge_not_below_zero CHECK (surcharge_nano_per_hour >= 0)
)
-- next
CREATE TABLE rated (
	flavor VARCHAR(256) NOT NULL, 
	currency VARCHAR(3) NOT NULL, 
	until_ns BIGINT NOT NULL, 
	CONSTRAINT pk_rated PRIMARY KEY (flavor, currency)
)
 WITHOUT ROWID
-- next
CREATE TABLE usage (
	id BIGINT NOT NULL, 
	source VARCHAR(128) NOT NULL, 
	record_id VARCHAR(128) NOT NULL, 
	tenant VARCHAR(128) NOT NULL, 
	user_name VARCHAR(128) NOT NULL, 
	session VARCHAR(128) NOT NULL, 
	lease VARCHAR(128) NOT NULL, 
	span_id VARCHAR(128) NOT NULL, 
	span_kind VARCHAR(16) NOT NULL, 
	span_label VARCHAR(2048) NOT NULL, 
	span_cell BIGINT, 
	flavor VARCHAR(128) NOT NULL, 
	device_model VARCHAR(128) NOT NULL, 
	devices INTEGER NOT NULL, 
	share_milli INTEGER NOT NULL, 
	started_at_ns BIGINT NOT NULL, 
	duration_ns BIGINT NOT NULL, 
	close_reason VARCHAR(128) NOT NULL, 
	received_at_ns BIGINT NOT NULL, 
	parked_bytes BIGINT, span_cell_id VARCHAR(128), span_first_line VARCHAR(80), energy_mj BIGINT, 
	CONSTRAINT pk_usage PRIMARY KEY (id), 
	CONSTRAINT uq_usage_source_record_id UNIQUE (source, record_id), 
	CONSTRAINT ck_usage_ck_usage_duration_not_below_zero CHECK (duration_ns >= 0), 
	CONSTRAINT ck_usage_ck_usage_devices_and_share CHECK (devices >= 1 AND share_milli >= 1 AND share_milli <= 1000)
)
 WITHOUT ROWID
-- next
CREATE INDEX ix_usage_started_at_ns ON usage (started_at_ns)
-- next
CREATE INDEX ix_usage_tenant_started_at_ns ON usage (tenant, started_at_ns)
-- next
CREATE INDEX ix_usage_tenant_user_name_started_at_ns ON usage (tenant, user_name, started_at_ns)
-- next
CREATE TABLE report_recipients (
	id BIGINT NOT NULL, 
	tenant VARCHAR(128) NOT NULL, 
	target VARCHAR(1024) NOT NULL, 
	set_at_ns BIGINT NOT NULL, 
	set_by VARCHAR(255) NOT NULL, 
	removed_at_ns BIGINT, 
	CONSTRAINT pk_report_recipients PRIMARY KEY (id)
)
-- next
CREATE INDEX ix_report_recipients_tenant ON report_recipients (tenant)
-- next
CREATE TABLE report_mailings (
	recipient_id BIGINT NOT NULL, 
	month VARCHAR(7) NOT NULL, 
	state VARCHAR(8) NOT NULL, 
	attempts INTEGER NOT NULL, 
	created_at_ns BIGINT NOT NULL, 
	next_at_ns BIGINT NOT NULL, 
	settled_at_ns BIGINT, 
	note TEXT, 
	CONSTRAINT pk_report_mailings PRIMARY KEY (recipient_id, month), 
	CONSTRAINT fk_report_mailings_recipient_id FOREIGN KEY(recipient_id) REFERENCES report_recipients (id), 
	CONSTRAINT ck_report_mailings_ck_report_mailings_state CHECK (state IN ('waiting', 'done', 'dead'))
)
-- next
CREATE INDEX ix_report_mailings_state_next_at_ns ON report_mailings (state, next_at_ns)
-- next
CREATE TABLE postings (
	transaction_id BIGINT NOT NULL, 
	account_id INTEGER NOT NULL, 
	period VARCHAR(7) NOT NULL, 
	currency VARCHAR(3) NOT NULL, 
	milli BIGINT NOT NULL, 
	grains BIGINT NOT NULL, 
	CONSTRAINT pk_postings PRIMARY KEY (transaction_id, account_id, period, currency), 
	CONSTRAINT fk_postings_account_id FOREIGN KEY(account_id) REFERENCES accounts (id), 
	CONSTRAINT fk_postings_transaction_id FOREIGN KEY(transaction_id) REFERENCES transactions (id), 
	CONSTRAINT ck_postings_ck_postings_grains_below_a_milli CHECK (grains > -3600000000000000000 AND grains < 3600000000000000000)
)
 WITHOUT ROWID
-- next
CREATE INDEX ix_postings_account_id_period ON postings (account_id, period)
-- next
CREATE TABLE segments (
	usage_id BIGINT NOT NULL, 
	position INTEGER NOT NULL, 
	transaction_id BIGINT NOT NULL, 
	account_id INTEGER NOT NULL, 
	period VARCHAR(7) NOT NULL, 
	price_id BIGINT NOT NULL, 
	surcharge_nano_per_hour BIGINT NOT NULL, 
	started_at_ns BIGINT NOT NULL, 
	duration_ns BIGINT NOT NULL, 
	milli BIGINT NOT NULL, 
	grains BIGINT NOT NULL, 
	late BOOLEAN NOT NULL, 
	reversal BOOLEAN NOT NULL, 
	CONSTRAINT pk_segments PRIMARY KEY (usage_id, position), 
	CONSTRAINT fk_segments_usage_id FOREIGN KEY(usage_id) REFERENCES usage (id), 
	CONSTRAINT fk_segments_transaction_id FOREIGN KEY(transaction_id) REFERENCES transactions (id), 
	CONSTRAINT fk_segments_account_id FOREIGN KEY(account_id) REFERENCES accounts (id), 
	CONSTRAINT fk_segments_price_id FOREIGN KEY(price_id) REFERENCES prices (id), 
	CONSTRAINT ck_segments_ck_segments_grains_below_a_milli CHECK (grains > -3600000000000000000 AND grains < 3600000000000000000)
)
 WITHOUT ROWID
-- next
CREATE INDEX ix_segments_account_id_period ON segments (account_id, period)
-- next
CREATE TABLE parked_segments (
	usage_id BIGINT NOT NULL, 
	position INTEGER NOT NULL, 
	transaction_id BIGINT NOT NULL, 
	account_id INTEGER NOT NULL, 
	period VARCHAR(7) NOT NULL, 
	currency VARCHAR(3) NOT NULL, 
	parked_price_id BIGINT, 
	started_at_ns BIGINT NOT NULL, 
	duration_ns BIGINT NOT NULL, 
	milli BIGINT NOT NULL, 
	grains BIGINT NOT NULL, 
	late BOOLEAN NOT NULL, 
	reversal BOOLEAN NOT NULL, 
	CONSTRAINT pk_parked_segments PRIMARY KEY (usage_id, position), 
	CONSTRAINT fk_parked_segments_usage_id FOREIGN KEY(usage_id) REFERENCES usage (id), 
	CONSTRAINT fk_parked_segments_transaction_id FOREIGN KEY(transaction_id) REFERENCES transactions (id), 
	CONSTRAINT fk_parked_segments_account_id FOREIGN KEY(account_id) REFERENCES accounts (id), 
	CONSTRAINT fk_parked_segments_parked_price_id FOREIGN KEY(parked_price_id) REFERENCES parked_prices (id), 
	CONSTRAINT ck_parked_segments_ck_parked_segments_grains_below_a_milli CHECK (grains > -3600000000000000000 AND grains < 3600000000000000000)
)
 WITHOUT ROWID
-- next
CREATE INDEX ix_parked_segments_account_id_period ON parked_segments (account_id, period)
-- next
CREATE TABLE holds (
	id BIGINT NOT NULL, 
	source VARCHAR(128) NOT NULL, 
	record_id VARCHAR(128) NOT NULL, 
	account_id INTEGER NOT NULL, 
	tenant VARCHAR(128) NOT NULL, 
	user_name VARCHAR(128) NOT NULL, 
	span_label VARCHAR(2048) NOT NULL, 
	currency VARCHAR(3) NOT NULL, 
	period VARCHAR(7) NOT NULL, 
	covered_ns BIGINT NOT NULL, 
	milli BIGINT NOT NULL, 
	grains BIGINT NOT NULL, 
	opened_at_ns BIGINT NOT NULL, 
	expires_at_ns BIGINT NOT NULL, 
	closed_by BIGINT, 
	CONSTRAINT pk_holds PRIMARY KEY (id), 
	CONSTRAINT fk_holds_account_id FOREIGN KEY(account_id) REFERENCES accounts (id), 
	CONSTRAINT fk_holds_closed_by FOREIGN KEY(closed_by) REFERENCES transactions (id), 
	CONSTRAINT ck_holds_ck_holds_grains_below_a_milli CHECK (grains > -3600000000000000000 AND grains < 3600000000000000000)
)
-- next
CREATE UNIQUE INDEX uq_holds_open ON holds (source, record_id) WHERE closed_by IS NULL
-- next
CREATE INDEX ix_holds_open_expires_at_ns ON holds (expires_at_ns) WHERE closed_by IS NULL
-- next
CREATE INDEX ix_holds_closed_by ON holds (closed_by)
-- next
CREATE INDEX ix_holds_account_id ON holds (account_id)
-- next
CREATE TABLE notice_channels (
	id BIGINT NOT NULL, 
	tenant VARCHAR(128) NOT NULL, 
	user_name VARCHAR(128) NOT NULL, 
	kind VARCHAR(8) NOT NULL, 
	target VARCHAR(1024) NOT NULL, 
	secret VARCHAR(128), 
	code_digest VARCHAR(64), 
	code_tries INTEGER NOT NULL, 
	confirmed_at_ns BIGINT, 
	set_at_ns BIGINT NOT NULL, 
	removed_at_ns BIGINT, 
	CONSTRAINT pk_notice_channels PRIMARY KEY (id), 
	CONSTRAINT ck_notice_channels_ck_notice_channels_kind CHECK (kind IN ('email', 'webhook', 'slack'))
)
-- next
CREATE INDEX ix_notice_channels_tenant_user_name ON notice_channels (tenant, user_name)
-- next
CREATE TABLE revenue_hours (
	hour_ns BIGINT NOT NULL, 
	currency VARCHAR(3) NOT NULL, 
	milli BIGINT NOT NULL, 
	grains BIGINT NOT NULL, 
	through_id BIGINT NOT NULL, 
	CONSTRAINT pk_revenue_hours PRIMARY KEY (hour_ns, currency), 
	CONSTRAINT ck_revenue_hours_ck_revenue_hours_grains_below_a_milli CHECK (grains > -3600000000000000000 AND grains < 3600000000000000000)
)
 WITHOUT ROWID
-- next
CREATE TABLE usage_hours (
	start_ns BIGINT NOT NULL, 
	tenant VARCHAR(128) NOT NULL, 
	priced VARCHAR(128) NOT NULL, 
	currency VARCHAR(3) NOT NULL, 
	pieces BIGINT NOT NULL, 
	leases BIGINT NOT NULL, 
	duration_ns BIGINT NOT NULL, 
	milli BIGINT NOT NULL, 
	grains BIGINT NOT NULL, 
	told BIGINT NOT NULL, 
	energy_mj BIGINT NOT NULL, 
	energy_duration_ns BIGINT NOT NULL, 
	CONSTRAINT pk_usage_hours PRIMARY KEY (start_ns, tenant, priced, currency)
)
 WITHOUT ROWID
-- next
CREATE TABLE usage_days (
	start_ns BIGINT NOT NULL, 
	tenant VARCHAR(128) NOT NULL, 
	day INTEGER NOT NULL, 
	priced VARCHAR(128) NOT NULL, 
	currency VARCHAR(3) NOT NULL, 
	pieces BIGINT NOT NULL, 
	leases BIGINT NOT NULL, 
	duration_ns BIGINT NOT NULL, 
	milli BIGINT NOT NULL, 
	grains BIGINT NOT NULL, 
	told BIGINT NOT NULL, 
	energy_mj BIGINT NOT NULL, 
	energy_duration_ns BIGINT NOT NULL, 
	CONSTRAINT pk_usage_days PRIMARY KEY (start_ns, tenant, day, priced, currency)
)
 WITHOUT ROWID
-- next
CREATE TABLE usage_months (
	start_ns BIGINT NOT NULL, 
	tenant VARCHAR(128) NOT NULL, 
	user_name VARCHAR(128) NOT NULL, 
	priced VARCHAR(128) NOT NULL, 
	currency VARCHAR(3) NOT NULL, 
	pieces BIGINT NOT NULL, 
	leases BIGINT NOT NULL, 
	duration_ns BIGINT NOT NULL, 
	milli BIGINT NOT NULL, 
	grains BIGINT NOT NULL, 
	told BIGINT NOT NULL, 
	energy_mj BIGINT NOT NULL, 
	energy_duration_ns BIGINT NOT NULL, 
	CONSTRAINT pk_usage_months PRIMARY KEY (start_ns, tenant, user_name, priced, currency)
)
 WITHOUT ROWID
-- next
CREATE INDEX ix_usage_days_tenant_currency_start_ns ON usage_days (tenant, currency, start_ns)
-- next
CREATE INDEX ix_usage_months_tenant_user_name_start_ns ON usage_months (tenant, user_name, start_ns)
-- next
CREATE TABLE usage_marks (
	id INTEGER NOT NULL, 
	usage_id BIGINT NOT NULL, 
	transaction_id BIGINT NOT NULL, 
	CONSTRAINT pk_usage_marks PRIMARY KEY (id), 
	CONSTRAINT ck_usage_marks_ck_usage_marks_one_row CHECK (id = 1)
)
-- next
CREATE TABLE preferences (
	user_name VARCHAR(128) NOT NULL, 
	language VARCHAR(16), 
	jobs VARCHAR(8), 
	set_at_ns BIGINT NOT NULL, 
	CONSTRAINT pk_preferences PRIMARY KEY (user_name), 
	CONSTRAINT ck_preferences_ck_preferences_jobs CHECK (jobs IN ('none', 'failures', 'all'))
)
-- next
CREATE TABLE notices (
	id BIGINT NOT NULL, 
	tenant VARCHAR(128) NOT NULL, 
	user_name VARCHAR(128) NOT NULL, 
	kind VARCHAR(8) NOT NULL, 
	label VARCHAR(2048) NOT NULL, 
	cell INTEGER, 
	first_line VARCHAR(300), 
	seconds FLOAT NOT NULL, 
	why VARCHAR(300), 
	at_ns BIGINT NOT NULL, 
	job BIGINT, 
	cause TEXT, 
	"key" VARCHAR(128), 
	CONSTRAINT pk_notices PRIMARY KEY (id), 
	CONSTRAINT ck_notices_ck_notices_kind CHECK (kind IN ('ended', 'failed', 'waits', 'budget', 'retried'))
)
-- next
CREATE INDEX ix_notices_tenant_user_name_at_ns ON notices (tenant, user_name, at_ns)
-- next
CREATE UNIQUE INDEX uq_notices_key ON notices ("key")
-- next
CREATE TABLE notice_deliveries (
	notice_id BIGINT NOT NULL, 
	channel_id BIGINT NOT NULL, 
	state VARCHAR(8) NOT NULL, 
	attempts INTEGER NOT NULL, 
	created_at_ns BIGINT NOT NULL, 
	next_at_ns BIGINT NOT NULL, 
	settled_at_ns BIGINT, 
	note TEXT, 
	CONSTRAINT pk_notice_deliveries PRIMARY KEY (notice_id, channel_id), 
	CONSTRAINT fk_notice_deliveries_notice_id FOREIGN KEY(notice_id) REFERENCES notices (id), 
	CONSTRAINT fk_notice_deliveries_channel_id FOREIGN KEY(channel_id) REFERENCES notice_channels (id), 
	CONSTRAINT ck_notice_deliveries_ck_notice_deliveries_state CHECK (state IN ('waiting', 'done', 'dead'))
)
-- next
CREATE INDEX ix_notice_deliveries_state_next_at_ns ON notice_deliveries (state, next_at_ns)
-- next
CREATE TABLE alert_channels (
	id BIGINT NOT NULL, 
	tenant VARCHAR(128), 
	kind VARCHAR(8) NOT NULL, 
	target VARCHAR(1024) NOT NULL, 
	secret VARCHAR(128), 
	set_at_ns BIGINT NOT NULL, 
	set_by VARCHAR(255) NOT NULL, 
	removed_at_ns BIGINT, 
	CONSTRAINT pk_alert_channels PRIMARY KEY (id), 
	CONSTRAINT ck_alert_channels_ck_alert_channels_kind CHECK (kind IN ('webhook', 'email', 'slack'))
)
-- next
CREATE INDEX ix_alert_channels_tenant ON alert_channels (tenant)
-- next
CREATE TABLE usage_all_hours (
	start_ns BIGINT NOT NULL, 
	pieces BIGINT NOT NULL, 
	duration_ns BIGINT NOT NULL, 
	told BIGINT NOT NULL, 
	energy_mj BIGINT NOT NULL, 
	energy_duration_ns BIGINT NOT NULL, 
	CONSTRAINT pk_usage_all_hours PRIMARY KEY (start_ns)
)
-- next
CREATE INDEX ix_usage_parked_of_tenant ON usage (tenant, started_at_ns) WHERE parked_bytes IS NOT NULL
-- next
CREATE INDEX ix_usage_parked_of_user ON usage (tenant, user_name, started_at_ns) WHERE parked_bytes IS NOT NULL
-- next
CREATE TABLE usage_people (
	tenant VARCHAR(128) NOT NULL, 
	user_name VARCHAR(128) NOT NULL, 
	start_ns BIGINT NOT NULL, 
	CONSTRAINT pk_usage_people PRIMARY KEY (tenant, user_name)
)
 WITHOUT ROWID
-- next
INSERT INTO "budget_marks" VALUES(1,0,0)
-- next
INSERT INTO "usage_marks" VALUES(1,0,0)
-- next
CREATE TRIGGER accounts_refuse_update BEFORE UPDATE ON accounts BEGIN SELECT RAISE(ABORT, 'accounts is append-only: post a correction instead'); END
-- next
CREATE TRIGGER accounts_refuse_delete BEFORE DELETE ON accounts BEGIN SELECT RAISE(ABORT, 'accounts is append-only: post a correction instead'); END
-- next
CREATE TRIGGER audit_refuse_update BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, 'audit is append-only: post a correction instead'); END
-- next
CREATE TRIGGER audit_refuse_delete BEFORE DELETE ON audit BEGIN SELECT RAISE(ABORT, 'audit is append-only: post a correction instead'); END
-- next
CREATE TRIGGER transactions_refuse_update BEFORE UPDATE ON transactions BEGIN SELECT RAISE(ABORT, 'transactions is append-only: post a correction instead'); END
-- next
CREATE TRIGGER transactions_refuse_delete BEFORE DELETE ON transactions BEGIN SELECT RAISE(ABORT, 'transactions is append-only: post a correction instead'); END
-- next
CREATE TRIGGER seals_refuse_update BEFORE UPDATE ON seals BEGIN SELECT RAISE(ABORT, 'seals is append-only: post a correction instead'); END
-- next
CREATE TRIGGER seals_refuse_delete BEFORE DELETE ON seals BEGIN SELECT RAISE(ABORT, 'seals is append-only: post a correction instead'); END
-- next
CREATE TRIGGER reversals_refuse_update BEFORE UPDATE ON reversals BEGIN SELECT RAISE(ABORT, 'reversals is append-only: post a correction instead'); END
-- next
CREATE TRIGGER reversals_refuse_delete BEFORE DELETE ON reversals BEGIN SELECT RAISE(ABORT, 'reversals is append-only: post a correction instead'); END
-- next
CREATE TRIGGER periods_refuse_update BEFORE UPDATE ON periods BEGIN SELECT RAISE(ABORT, 'periods is append-only: post a correction instead'); END
-- next
CREATE TRIGGER periods_refuse_delete BEFORE DELETE ON periods BEGIN SELECT RAISE(ABORT, 'periods is append-only: post a correction instead'); END
-- next
CREATE TRIGGER idempotency_refuse_update BEFORE UPDATE ON idempotency BEGIN SELECT RAISE(ABORT, 'idempotency is append-only: post a correction instead'); END
-- next
CREATE TRIGGER idempotency_refuse_delete BEFORE DELETE ON idempotency BEGIN SELECT RAISE(ABORT, 'idempotency is append-only: post a correction instead'); END
-- next
CREATE TRIGGER plans_refuse_update BEFORE UPDATE ON plans BEGIN SELECT RAISE(ABORT, 'plans is append-only: add a version instead'); END
-- next
CREATE TRIGGER plans_refuse_delete BEFORE DELETE ON plans BEGIN SELECT RAISE(ABORT, 'plans is append-only: add a version instead'); END
-- next
CREATE TRIGGER parked_prices_refuse_update BEFORE UPDATE ON parked_prices BEGIN SELECT RAISE(ABORT, 'parked_prices is append-only: add a version instead'); END
-- next
CREATE TRIGGER parked_prices_refuse_delete BEFORE DELETE ON parked_prices BEGIN SELECT RAISE(ABORT, 'parked_prices is append-only: add a version instead'); END
-- next
CREATE TRIGGER profiles_refuse_update BEFORE UPDATE ON profiles BEGIN SELECT RAISE(ABORT, 'profiles is append-only: post a correction instead'); END
-- next
CREATE TRIGGER profiles_refuse_delete BEFORE DELETE ON profiles BEGIN SELECT RAISE(ABORT, 'profiles is append-only: post a correction instead'); END
-- next
CREATE TRIGGER invoices_refuse_update BEFORE UPDATE ON invoices BEGIN SELECT RAISE(ABORT, 'invoices is append-only: post a correction instead'); END
-- next
CREATE TRIGGER invoices_refuse_delete BEFORE DELETE ON invoices BEGIN SELECT RAISE(ABORT, 'invoices is append-only: post a correction instead'); END
-- next
CREATE TRIGGER credit_grants_refuse_update BEFORE UPDATE ON credit_grants BEGIN SELECT RAISE(ABORT, 'credit_grants is append-only: post a correction instead'); END
-- next
CREATE TRIGGER credit_grants_refuse_delete BEFORE DELETE ON credit_grants BEGIN SELECT RAISE(ABORT, 'credit_grants is append-only: post a correction instead'); END
-- next
CREATE TRIGGER credit_moves_refuse_update BEFORE UPDATE ON credit_moves BEGIN SELECT RAISE(ABORT, 'credit_moves is append-only: post a correction instead'); END
-- next
CREATE TRIGGER credit_moves_refuse_delete BEFORE DELETE ON credit_moves BEGIN SELECT RAISE(ABORT, 'credit_moves is append-only: post a correction instead'); END
-- next
CREATE TRIGGER credit_notes_refuse_update BEFORE UPDATE ON credit_notes BEGIN SELECT RAISE(ABORT, 'credit_notes is append-only: post a correction instead'); END
-- next
CREATE TRIGGER credit_notes_refuse_delete BEFORE DELETE ON credit_notes BEGIN SELECT RAISE(ABORT, 'credit_notes is append-only: post a correction instead'); END
-- next
CREATE TRIGGER settlements_refuse_update BEFORE UPDATE ON settlements BEGIN SELECT RAISE(ABORT, 'settlements is append-only: post a correction instead'); END
-- next
CREATE TRIGGER settlements_refuse_delete BEFORE DELETE ON settlements BEGIN SELECT RAISE(ABORT, 'settlements is append-only: post a correction instead'); END
-- next
CREATE TRIGGER invoices_refuse_gap BEFORE INSERT ON invoices WHEN NEW.number <> 1 + (SELECT COALESCE(MAX(number), 0) FROM invoices WHERE series = NEW.series) BEGIN SELECT RAISE(ABORT, 'the number would leave a gap in its series'); END
-- next
CREATE TRIGGER credit_notes_refuse_gap BEFORE INSERT ON credit_notes WHEN NEW.number <> 1 + (SELECT COALESCE(MAX(number), 0) FROM credit_notes WHERE series = NEW.series) BEGIN SELECT RAISE(ABORT, 'the number would leave a gap in its series'); END
-- next
CREATE TRIGGER credit_notes_refuse_excess BEFORE INSERT ON credit_notes WHEN NEW.amount_minor + (SELECT COALESCE(SUM(amount_minor), 0) FROM credit_notes WHERE invoice_id = NEW.invoice_id) > (SELECT total_minor FROM invoices WHERE id = NEW.invoice_id) BEGIN SELECT RAISE(ABORT, 'more would be taken back than was asked for'); END
-- next
CREATE TRIGGER credit_moves_refuse_excess BEFORE INSERT ON credit_moves WHEN NEW.amount_minor + (SELECT COALESCE(SUM(amount_minor), 0) FROM credit_moves WHERE grant_id = NEW.grant_id) > (SELECT amount_minor FROM credit_grants WHERE id = NEW.grant_id) BEGIN SELECT RAISE(ABORT, 'more credit would be used than was granted'); END
-- next
CREATE TRIGGER usage_refuse_update BEFORE UPDATE ON usage BEGIN SELECT RAISE(ABORT, 'usage is append-only: post a correction instead'); END
-- next
CREATE TRIGGER usage_refuse_delete BEFORE DELETE ON usage BEGIN SELECT RAISE(ABORT, 'usage is append-only: post a correction instead'); END
-- next
CREATE TRIGGER postings_refuse_update BEFORE UPDATE ON postings BEGIN SELECT RAISE(ABORT, 'postings is append-only: post a correction instead'); END
-- next
CREATE TRIGGER postings_refuse_delete BEFORE DELETE ON postings BEGIN SELECT RAISE(ABORT, 'postings is append-only: post a correction instead'); END
-- next
CREATE TRIGGER postings_refuse_after_seal BEFORE INSERT ON postings WHEN EXISTS (SELECT 1 FROM seals WHERE transaction_id = NEW.transaction_id) BEGIN SELECT RAISE(ABORT, 'the transaction is sealed: nothing can be added to it'); END
-- next
CREATE TRIGGER segments_refuse_update BEFORE UPDATE ON segments BEGIN SELECT RAISE(ABORT, 'segments is append-only: post a correction instead'); END
-- next
CREATE TRIGGER segments_refuse_delete BEFORE DELETE ON segments BEGIN SELECT RAISE(ABORT, 'segments is append-only: post a correction instead'); END
-- next
CREATE TRIGGER parked_segments_refuse_update BEFORE UPDATE ON parked_segments BEGIN SELECT RAISE(ABORT, 'parked_segments is append-only: add a reversal instead'); END
-- next
CREATE TRIGGER parked_segments_refuse_delete BEFORE DELETE ON parked_segments BEGIN SELECT RAISE(ABORT, 'parked_segments is append-only: add a reversal instead'); END
-- next
CREATE TRIGGER holds_refuse_delete BEFORE DELETE ON holds BEGIN SELECT RAISE(ABORT, 'holds are append-only: what has ended stays as it was'); END
-- next
CREATE TRIGGER holds_refuse_reopen BEFORE UPDATE ON holds WHEN OLD.closed_by IS NOT NULL BEGIN SELECT RAISE(ABORT, 'holds are append-only: what has ended stays as it was'); END
-- next
CREATE TRIGGER prices_refuse_update BEFORE UPDATE ON prices BEGIN SELECT RAISE(ABORT, 'prices is append-only: post a correction instead'); END
-- next
CREATE TRIGGER prices_refuse_delete BEFORE DELETE ON prices BEGIN SELECT RAISE(ABORT, 'prices is append-only: post a correction instead'); END
-- next
CREATE TRIGGER surcharges_refuse_update BEFORE UPDATE ON surcharges BEGIN SELECT RAISE(ABORT, 'surcharges is append-only: add a version instead'); END
-- next
CREATE TRIGGER surcharges_refuse_delete BEFORE DELETE ON surcharges BEGIN SELECT RAISE(ABORT, 'surcharges is append-only: add a version instead'); END
-- next
CREATE TRIGGER invoice_lines_refuse_update BEFORE UPDATE ON invoice_lines BEGIN SELECT RAISE(ABORT, 'invoice_lines is append-only: post a correction instead'); END
-- next
CREATE TRIGGER invoice_lines_refuse_delete BEFORE DELETE ON invoice_lines BEGIN SELECT RAISE(ABORT, 'invoice_lines is append-only: post a correction instead'); END
-- next
CREATE TRIGGER seals_refuse_unbalanced BEFORE INSERT ON seals WHEN EXISTS (
SELECT 1 FROM (
    SELECT currency, SUM(milli) AS milli, SUM(grains / 1000000000) AS billions, SUM(grains % 1000000000) AS rest FROM postings
    WHERE transaction_id = NEW.transaction_id GROUP BY currency
) AS sums
WHERE rest % 1000000000 <> 0 OR (billions + rest / 1000000000) % 3600000000 <> 0
OR milli + (billions + rest / 1000000000) / 3600000000 <> 0
) OR (SELECT COUNT(*) FROM postings WHERE transaction_id = NEW.transaction_id) < 2 BEGIN SELECT RAISE(ABORT, 'the transaction does not sum to zero in every currency'); END
-- next
CREATE TRIGGER seals_project_balances AFTER INSERT ON seals BEGIN 
INSERT INTO balances (account_id, period, currency, milli, grains)
SELECT account_id, period, currency, milli, grains FROM postings WHERE transaction_id = NEW.transaction_id
ON CONFLICT (account_id, period, currency) DO UPDATE SET
    milli = balances.milli + excluded.milli + (balances.grains + excluded.grains) / 3600000000000000000,
    grains = (balances.grains + excluded.grains) % 3600000000000000000;
 END
