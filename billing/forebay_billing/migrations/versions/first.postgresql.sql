CREATE FUNCTION forebay_credit_moves_refuse_excess() RETURNS trigger
    LANGUAGE plpgsql
    AS $$ BEGIN IF NEW.amount_minor + (SELECT COALESCE(SUM(amount_minor), 0) FROM credit_moves WHERE grant_id = NEW.grant_id) > (SELECT amount_minor FROM credit_grants WHERE id = NEW.grant_id) THEN RAISE EXCEPTION 'more credit would be used than was granted'; END IF; RETURN NEW; END $$
-- next
CREATE FUNCTION forebay_credit_notes_refuse_excess() RETURNS trigger
    LANGUAGE plpgsql
    AS $$ BEGIN IF NEW.amount_minor + (SELECT COALESCE(SUM(amount_minor), 0) FROM credit_notes WHERE invoice_id = NEW.invoice_id) > (SELECT total_minor FROM invoices WHERE id = NEW.invoice_id) THEN RAISE EXCEPTION 'more would be taken back than was asked for'; END IF; RETURN NEW; END $$
-- next
CREATE FUNCTION forebay_credit_notes_refuse_gap() RETURNS trigger
    LANGUAGE plpgsql
    AS $$ BEGIN IF NEW.number <> 1 + (SELECT COALESCE(MAX(number), 0) FROM credit_notes WHERE series = NEW.series) THEN RAISE EXCEPTION 'the number would leave a gap in its series'; END IF; RETURN NEW; END $$
-- next
CREATE FUNCTION forebay_invoices_refuse_gap() RETURNS trigger
    LANGUAGE plpgsql
    AS $$ BEGIN IF NEW.number <> 1 + (SELECT COALESCE(MAX(number), 0) FROM invoices WHERE series = NEW.series) THEN RAISE EXCEPTION 'the number would leave a gap in its series'; END IF; RETURN NEW; END $$
-- next
CREATE FUNCTION forebay_project_balances() RETURNS trigger
    LANGUAGE plpgsql
    AS $$ BEGIN 
INSERT INTO balances (account_id, period, currency, milli, grains)
SELECT account_id, period, currency, milli, grains FROM postings WHERE transaction_id = NEW.transaction_id
ON CONFLICT (account_id, period, currency) DO UPDATE SET
    milli = balances.milli + excluded.milli + (balances.grains + excluded.grains) / 3600000000000000000,
    grains = (balances.grains + excluded.grains) % 3600000000000000000;
 RETURN NEW; END $$
-- next
CREATE FUNCTION forebay_refuse_after_seal() RETURNS trigger
    LANGUAGE plpgsql
    AS $$ BEGIN IF EXISTS (SELECT 1 FROM seals WHERE transaction_id = NEW.transaction_id) THEN RAISE EXCEPTION 'the transaction is sealed: nothing can be added to it'; END IF; RETURN NEW; END $$
-- next
CREATE FUNCTION forebay_refuse_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$ BEGIN RAISE EXCEPTION '% is append-only: post a correction instead', TG_TABLE_NAME; END $$
-- next
CREATE FUNCTION forebay_refuse_orphaned_parked_segments() RETURNS trigger
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    AS $$ BEGIN IF EXISTS (SELECT 1 FROM (SELECT DISTINCT usage_id AS value FROM fresh WHERE usage_id IS NOT NULL) AS given WHERE (SELECT 1 FROM usage WHERE id = value) IS NULL) THEN RAISE EXCEPTION 'a row of parked_segments points to a row of usage that does not exist'; END IF; IF EXISTS (SELECT 1 FROM (SELECT DISTINCT transaction_id AS value FROM fresh WHERE transaction_id IS NOT NULL) AS given WHERE (SELECT 1 FROM transactions WHERE id = value) IS NULL) THEN RAISE EXCEPTION 'a row of parked_segments points to a row of transactions that does not exist'; END IF; IF EXISTS (SELECT 1 FROM (SELECT DISTINCT account_id AS value FROM fresh WHERE account_id IS NOT NULL) AS given WHERE (SELECT 1 FROM accounts WHERE id = value) IS NULL) THEN RAISE EXCEPTION 'a row of parked_segments points to a row of accounts that does not exist'; END IF; IF EXISTS (SELECT 1 FROM (SELECT DISTINCT parked_price_id AS value FROM fresh WHERE parked_price_id IS NOT NULL) AS given WHERE (SELECT 1 FROM parked_prices WHERE id = value) IS NULL) THEN RAISE EXCEPTION 'a row of parked_segments points to a row of parked_prices that does not exist'; END IF; RETURN NULL; END $$
-- next
CREATE FUNCTION forebay_refuse_orphaned_segments() RETURNS trigger
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    AS $$ BEGIN IF EXISTS (SELECT 1 FROM (SELECT DISTINCT usage_id AS value FROM fresh WHERE usage_id IS NOT NULL) AS given WHERE (SELECT 1 FROM usage WHERE id = value) IS NULL) THEN RAISE EXCEPTION 'a row of segments points to a row of usage that does not exist'; END IF; IF EXISTS (SELECT 1 FROM (SELECT DISTINCT transaction_id AS value FROM fresh WHERE transaction_id IS NOT NULL) AS given WHERE (SELECT 1 FROM transactions WHERE id = value) IS NULL) THEN RAISE EXCEPTION 'a row of segments points to a row of transactions that does not exist'; END IF; IF EXISTS (SELECT 1 FROM (SELECT DISTINCT account_id AS value FROM fresh WHERE account_id IS NOT NULL) AS given WHERE (SELECT 1 FROM accounts WHERE id = value) IS NULL) THEN RAISE EXCEPTION 'a row of segments points to a row of accounts that does not exist'; END IF; IF EXISTS (SELECT 1 FROM (SELECT DISTINCT price_id AS value FROM fresh WHERE price_id IS NOT NULL) AS given WHERE (SELECT 1 FROM prices WHERE id = value) IS NULL) THEN RAISE EXCEPTION 'a row of segments points to a row of prices that does not exist'; END IF; RETURN NULL; END $$
-- next
CREATE FUNCTION forebay_refuse_reopen() RETURNS trigger
    LANGUAGE plpgsql
    AS $$ BEGIN RAISE EXCEPTION 'holds are append-only: what has ended stays as it was'; END $$
-- next
CREATE FUNCTION forebay_refuse_unbalanced() RETURNS trigger
    LANGUAGE plpgsql
    AS $$ BEGIN IF EXISTS (
SELECT 1 FROM (
    SELECT currency, SUM(milli) AS milli, SUM(grains / 1000000000) AS billions, SUM(grains % 1000000000) AS rest FROM postings
    WHERE transaction_id = NEW.transaction_id GROUP BY currency
) AS sums
WHERE rest % 1000000000 <> 0 OR (billions + rest / 1000000000) % 3600000000 <> 0
OR milli + (billions + rest / 1000000000) / 3600000000 <> 0
) OR (SELECT COUNT(*) FROM postings WHERE transaction_id = NEW.transaction_id) < 2 THEN RAISE EXCEPTION 'the transaction does not sum to zero in every currency'; END IF; RETURN NEW; END $$
-- next
CREATE TABLE accounts (
    id integer NOT NULL,
    name character varying(160) NOT NULL
)
-- next
CREATE TABLE alert_channels (
    id bigint NOT NULL,
    tenant character varying(128),
    kind character varying(8) NOT NULL,
    target character varying(1024) NOT NULL,
    secret character varying(128),
    set_at_ns bigint NOT NULL,
    set_by character varying(255) NOT NULL,
    removed_at_ns bigint,
    CONSTRAINT ck_alert_channels_ck_alert_channels_kind CHECK (((kind)::text = ANY (ARRAY[('webhook'::character varying)::text, ('email'::character varying)::text, ('slack'::character varying)::text])))
)
-- next
CREATE TABLE alert_deliveries (
    alert_id bigint NOT NULL,
    channel_id bigint NOT NULL,
    state character varying(8) NOT NULL,
    attempts integer NOT NULL,
    created_at_ns bigint NOT NULL,
    next_at_ns bigint NOT NULL,
    settled_at_ns bigint,
    note text,
    CONSTRAINT ck_alert_deliveries_ck_alert_deliveries_state CHECK (((state)::text = ANY (ARRAY[('waiting'::character varying)::text, ('done'::character varying)::text, ('dead'::character varying)::text])))
)
-- next
CREATE TABLE audit (
    id bigint NOT NULL,
    at_ns bigint NOT NULL,
    who character varying(255) NOT NULL,
    action character varying(32) NOT NULL,
    subject character varying(264) NOT NULL,
    before text,
    after text NOT NULL
)
-- next
CREATE TABLE balances (
    account_id integer NOT NULL,
    period character varying(7) NOT NULL,
    currency character varying(3) NOT NULL,
    milli bigint NOT NULL,
    grains bigint NOT NULL,
    CONSTRAINT ck_balances_ck_balances_milli_within_64_bits CHECK (((milli > '-9000000000000000000'::bigint) AND (milli < '9000000000000000000'::bigint)))
)
-- next
CREATE TABLE budget_alerts (
    id bigint NOT NULL,
    budget_id bigint NOT NULL,
    period character varying(7) NOT NULL,
    threshold integer NOT NULL,
    limit_milli bigint NOT NULL,
    limit_grains bigint NOT NULL,
    used_milli bigint NOT NULL,
    used_grains bigint NOT NULL,
    at_ns bigint NOT NULL
)
-- next
CREATE TABLE budget_marks (
    id integer NOT NULL,
    usage_id bigint NOT NULL,
    transaction_id bigint NOT NULL,
    CONSTRAINT ck_budget_marks_ck_budget_marks_one_row CHECK ((id = 1))
)
-- next
CREATE TABLE budget_spending (
    budget_id bigint NOT NULL,
    period character varying(7) NOT NULL,
    day integer NOT NULL,
    milli bigint NOT NULL,
    grains bigint NOT NULL
)
-- next
CREATE TABLE budgets (
    id bigint NOT NULL,
    tenant character varying(128) NOT NULL,
    user_name character varying(128),
    notebook character varying(2048),
    currency character varying(3) NOT NULL,
    time_window character varying(8) NOT NULL,
    origin character varying(8) NOT NULL,
    limit_milli bigint NOT NULL,
    limit_grains bigint NOT NULL,
    thresholds character varying(64) NOT NULL,
    on_limit character varying(8) NOT NULL,
    grace_seconds integer NOT NULL,
    set_at_ns bigint NOT NULL,
    set_by character varying(255) NOT NULL,
    removed_at_ns bigint,
    CONSTRAINT ck_budgets_ck_budgets_notebook_has_user CHECK (((notebook IS NULL) OR (user_name IS NOT NULL))),
    CONSTRAINT ck_budgets_ck_budgets_on_limit CHECK (((on_limit)::text = ANY (ARRAY[('notify'::character varying)::text, ('refuse'::character varying)::text, ('drain'::character varying)::text]))),
    CONSTRAINT ck_budgets_ck_budgets_origin CHECK (((origin)::text = ANY (ARRAY[('operator'::character varying)::text, ('owner'::character varying)::text]))),
    CONSTRAINT ck_budgets_ck_budgets_time_window CHECK (((time_window)::text = ANY (ARRAY[('month'::character varying)::text, ('total'::character varying)::text])))
)
-- next
CREATE TABLE credit_grants (
    id bigint NOT NULL,
    tenant character varying(128) NOT NULL,
    kind character varying(16) NOT NULL,
    name character varying(128) NOT NULL,
    currency character varying(3) NOT NULL,
    amount_minor bigint NOT NULL,
    priority integer NOT NULL,
    effective_at_ns bigint NOT NULL,
    expires_at_ns bigint,
    granted_at_ns bigint NOT NULL,
    granted_by character varying(255) NOT NULL,
    transaction_id bigint NOT NULL,
    CONSTRAINT ck_credit_grants_ck_credit_grants_amount_above_zero CHECK ((amount_minor > 0)),
    CONSTRAINT ck_credit_grants_ck_credit_grants_kind CHECK (((kind)::text = ANY (ARRAY[('prepaid'::character varying)::text, ('promotional'::character varying)::text])))
)
-- next
CREATE TABLE credit_moves (
    id bigint NOT NULL,
    grant_id bigint NOT NULL,
    kind character varying(8) NOT NULL,
    amount_minor bigint NOT NULL,
    invoice_id bigint,
    reason character varying(500) NOT NULL,
    moved_at_ns bigint NOT NULL,
    moved_by character varying(255) NOT NULL,
    transaction_id bigint NOT NULL,
    CONSTRAINT ck_credit_moves_ck_credit_moves_amount_above_zero CHECK ((amount_minor > 0)),
    CONSTRAINT ck_credit_moves_ck_credit_moves_invoice_of_use CHECK ((((kind)::text = 'use'::text) = (invoice_id IS NOT NULL))),
    CONSTRAINT ck_credit_moves_ck_credit_moves_kind CHECK (((kind)::text = ANY (ARRAY[('use'::character varying)::text, ('refund'::character varying)::text, ('expire'::character varying)::text])))
)
-- next
CREATE TABLE credit_notes (
    id bigint NOT NULL,
    series character varying(128) NOT NULL,
    number integer NOT NULL,
    name character varying(64) NOT NULL,
    invoice_id bigint NOT NULL,
    amount_minor bigint NOT NULL,
    tax_minor bigint NOT NULL,
    reason character varying(500) NOT NULL,
    issued_at_ns bigint NOT NULL,
    issued_by character varying(255) NOT NULL,
    transaction_id bigint NOT NULL,
    CONSTRAINT ck_credit_notes_ck_credit_notes_amount_above_zero CHECK ((amount_minor > 0))
)
-- next
CREATE TABLE holds (
    id bigint NOT NULL,
    source character varying(128) NOT NULL,
    record_id character varying(128) NOT NULL,
    account_id integer NOT NULL,
    tenant character varying(128) NOT NULL,
    user_name character varying(128) NOT NULL,
    span_label character varying(2048) NOT NULL,
    currency character varying(3) NOT NULL,
    period character varying(7) NOT NULL,
    covered_ns bigint NOT NULL,
    milli bigint NOT NULL,
    grains bigint NOT NULL,
    opened_at_ns bigint NOT NULL,
    expires_at_ns bigint NOT NULL,
    closed_by bigint,
    CONSTRAINT ck_holds_ck_holds_grains_below_a_milli CHECK (((grains > '-3600000000000000000'::bigint) AND (grains < '3600000000000000000'::bigint)))
)
-- next
CREATE SEQUENCE holds_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
-- next
ALTER SEQUENCE holds_id_seq OWNED BY holds.id
-- next
CREATE TABLE idempotency (
    caller character varying(255) NOT NULL,
    key character varying(255) NOT NULL,
    digest bytea NOT NULL,
    answer text NOT NULL,
    at_ns bigint NOT NULL
)
-- next
CREATE TABLE invoice_lines (
    invoice_id bigint NOT NULL,
    "position" integer NOT NULL,
    key character varying(32) NOT NULL,
    kind character varying(16) NOT NULL,
    label character varying(500) NOT NULL,
    milli bigint NOT NULL,
    grains bigint NOT NULL,
    amount_minor bigint NOT NULL,
    started_at_ns bigint NOT NULL,
    ended_at_ns bigint NOT NULL,
    grant_id bigint,
    user_name character varying(128),
    price_id bigint,
    surcharge_nano_per_hour bigint,
    late boolean,
    leases integer,
    seconds bigint,
    nanoseconds bigint
)
-- next
CREATE TABLE invoices (
    id bigint NOT NULL,
    series character varying(128) NOT NULL,
    number integer NOT NULL,
    name character varying(64) NOT NULL,
    tenant character varying(128) NOT NULL,
    period character varying(7) NOT NULL,
    currency character varying(3) NOT NULL,
    issued_at_ns bigint NOT NULL,
    due_at_ns bigint NOT NULL,
    net_minor bigint NOT NULL,
    credit_minor bigint NOT NULL,
    tax_minor bigint NOT NULL,
    total_minor bigint NOT NULL,
    profile text NOT NULL,
    issuer text NOT NULL,
    transaction_id bigint NOT NULL,
    CONSTRAINT ck_invoices_ck_invoices_total CHECK (((total_minor >= 0) AND (((net_minor + credit_minor) + tax_minor) = total_minor)))
)
-- next
CREATE TABLE notice_channels (
    id bigint NOT NULL,
    tenant character varying(128) NOT NULL,
    user_name character varying(128) NOT NULL,
    kind character varying(8) NOT NULL,
    target character varying(1024) NOT NULL,
    secret character varying(128),
    code_digest character varying(64),
    code_tries integer NOT NULL,
    confirmed_at_ns bigint,
    set_at_ns bigint NOT NULL,
    removed_at_ns bigint,
    CONSTRAINT ck_notice_channels_ck_notice_channels_kind CHECK (((kind)::text = ANY (ARRAY[('email'::character varying)::text, ('webhook'::character varying)::text, ('slack'::character varying)::text])))
)
-- next
CREATE TABLE notice_deliveries (
    notice_id bigint NOT NULL,
    channel_id bigint NOT NULL,
    state character varying(8) NOT NULL,
    attempts integer NOT NULL,
    created_at_ns bigint NOT NULL,
    next_at_ns bigint NOT NULL,
    settled_at_ns bigint,
    note text,
    CONSTRAINT ck_notice_deliveries_ck_notice_deliveries_state CHECK (((state)::text = ANY (ARRAY[('waiting'::character varying)::text, ('done'::character varying)::text, ('dead'::character varying)::text])))
)
-- next
CREATE TABLE notices (
    id bigint NOT NULL,
    tenant character varying(128) NOT NULL,
    user_name character varying(128) NOT NULL,
    kind character varying(8) NOT NULL,
    label character varying(2048) NOT NULL,
    cell integer,
    first_line character varying(300),
    seconds double precision NOT NULL,
    why character varying(300),
    at_ns bigint NOT NULL,
    job bigint,
    cause text,
    key character varying(128),
    CONSTRAINT ck_notices_ck_notices_kind CHECK (((kind)::text = ANY (ARRAY[('ended'::character varying)::text, ('failed'::character varying)::text, ('waits'::character varying)::text, ('budget'::character varying)::text, ('retried'::character varying)::text])))
)
-- next
CREATE TABLE parked_prices (
    id bigint NOT NULL,
    currency character varying(3) NOT NULL,
    version integer NOT NULL,
    price_nano_per_gib_hour bigint NOT NULL,
    valid_from_ns bigint NOT NULL,
    changed_at_ns bigint NOT NULL,
    changed_by character varying(255) NOT NULL,
    CONSTRAINT ck_parked_prices_ck_parked_prices_price_not_below_zero CHECK ((price_nano_per_gib_hour >= 0))
)
-- next
CREATE TABLE parked_segments (
    usage_id bigint NOT NULL,
    "position" integer NOT NULL,
    transaction_id bigint NOT NULL,
    account_id integer NOT NULL,
    period character varying(7) NOT NULL,
    currency character varying(3) NOT NULL,
    parked_price_id bigint,
    started_at_ns bigint NOT NULL,
    duration_ns bigint NOT NULL,
    milli bigint NOT NULL,
    grains bigint NOT NULL,
    late boolean NOT NULL,
    reversal boolean NOT NULL,
    CONSTRAINT ck_parked_segments_ck_parked_segments_grains_below_a_milli CHECK (((grains > '-3600000000000000000'::bigint) AND (grains < '3600000000000000000'::bigint)))
)
-- next
CREATE TABLE payment_contacts (
    tenant character varying(128) NOT NULL,
    version integer NOT NULL,
    name character varying(150) NOT NULL,
    email character varying(512),
    changed_at_ns bigint NOT NULL,
    changed_by character varying(255) NOT NULL
)
-- next
CREATE TABLE payment_events (
    id character varying(255) NOT NULL,
    type character varying(128) NOT NULL,
    object_id character varying(255),
    received_at_ns bigint NOT NULL,
    state character varying(8) NOT NULL,
    attempts integer NOT NULL,
    next_at_ns bigint NOT NULL,
    note text,
    CONSTRAINT ck_payment_events_ck_payment_events_state CHECK (((state)::text = ANY (ARRAY[('waiting'::character varying)::text, ('done'::character varying)::text, ('ignored'::character varying)::text, ('dead'::character varying)::text])))
)
-- next
CREATE TABLE payment_marks (
    name character varying(32) NOT NULL,
    value bigint NOT NULL
)
-- next
CREATE TABLE payment_meter_hours (
    tenant character varying(128) NOT NULL,
    meter character varying(100) NOT NULL,
    hour_ns bigint NOT NULL,
    sequence integer NOT NULL,
    currency character varying(3) NOT NULL,
    value bigint NOT NULL,
    late character varying(512)
)
-- next
CREATE TABLE payment_objects (
    kind character varying(16) NOT NULL,
    subject character varying(512) NOT NULL,
    tenant character varying(128) NOT NULL,
    stripe_id character varying(255) NOT NULL,
    status character varying(32) NOT NULL,
    currency character varying(3),
    total_minor bigint,
    paid_minor bigint,
    url text,
    refreshed_at_ns bigint NOT NULL
)
-- next
CREATE TABLE payment_outbox (
    id bigint NOT NULL,
    tenant character varying(128) NOT NULL,
    kind character varying(16) NOT NULL,
    subject character varying(512) NOT NULL,
    body text NOT NULL,
    idempotency character varying(64) NOT NULL,
    generation integer NOT NULL,
    look integer NOT NULL,
    state character varying(8) NOT NULL,
    attempts integer NOT NULL,
    created_at_ns bigint NOT NULL,
    next_at_ns bigint NOT NULL,
    first_tried_at_ns bigint,
    settled_at_ns bigint,
    note text,
    sent_at_ns bigint,
    CONSTRAINT ck_payment_outbox_ck_payment_outbox_state CHECK (((state)::text = ANY (ARRAY[('waiting'::character varying)::text, ('done'::character varying)::text, ('dead'::character varying)::text, ('skipped'::character varying)::text])))
)
-- next
CREATE TABLE periods (
    id bigint NOT NULL,
    tenant character varying(128) NOT NULL,
    period character varying(7) NOT NULL,
    finalised_at_ns bigint NOT NULL
)
-- next
CREATE TABLE plans (
    id bigint NOT NULL,
    tenant character varying(128) NOT NULL,
    version integer NOT NULL,
    valid_from character varying(7) NOT NULL,
    currency character varying(3) NOT NULL,
    terms text NOT NULL,
    changed_at_ns bigint NOT NULL,
    changed_by character varying(255) NOT NULL
)
-- next
CREATE TABLE postings (
    transaction_id bigint NOT NULL,
    account_id integer NOT NULL,
    period character varying(7) NOT NULL,
    currency character varying(3) NOT NULL,
    milli bigint NOT NULL,
    grains bigint NOT NULL,
    CONSTRAINT ck_postings_ck_postings_grains_below_a_milli CHECK (((grains > '-3600000000000000000'::bigint) AND (grains < '3600000000000000000'::bigint)))
)
-- next
CREATE TABLE preferences (
    user_name character varying(128) NOT NULL,
    language character varying(16),
    jobs character varying(8),
    set_at_ns bigint NOT NULL,
    CONSTRAINT ck_preferences_ck_preferences_jobs CHECK (((jobs)::text = ANY (ARRAY[('none'::character varying)::text, ('failures'::character varying)::text, ('all'::character varying)::text])))
)
-- next
CREATE TABLE prices (
    id bigint NOT NULL,
    flavor character varying(128) NOT NULL,
    currency character varying(3) NOT NULL,
    version integer NOT NULL,
    price_nano_per_hour bigint NOT NULL,
    valid_from_ns bigint NOT NULL,
    changed_at_ns bigint NOT NULL,
    changed_by character varying(255) NOT NULL,
    CONSTRAINT ck_prices_ck_prices_price_not_below_zero CHECK ((price_nano_per_hour >= 0))
)
-- next
CREATE TABLE profiles (
    id bigint NOT NULL,
    tenant character varying(128) NOT NULL,
    version integer NOT NULL,
    legal_name character varying(150) NOT NULL,
    address character varying(500) NOT NULL,
    tax_id character varying(128) NOT NULL,
    tax_label character varying(128) NOT NULL,
    tax_bps integer NOT NULL,
    currency character varying(3),
    email character varying(500),
    changed_at_ns bigint NOT NULL,
    changed_by character varying(255) NOT NULL,
    CONSTRAINT ck_profiles_ck_profiles_tax_bps CHECK (((tax_bps >= 0) AND (tax_bps <= 10000)))
)
-- next
CREATE TABLE rated (
    flavor character varying(256) NOT NULL,
    currency character varying(3) NOT NULL,
    until_ns bigint NOT NULL
)
-- next
CREATE TABLE report_mailings (
    recipient_id bigint NOT NULL,
    month character varying(7) NOT NULL,
    state character varying(8) NOT NULL,
    attempts integer NOT NULL,
    created_at_ns bigint NOT NULL,
    next_at_ns bigint NOT NULL,
    settled_at_ns bigint,
    note text,
    CONSTRAINT ck_report_mailings_ck_report_mailings_state CHECK (((state)::text = ANY (ARRAY[('waiting'::character varying)::text, ('done'::character varying)::text, ('dead'::character varying)::text])))
)
-- next
CREATE TABLE report_recipients (
    id bigint NOT NULL,
    tenant character varying(128) NOT NULL,
    target character varying(1024) NOT NULL,
    set_at_ns bigint NOT NULL,
    set_by character varying(255) NOT NULL,
    removed_at_ns bigint
)
-- next
CREATE TABLE revenue_hours (
    hour_ns bigint NOT NULL,
    currency character varying(3) NOT NULL,
    milli bigint NOT NULL,
    grains bigint NOT NULL,
    through_id bigint NOT NULL,
    CONSTRAINT ck_revenue_hours_ck_revenue_hours_grains_below_a_milli CHECK (((grains > '-3600000000000000000'::bigint) AND (grains < '3600000000000000000'::bigint)))
)
-- next
CREATE TABLE reversals (
    usage_id bigint NOT NULL,
    transaction_id bigint NOT NULL
)
-- next
CREATE TABLE seals (
    transaction_id bigint NOT NULL
)
-- next
CREATE TABLE segments (
    usage_id bigint NOT NULL,
    "position" integer NOT NULL,
    transaction_id bigint NOT NULL,
    account_id integer NOT NULL,
    period character varying(7) NOT NULL,
    price_id bigint NOT NULL,
    surcharge_nano_per_hour bigint NOT NULL,
    started_at_ns bigint NOT NULL,
    duration_ns bigint NOT NULL,
    milli bigint NOT NULL,
    grains bigint NOT NULL,
    late boolean NOT NULL,
    reversal boolean NOT NULL,
    CONSTRAINT ck_segments_ck_segments_grains_below_a_milli CHECK (((grains > '-3600000000000000000'::bigint) AND (grains < '3600000000000000000'::bigint)))
)
-- next
CREATE TABLE settlements (
    id bigint NOT NULL,
    invoice_id bigint NOT NULL,
    kind character varying(8) NOT NULL,
    amount_minor bigint NOT NULL,
    method character varying(128) NOT NULL,
    reference character varying(500) NOT NULL,
    settled_at_ns bigint NOT NULL,
    settled_by character varying(255) NOT NULL,
    transaction_id bigint NOT NULL,
    CONSTRAINT ck_settlements_ck_settlements_amount_above_zero CHECK ((amount_minor > 0)),
    CONSTRAINT ck_settlements_ck_settlements_kind CHECK (((kind)::text = ANY (ARRAY[('payment'::character varying)::text, ('refund'::character varying)::text, ('void'::character varying)::text])))
)
-- next
CREATE TABLE surcharges (
    id bigint NOT NULL,
    model character varying(128) NOT NULL,
    currency character varying(3) NOT NULL,
    version integer NOT NULL,
    surcharge_nano_per_hour bigint NOT NULL,
    valid_from_ns bigint NOT NULL,
    changed_at_ns bigint NOT NULL,
    changed_by character varying(255) NOT NULL,
    CONSTRAINT ck_surcharges_ck_surcharges_surcharge_not_below_zero CHECK ((surcharge_nano_per_hour >= 0))
)
-- next
CREATE TABLE transactions (
    id bigint NOT NULL,
    kind character varying(16) NOT NULL,
    posted_at_ns bigint NOT NULL,
    reverses bigint,
    CONSTRAINT ck_transactions_ck_transactions_kind CHECK (((kind)::text = ANY (ARRAY[('usage'::character varying)::text, ('reversal'::character varying)::text, ('reserve'::character varying)::text, ('void'::character varying)::text, ('expire'::character varying)::text, ('post'::character varying)::text, ('credit'::character varying)::text, ('adjustment'::character varying)::text, ('payment'::character varying)::text, ('refund'::character varying)::text, ('fee'::character varying)::text]))),
    CONSTRAINT ck_transactions_ck_transactions_reversal_reverses CHECK ((((kind)::text = 'reversal'::text) = (reverses IS NOT NULL)))
)
-- next
CREATE TABLE usage (
    id bigint NOT NULL,
    source character varying(128) NOT NULL,
    record_id character varying(128) NOT NULL,
    tenant character varying(128) NOT NULL,
    user_name character varying(128) NOT NULL,
    session character varying(128) NOT NULL,
    lease character varying(128) NOT NULL,
    span_id character varying(128) NOT NULL,
    span_kind character varying(16) NOT NULL,
    span_label character varying(2048) NOT NULL,
    span_cell bigint,
    flavor character varying(128) NOT NULL,
    device_model character varying(128) NOT NULL,
    devices integer NOT NULL,
    share_milli integer NOT NULL,
    started_at_ns bigint NOT NULL,
    duration_ns bigint NOT NULL,
    close_reason character varying(128) NOT NULL,
    received_at_ns bigint NOT NULL,
    parked_bytes bigint,
    span_cell_id character varying(128),
    span_first_line character varying(80),
    energy_mj bigint,
    CONSTRAINT ck_usage_ck_usage_devices_and_share CHECK (((devices >= 1) AND (share_milli >= 1) AND (share_milli <= 1000))),
    CONSTRAINT ck_usage_ck_usage_duration_not_below_zero CHECK ((duration_ns >= 0))
)
-- next
CREATE TABLE usage_all_hours (
    start_ns bigint NOT NULL,
    pieces bigint NOT NULL,
    duration_ns bigint NOT NULL,
    told bigint NOT NULL,
    energy_mj bigint NOT NULL,
    energy_duration_ns bigint NOT NULL
)
-- next
CREATE TABLE usage_days (
    start_ns bigint NOT NULL,
    tenant character varying(128) NOT NULL,
    day integer NOT NULL,
    priced character varying(128) NOT NULL,
    currency character varying(3) NOT NULL,
    pieces bigint NOT NULL,
    leases bigint NOT NULL,
    duration_ns bigint NOT NULL,
    milli bigint NOT NULL,
    grains bigint NOT NULL,
    told bigint NOT NULL,
    energy_mj bigint NOT NULL,
    energy_duration_ns bigint NOT NULL
)
-- next
CREATE TABLE usage_hours (
    start_ns bigint NOT NULL,
    tenant character varying(128) NOT NULL,
    priced character varying(128) NOT NULL,
    currency character varying(3) NOT NULL,
    pieces bigint NOT NULL,
    leases bigint NOT NULL,
    duration_ns bigint NOT NULL,
    milli bigint NOT NULL,
    grains bigint NOT NULL,
    told bigint NOT NULL,
    energy_mj bigint NOT NULL,
    energy_duration_ns bigint NOT NULL
)
-- next
CREATE TABLE usage_marks (
    id integer NOT NULL,
    usage_id bigint NOT NULL,
    transaction_id bigint NOT NULL,
    CONSTRAINT ck_usage_marks_ck_usage_marks_one_row CHECK ((id = 1))
)
-- next
CREATE TABLE usage_months (
    start_ns bigint NOT NULL,
    tenant character varying(128) NOT NULL,
    user_name character varying(128) NOT NULL,
    priced character varying(128) NOT NULL,
    currency character varying(3) NOT NULL,
    pieces bigint NOT NULL,
    leases bigint NOT NULL,
    duration_ns bigint NOT NULL,
    milli bigint NOT NULL,
    grains bigint NOT NULL,
    told bigint NOT NULL,
    energy_mj bigint NOT NULL,
    energy_duration_ns bigint NOT NULL
)
-- next
CREATE TABLE usage_people (
    tenant character varying(128) NOT NULL,
    user_name character varying(128) NOT NULL,
    start_ns bigint NOT NULL
)
-- next
ALTER TABLE ONLY holds ALTER COLUMN id SET DEFAULT nextval('holds_id_seq'::regclass)
-- next
INSERT INTO budget_marks VALUES (1, 0, 0)
-- next
INSERT INTO usage_marks VALUES (1, 0, 0)
-- next
SELECT pg_catalog.setval('holds_id_seq', 1, false)
-- next
ALTER TABLE ONLY accounts
    ADD CONSTRAINT pk_accounts PRIMARY KEY (id)
-- next
ALTER TABLE ONLY alert_channels
    ADD CONSTRAINT pk_alert_channels PRIMARY KEY (id)
-- next
ALTER TABLE ONLY alert_deliveries
    ADD CONSTRAINT pk_alert_deliveries PRIMARY KEY (alert_id, channel_id)
-- next
ALTER TABLE ONLY audit
    ADD CONSTRAINT pk_audit PRIMARY KEY (id)
-- next
ALTER TABLE ONLY balances
    ADD CONSTRAINT pk_balances PRIMARY KEY (account_id, period, currency)
-- next
ALTER TABLE ONLY budget_alerts
    ADD CONSTRAINT pk_budget_alerts PRIMARY KEY (id)
-- next
ALTER TABLE ONLY budget_marks
    ADD CONSTRAINT pk_budget_marks PRIMARY KEY (id)
-- next
ALTER TABLE ONLY budget_spending
    ADD CONSTRAINT pk_budget_spending PRIMARY KEY (budget_id, period, day)
-- next
ALTER TABLE ONLY budgets
    ADD CONSTRAINT pk_budgets PRIMARY KEY (id)
-- next
ALTER TABLE ONLY credit_grants
    ADD CONSTRAINT pk_credit_grants PRIMARY KEY (id)
-- next
ALTER TABLE ONLY credit_moves
    ADD CONSTRAINT pk_credit_moves PRIMARY KEY (id)
-- next
ALTER TABLE ONLY credit_notes
    ADD CONSTRAINT pk_credit_notes PRIMARY KEY (id)
-- next
ALTER TABLE ONLY holds
    ADD CONSTRAINT pk_holds PRIMARY KEY (id)
-- next
ALTER TABLE ONLY idempotency
    ADD CONSTRAINT pk_idempotency PRIMARY KEY (caller, key)
-- next
ALTER TABLE ONLY invoice_lines
    ADD CONSTRAINT pk_invoice_lines PRIMARY KEY (invoice_id, "position")
-- next
ALTER TABLE ONLY invoices
    ADD CONSTRAINT pk_invoices PRIMARY KEY (id)
-- next
ALTER TABLE ONLY notice_channels
    ADD CONSTRAINT pk_notice_channels PRIMARY KEY (id)
-- next
ALTER TABLE ONLY notice_deliveries
    ADD CONSTRAINT pk_notice_deliveries PRIMARY KEY (notice_id, channel_id)
-- next
ALTER TABLE ONLY notices
    ADD CONSTRAINT pk_notices PRIMARY KEY (id)
-- next
ALTER TABLE ONLY parked_prices
    ADD CONSTRAINT pk_parked_prices PRIMARY KEY (id)
-- next
ALTER TABLE ONLY parked_segments
    ADD CONSTRAINT pk_parked_segments PRIMARY KEY (usage_id, "position")
-- next
ALTER TABLE ONLY payment_contacts
    ADD CONSTRAINT pk_payment_contacts PRIMARY KEY (tenant)
-- next
ALTER TABLE ONLY payment_events
    ADD CONSTRAINT pk_payment_events PRIMARY KEY (id)
-- next
ALTER TABLE ONLY payment_marks
    ADD CONSTRAINT pk_payment_marks PRIMARY KEY (name)
-- next
ALTER TABLE ONLY payment_meter_hours
    ADD CONSTRAINT pk_payment_meter_hours PRIMARY KEY (tenant, meter, hour_ns, sequence)
-- next
ALTER TABLE ONLY payment_objects
    ADD CONSTRAINT pk_payment_objects PRIMARY KEY (kind, subject)
-- next
ALTER TABLE ONLY payment_outbox
    ADD CONSTRAINT pk_payment_outbox PRIMARY KEY (id)
-- next
ALTER TABLE ONLY periods
    ADD CONSTRAINT pk_periods PRIMARY KEY (id)
-- next
ALTER TABLE ONLY plans
    ADD CONSTRAINT pk_plans PRIMARY KEY (id)
-- next
ALTER TABLE ONLY postings
    ADD CONSTRAINT pk_postings PRIMARY KEY (transaction_id, account_id, period, currency)
-- next
ALTER TABLE ONLY preferences
    ADD CONSTRAINT pk_preferences PRIMARY KEY (user_name)
-- next
ALTER TABLE ONLY prices
    ADD CONSTRAINT pk_prices PRIMARY KEY (id)
-- next
ALTER TABLE ONLY profiles
    ADD CONSTRAINT pk_profiles PRIMARY KEY (id)
-- next
ALTER TABLE ONLY rated
    ADD CONSTRAINT pk_rated PRIMARY KEY (flavor, currency)
-- next
ALTER TABLE ONLY report_mailings
    ADD CONSTRAINT pk_report_mailings PRIMARY KEY (recipient_id, month)
-- next
ALTER TABLE ONLY report_recipients
    ADD CONSTRAINT pk_report_recipients PRIMARY KEY (id)
-- next
ALTER TABLE ONLY revenue_hours
    ADD CONSTRAINT pk_revenue_hours PRIMARY KEY (hour_ns, currency)
-- next
ALTER TABLE ONLY reversals
    ADD CONSTRAINT pk_reversals PRIMARY KEY (usage_id)
-- next
ALTER TABLE ONLY seals
    ADD CONSTRAINT pk_seals PRIMARY KEY (transaction_id)
-- next
ALTER TABLE ONLY segments
    ADD CONSTRAINT pk_segments PRIMARY KEY (usage_id, "position")
-- next
ALTER TABLE ONLY settlements
    ADD CONSTRAINT pk_settlements PRIMARY KEY (id)
-- next
ALTER TABLE ONLY surcharges
    ADD CONSTRAINT pk_surcharges PRIMARY KEY (id)
-- next
ALTER TABLE ONLY transactions
    ADD CONSTRAINT pk_transactions PRIMARY KEY (id)
-- next
ALTER TABLE ONLY usage
    ADD CONSTRAINT pk_usage PRIMARY KEY (id)
-- next
ALTER TABLE ONLY usage_all_hours
    ADD CONSTRAINT pk_usage_all_hours PRIMARY KEY (start_ns)
-- next
ALTER TABLE ONLY usage_days
    ADD CONSTRAINT pk_usage_days PRIMARY KEY (start_ns, tenant, day, priced, currency)
-- next
ALTER TABLE ONLY usage_hours
    ADD CONSTRAINT pk_usage_hours PRIMARY KEY (start_ns, tenant, priced, currency)
-- next
ALTER TABLE ONLY usage_marks
    ADD CONSTRAINT pk_usage_marks PRIMARY KEY (id)
-- next
ALTER TABLE ONLY usage_months
    ADD CONSTRAINT pk_usage_months PRIMARY KEY (start_ns, tenant, user_name, priced, currency)
-- next
ALTER TABLE ONLY usage_people
    ADD CONSTRAINT pk_usage_people PRIMARY KEY (tenant, user_name)
-- next
ALTER TABLE ONLY accounts
    ADD CONSTRAINT uq_accounts_name UNIQUE (name)
-- next
ALTER TABLE ONLY budget_alerts
    ADD CONSTRAINT uq_budget_alerts_once UNIQUE (budget_id, period, threshold, limit_milli, limit_grains)
-- next
ALTER TABLE ONLY credit_notes
    ADD CONSTRAINT uq_credit_notes_name UNIQUE (name)
-- next
ALTER TABLE ONLY credit_notes
    ADD CONSTRAINT uq_credit_notes_series_number UNIQUE (series, number)
-- next
ALTER TABLE ONLY invoice_lines
    ADD CONSTRAINT uq_invoice_lines_invoice_id_key UNIQUE (invoice_id, key)
-- next
ALTER TABLE ONLY invoices
    ADD CONSTRAINT uq_invoices_name UNIQUE (name)
-- next
ALTER TABLE ONLY invoices
    ADD CONSTRAINT uq_invoices_series_number UNIQUE (series, number)
-- next
ALTER TABLE ONLY invoices
    ADD CONSTRAINT uq_invoices_tenant_period_currency UNIQUE (tenant, period, currency)
-- next
ALTER TABLE ONLY parked_prices
    ADD CONSTRAINT uq_parked_prices_currency_version UNIQUE (currency, version)
-- next
ALTER TABLE ONLY payment_objects
    ADD CONSTRAINT uq_payment_objects_stripe_id UNIQUE (stripe_id)
-- next
ALTER TABLE ONLY payment_outbox
    ADD CONSTRAINT uq_payment_outbox_idempotency UNIQUE (idempotency)
-- next
ALTER TABLE ONLY payment_outbox
    ADD CONSTRAINT uq_payment_outbox_kind_subject UNIQUE (kind, subject)
-- next
ALTER TABLE ONLY periods
    ADD CONSTRAINT uq_periods_tenant_period UNIQUE (tenant, period)
-- next
ALTER TABLE ONLY plans
    ADD CONSTRAINT uq_plans_tenant_version UNIQUE (tenant, version)
-- next
ALTER TABLE ONLY prices
    ADD CONSTRAINT uq_prices_flavor_currency_version UNIQUE (flavor, currency, version)
-- next
ALTER TABLE ONLY profiles
    ADD CONSTRAINT uq_profiles_tenant_version UNIQUE (tenant, version)
-- next
ALTER TABLE ONLY reversals
    ADD CONSTRAINT uq_reversals_transaction_id UNIQUE (transaction_id)
-- next
ALTER TABLE ONLY settlements
    ADD CONSTRAINT uq_settlements_invoice_id_kind_reference UNIQUE (invoice_id, kind, reference)
-- next
ALTER TABLE ONLY surcharges
    ADD CONSTRAINT uq_surcharges_model_currency_version UNIQUE (model, currency, version)
-- next
ALTER TABLE ONLY usage
    ADD CONSTRAINT uq_usage_source_record_id UNIQUE (source, record_id)
-- next
CREATE INDEX ix_alert_channels_tenant ON alert_channels USING btree (tenant)
-- next
CREATE INDEX ix_alert_deliveries_state_next_at_ns ON alert_deliveries USING btree (state, next_at_ns)
-- next
CREATE INDEX ix_budgets_tenant ON budgets USING btree (tenant)
-- next
CREATE INDEX ix_credit_grants_tenant_currency ON credit_grants USING btree (tenant, currency)
-- next
CREATE INDEX ix_credit_moves_grant_id ON credit_moves USING btree (grant_id)
-- next
CREATE INDEX ix_credit_notes_invoice_id ON credit_notes USING btree (invoice_id)
-- next
CREATE INDEX ix_holds_account_id ON holds USING btree (account_id)
-- next
CREATE INDEX ix_holds_closed_by ON holds USING btree (closed_by)
-- next
CREATE INDEX ix_holds_open_expires_at_ns ON holds USING btree (expires_at_ns) WHERE (closed_by IS NULL)
-- next
CREATE INDEX ix_notice_channels_tenant_user_name ON notice_channels USING btree (tenant, user_name)
-- next
CREATE INDEX ix_notice_deliveries_state_next_at_ns ON notice_deliveries USING btree (state, next_at_ns)
-- next
CREATE INDEX ix_notices_tenant_user_name_at_ns ON notices USING btree (tenant, user_name, at_ns)
-- next
CREATE INDEX ix_parked_segments_account_id_period ON parked_segments USING btree (account_id, period)
-- next
CREATE INDEX ix_payment_events_state_next_at_ns ON payment_events USING btree (state, next_at_ns)
-- next
CREATE INDEX ix_payment_meter_hours_hour_ns ON payment_meter_hours USING btree (hour_ns)
-- next
CREATE INDEX ix_payment_objects_tenant ON payment_objects USING btree (tenant)
-- next
CREATE INDEX ix_payment_outbox_state_next_at_ns ON payment_outbox USING btree (state, next_at_ns)
-- next
CREATE INDEX ix_payment_outbox_tenant_state_id ON payment_outbox USING btree (tenant, state, id)
-- next
CREATE INDEX ix_postings_account_id_period ON postings USING btree (account_id, period)
-- next
CREATE INDEX ix_report_mailings_state_next_at_ns ON report_mailings USING btree (state, next_at_ns)
-- next
CREATE INDEX ix_report_recipients_tenant ON report_recipients USING btree (tenant)
-- next
CREATE INDEX ix_segments_account_id_period ON segments USING btree (account_id, period)
-- next
CREATE INDEX ix_transactions_reverses ON transactions USING btree (reverses)
-- next
CREATE INDEX ix_usage_days_tenant_currency_start_ns ON usage_days USING btree (tenant, currency, start_ns)
-- next
CREATE INDEX ix_usage_months_tenant_user_name_start_ns ON usage_months USING btree (tenant, user_name, start_ns)
-- next
CREATE INDEX ix_usage_parked_of_tenant ON usage USING btree (tenant, started_at_ns) WHERE (parked_bytes IS NOT NULL)
-- next
CREATE INDEX ix_usage_parked_of_user ON usage USING btree (tenant, user_name, started_at_ns) WHERE (parked_bytes IS NOT NULL)
-- next
CREATE INDEX ix_usage_started_at_ns ON usage USING btree (started_at_ns)
-- next
CREATE INDEX ix_usage_tenant_started_at_ns ON usage USING btree (tenant, started_at_ns)
-- next
CREATE INDEX ix_usage_tenant_user_name_started_at_ns ON usage USING btree (tenant, user_name, started_at_ns)
-- next
CREATE UNIQUE INDEX uq_holds_open ON holds USING btree (source, record_id) WHERE (closed_by IS NULL)
-- next
CREATE UNIQUE INDEX uq_notices_key ON notices USING btree (key)
-- next
CREATE TRIGGER accounts_refuse_change BEFORE DELETE OR UPDATE OR TRUNCATE ON accounts FOR EACH STATEMENT EXECUTE FUNCTION forebay_refuse_change()
-- next
CREATE TRIGGER audit_refuse_change BEFORE DELETE OR UPDATE OR TRUNCATE ON audit FOR EACH STATEMENT EXECUTE FUNCTION forebay_refuse_change()
-- next
CREATE TRIGGER credit_grants_refuse_change BEFORE DELETE OR UPDATE OR TRUNCATE ON credit_grants FOR EACH STATEMENT EXECUTE FUNCTION forebay_refuse_change()
-- next
CREATE TRIGGER credit_moves_refuse_change BEFORE DELETE OR UPDATE OR TRUNCATE ON credit_moves FOR EACH STATEMENT EXECUTE FUNCTION forebay_refuse_change()
-- next
CREATE TRIGGER credit_moves_refuse_excess BEFORE INSERT ON credit_moves FOR EACH ROW EXECUTE FUNCTION forebay_credit_moves_refuse_excess()
-- next
CREATE TRIGGER credit_notes_refuse_change BEFORE DELETE OR UPDATE OR TRUNCATE ON credit_notes FOR EACH STATEMENT EXECUTE FUNCTION forebay_refuse_change()
-- next
CREATE TRIGGER credit_notes_refuse_excess BEFORE INSERT ON credit_notes FOR EACH ROW EXECUTE FUNCTION forebay_credit_notes_refuse_excess()
-- next
CREATE TRIGGER credit_notes_refuse_gap BEFORE INSERT ON credit_notes FOR EACH ROW EXECUTE FUNCTION forebay_credit_notes_refuse_gap()
-- next
CREATE TRIGGER holds_refuse_change BEFORE DELETE OR TRUNCATE ON holds FOR EACH STATEMENT EXECUTE FUNCTION forebay_refuse_change()
-- next
CREATE TRIGGER holds_refuse_reopen BEFORE UPDATE ON holds FOR EACH ROW WHEN ((old.closed_by IS NOT NULL)) EXECUTE FUNCTION forebay_refuse_reopen()
-- next
CREATE TRIGGER idempotency_refuse_change BEFORE DELETE OR UPDATE OR TRUNCATE ON idempotency FOR EACH STATEMENT EXECUTE FUNCTION forebay_refuse_change()
-- next
CREATE TRIGGER invoice_lines_refuse_change BEFORE DELETE OR UPDATE OR TRUNCATE ON invoice_lines FOR EACH STATEMENT EXECUTE FUNCTION forebay_refuse_change()
-- next
CREATE TRIGGER invoices_refuse_change BEFORE DELETE OR UPDATE OR TRUNCATE ON invoices FOR EACH STATEMENT EXECUTE FUNCTION forebay_refuse_change()
-- next
CREATE TRIGGER invoices_refuse_gap BEFORE INSERT ON invoices FOR EACH ROW EXECUTE FUNCTION forebay_invoices_refuse_gap()
-- next
CREATE TRIGGER parked_prices_refuse_change BEFORE DELETE OR UPDATE OR TRUNCATE ON parked_prices FOR EACH STATEMENT EXECUTE FUNCTION forebay_refuse_change()
-- next
CREATE TRIGGER parked_segments_refuse_change BEFORE DELETE OR UPDATE OR TRUNCATE ON parked_segments FOR EACH STATEMENT EXECUTE FUNCTION forebay_refuse_change()
-- next
CREATE TRIGGER parked_segments_refuse_orphaned AFTER INSERT ON parked_segments REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION forebay_refuse_orphaned_parked_segments()
-- next
CREATE TRIGGER periods_refuse_change BEFORE DELETE OR UPDATE OR TRUNCATE ON periods FOR EACH STATEMENT EXECUTE FUNCTION forebay_refuse_change()
-- next
CREATE TRIGGER plans_refuse_change BEFORE DELETE OR UPDATE OR TRUNCATE ON plans FOR EACH STATEMENT EXECUTE FUNCTION forebay_refuse_change()
-- next
CREATE TRIGGER postings_refuse_after_seal BEFORE INSERT ON postings FOR EACH ROW EXECUTE FUNCTION forebay_refuse_after_seal()
-- next
CREATE TRIGGER postings_refuse_change BEFORE DELETE OR UPDATE OR TRUNCATE ON postings FOR EACH STATEMENT EXECUTE FUNCTION forebay_refuse_change()
-- next
CREATE TRIGGER prices_refuse_change BEFORE DELETE OR UPDATE OR TRUNCATE ON prices FOR EACH STATEMENT EXECUTE FUNCTION forebay_refuse_change()
-- next
CREATE TRIGGER profiles_refuse_change BEFORE DELETE OR UPDATE OR TRUNCATE ON profiles FOR EACH STATEMENT EXECUTE FUNCTION forebay_refuse_change()
-- next
CREATE TRIGGER reversals_refuse_change BEFORE DELETE OR UPDATE OR TRUNCATE ON reversals FOR EACH STATEMENT EXECUTE FUNCTION forebay_refuse_change()
-- next
CREATE TRIGGER seals_project_balances AFTER INSERT ON seals FOR EACH ROW EXECUTE FUNCTION forebay_project_balances()
-- next
CREATE TRIGGER seals_refuse_change BEFORE DELETE OR UPDATE OR TRUNCATE ON seals FOR EACH STATEMENT EXECUTE FUNCTION forebay_refuse_change()
-- next
CREATE TRIGGER seals_refuse_unbalanced BEFORE INSERT ON seals FOR EACH ROW EXECUTE FUNCTION forebay_refuse_unbalanced()
-- next
CREATE TRIGGER segments_refuse_change BEFORE DELETE OR UPDATE OR TRUNCATE ON segments FOR EACH STATEMENT EXECUTE FUNCTION forebay_refuse_change()
-- next
CREATE TRIGGER segments_refuse_orphaned AFTER INSERT ON segments REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION forebay_refuse_orphaned_segments()
-- next
CREATE TRIGGER settlements_refuse_change BEFORE DELETE OR UPDATE OR TRUNCATE ON settlements FOR EACH STATEMENT EXECUTE FUNCTION forebay_refuse_change()
-- next
CREATE TRIGGER surcharges_refuse_change BEFORE DELETE OR UPDATE OR TRUNCATE ON surcharges FOR EACH STATEMENT EXECUTE FUNCTION forebay_refuse_change()
-- next
CREATE TRIGGER transactions_refuse_change BEFORE DELETE OR UPDATE OR TRUNCATE ON transactions FOR EACH STATEMENT EXECUTE FUNCTION forebay_refuse_change()
-- next
CREATE TRIGGER usage_refuse_change BEFORE DELETE OR UPDATE OR TRUNCATE ON usage FOR EACH STATEMENT EXECUTE FUNCTION forebay_refuse_change()
-- next
ALTER TABLE ONLY alert_deliveries
    ADD CONSTRAINT fk_alert_deliveries_alert_id FOREIGN KEY (alert_id) REFERENCES budget_alerts(id)
-- next
ALTER TABLE ONLY alert_deliveries
    ADD CONSTRAINT fk_alert_deliveries_channel_id FOREIGN KEY (channel_id) REFERENCES alert_channels(id)
-- next
ALTER TABLE ONLY balances
    ADD CONSTRAINT fk_balances_account_id FOREIGN KEY (account_id) REFERENCES accounts(id)
-- next
ALTER TABLE ONLY budget_alerts
    ADD CONSTRAINT fk_budget_alerts_budget_id FOREIGN KEY (budget_id) REFERENCES budgets(id)
-- next
ALTER TABLE ONLY budget_spending
    ADD CONSTRAINT fk_budget_spending_budget_id FOREIGN KEY (budget_id) REFERENCES budgets(id)
-- next
ALTER TABLE ONLY credit_grants
    ADD CONSTRAINT fk_credit_grants_transaction_id FOREIGN KEY (transaction_id) REFERENCES transactions(id)
-- next
ALTER TABLE ONLY credit_moves
    ADD CONSTRAINT fk_credit_moves_grant_id FOREIGN KEY (grant_id) REFERENCES credit_grants(id)
-- next
ALTER TABLE ONLY credit_moves
    ADD CONSTRAINT fk_credit_moves_invoice_id FOREIGN KEY (invoice_id) REFERENCES invoices(id)
-- next
ALTER TABLE ONLY credit_moves
    ADD CONSTRAINT fk_credit_moves_transaction_id FOREIGN KEY (transaction_id) REFERENCES transactions(id)
-- next
ALTER TABLE ONLY credit_notes
    ADD CONSTRAINT fk_credit_notes_invoice_id FOREIGN KEY (invoice_id) REFERENCES invoices(id)
-- next
ALTER TABLE ONLY credit_notes
    ADD CONSTRAINT fk_credit_notes_transaction_id FOREIGN KEY (transaction_id) REFERENCES transactions(id)
-- next
ALTER TABLE ONLY holds
    ADD CONSTRAINT fk_holds_account_id FOREIGN KEY (account_id) REFERENCES accounts(id)
-- next
ALTER TABLE ONLY holds
    ADD CONSTRAINT fk_holds_closed_by FOREIGN KEY (closed_by) REFERENCES transactions(id)
-- next
ALTER TABLE ONLY invoice_lines
    ADD CONSTRAINT fk_invoice_lines_grant_id FOREIGN KEY (grant_id) REFERENCES credit_grants(id)
-- next
ALTER TABLE ONLY invoice_lines
    ADD CONSTRAINT fk_invoice_lines_invoice_id FOREIGN KEY (invoice_id) REFERENCES invoices(id)
-- next
ALTER TABLE ONLY invoice_lines
    ADD CONSTRAINT fk_invoice_lines_price_id FOREIGN KEY (price_id) REFERENCES prices(id)
-- next
ALTER TABLE ONLY invoices
    ADD CONSTRAINT fk_invoices_transaction_id FOREIGN KEY (transaction_id) REFERENCES transactions(id)
-- next
ALTER TABLE ONLY notice_deliveries
    ADD CONSTRAINT fk_notice_deliveries_channel_id FOREIGN KEY (channel_id) REFERENCES notice_channels(id)
-- next
ALTER TABLE ONLY notice_deliveries
    ADD CONSTRAINT fk_notice_deliveries_notice_id FOREIGN KEY (notice_id) REFERENCES notices(id)
-- next
ALTER TABLE ONLY postings
    ADD CONSTRAINT fk_postings_account_id FOREIGN KEY (account_id) REFERENCES accounts(id)
-- next
ALTER TABLE ONLY postings
    ADD CONSTRAINT fk_postings_transaction_id FOREIGN KEY (transaction_id) REFERENCES transactions(id)
-- next
ALTER TABLE ONLY report_mailings
    ADD CONSTRAINT fk_report_mailings_recipient_id FOREIGN KEY (recipient_id) REFERENCES report_recipients(id)
-- next
ALTER TABLE ONLY reversals
    ADD CONSTRAINT fk_reversals_transaction_id FOREIGN KEY (transaction_id) REFERENCES transactions(id)
-- next
ALTER TABLE ONLY reversals
    ADD CONSTRAINT fk_reversals_usage_id FOREIGN KEY (usage_id) REFERENCES usage(id)
-- next
ALTER TABLE ONLY seals
    ADD CONSTRAINT fk_seals_transaction_id FOREIGN KEY (transaction_id) REFERENCES transactions(id)
-- next
ALTER TABLE ONLY settlements
    ADD CONSTRAINT fk_settlements_invoice_id FOREIGN KEY (invoice_id) REFERENCES invoices(id)
-- next
ALTER TABLE ONLY settlements
    ADD CONSTRAINT fk_settlements_transaction_id FOREIGN KEY (transaction_id) REFERENCES transactions(id)
-- next
ALTER TABLE ONLY transactions
    ADD CONSTRAINT fk_transactions_id FOREIGN KEY (id) REFERENCES seals(transaction_id) DEFERRABLE INITIALLY DEFERRED
-- next
ALTER TABLE ONLY transactions
    ADD CONSTRAINT fk_transactions_reverses FOREIGN KEY (reverses) REFERENCES transactions(id)
