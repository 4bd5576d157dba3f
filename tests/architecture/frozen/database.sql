
CREATE TABLE audit (
	id BIGINT NOT NULL,
	at_us BIGINT DEFAULT 0 NOT NULL,
	uid BIGINT DEFAULT (-1) NOT NULL,
	user_name TEXT DEFAULT '' NOT NULL,
	action TEXT NOT NULL,
	target TEXT DEFAULT '' NOT NULL,
	outcome TEXT NOT NULL,
	text TEXT DEFAULT '' NOT NULL,
	request TEXT DEFAULT '' NOT NULL,
	CONSTRAINT pk_audit PRIMARY KEY (id),
	CONSTRAINT ck_audit_outcome CHECK (outcome IN ('asked', 'done', 'refused', 'failed'))
)


CREATE INDEX ix_audit_at ON audit (at_us)

CREATE TABLE counters (
	name TEXT NOT NULL,
	value BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_counters PRIMARY KEY (name)
)



CREATE TABLE deployment (
	id INTEGER NOT NULL,
	name TEXT NOT NULL,
	created_at_us BIGINT DEFAULT 0 NOT NULL,
	max_nodes BIGINT DEFAULT 0 NOT NULL,
	max_microusd_per_h BIGINT DEFAULT 0 NOT NULL,
	projects TEXT DEFAULT '' NOT NULL,
	key_check BLOB,
	key_epoch BIGINT DEFAULT 0 NOT NULL,
	quarantine TEXT DEFAULT '' NOT NULL,
	CONSTRAINT pk_deployment PRIMARY KEY (id),
	CONSTRAINT ck_deployment_single CHECK (id = 1)
)



CREATE TABLE disabled_users (
	name TEXT NOT NULL,
	uid BIGINT DEFAULT (-1) NOT NULL,
	disabled_at_us BIGINT DEFAULT 0 NOT NULL,
	disabled_by TEXT DEFAULT '' NOT NULL,
	successor TEXT DEFAULT '' NOT NULL,
	CONSTRAINT pk_disabled_users PRIMARY KEY (name)
)



CREATE TABLE duties (
	name TEXT NOT NULL,
	holder TEXT NOT NULL,
	epoch BIGINT DEFAULT 0 NOT NULL,
	until_us BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_duties PRIMARY KEY (name)
)



CREATE TABLE images (
	node_id TEXT NOT NULL,
	job_id TEXT NOT NULL,
	name TEXT NOT NULL,
	provider TEXT NOT NULL,
	region TEXT NOT NULL,
	vendor_name TEXT NOT NULL,
	setup TEXT DEFAULT '' NOT NULL,
	base TEXT DEFAULT '' NOT NULL,
	version TEXT DEFAULT '' NOT NULL,
	asked_at_us BIGINT DEFAULT 0 NOT NULL,
	image_id TEXT DEFAULT '' NOT NULL,
	size_gib INTEGER DEFAULT 0 NOT NULL,
	made_at_us BIGINT DEFAULT 0 NOT NULL,
	unwanted_at_us BIGINT DEFAULT 0 NOT NULL,
	gone_at_us BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_images PRIMARY KEY (node_id)
)



CREATE TABLE jobs (
	id TEXT NOT NULL,
	name TEXT NOT NULL,
	spec TEXT NOT NULL,
	spec_yaml TEXT NOT NULL,
	user_name TEXT DEFAULT '' NOT NULL,
	request_id TEXT,
	job_key BLOB NOT NULL,
	created_at_us BIGINT DEFAULT 0 NOT NULL,
	desired TEXT NOT NULL,
	approval_asked_by TEXT DEFAULT '' NOT NULL,
	approval_text TEXT DEFAULT '' NOT NULL,
	version BIGINT DEFAULT 0 NOT NULL,
	generation INTEGER DEFAULT 0 NOT NULL,
	outcome TEXT,
	outcome_text TEXT DEFAULT '' NOT NULL,
	finished_at_us BIGINT DEFAULT 0 NOT NULL,
	failures INTEGER DEFAULT 0 NOT NULL,
	place_after_us BIGINT DEFAULT 0 NOT NULL,
	save_wanted_at_us BIGINT DEFAULT 0 NOT NULL,
	waiting_since_us BIGINT DEFAULT 0 NOT NULL,
	waiting_told_us BIGINT DEFAULT 0 NOT NULL,
	unsaved_told_us BIGINT DEFAULT 0 NOT NULL,
	room_since_us BIGINT DEFAULT 0 NOT NULL,
	room_asked_us BIGINT DEFAULT 0 NOT NULL,
	room_microusd_per_h BIGINT DEFAULT 0 NOT NULL,
	offers_at_us BIGINT DEFAULT 0 NOT NULL,
	yields_to TEXT DEFAULT '' NOT NULL,
	yields_since_us BIGINT DEFAULT 0 NOT NULL,
	yielded_at_us BIGINT DEFAULT 0 NOT NULL,
	stop_text TEXT DEFAULT '' NOT NULL,
	wake_at_us BIGINT DEFAULT 0 NOT NULL,
	notes_seen BIGINT DEFAULT 0 NOT NULL,
	last_reason TEXT DEFAULT '' NOT NULL,
	notes BIGINT DEFAULT 0 NOT NULL,
	head_generation INTEGER DEFAULT 0 NOT NULL,
	head_step BIGINT DEFAULT 0 NOT NULL,
	head_manifest TEXT DEFAULT '' NOT NULL,
	head_released BOOLEAN DEFAULT 0 NOT NULL,
	head_final BOOLEAN DEFAULT 0 NOT NULL,
	head_seen_at_us BIGINT DEFAULT 0 NOT NULL,
	head_read_at_us BIGINT DEFAULT 0 NOT NULL,
	first_step_at_us BIGINT DEFAULT 0 NOT NULL,
	outputs_at_us BIGINT DEFAULT 0 NOT NULL,
	due_at_us BIGINT DEFAULT 0 NOT NULL,
	claim_owner TEXT DEFAULT '' NOT NULL,
	claim_until_us BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_jobs PRIMARY KEY (id),
	CONSTRAINT uq_jobs_request_id UNIQUE (request_id),
	CONSTRAINT ck_jobs_desired CHECK (desired IN ('run', 'pause', 'cancel')),
	CONSTRAINT ck_jobs_outcome CHECK (outcome IN ('succeeded', 'failed', 'cancelled'))
)


CREATE INDEX ix_jobs_due ON jobs (due_at_us, claim_until_us) WHERE due_at_us > 0
CREATE INDEX ix_jobs_name ON jobs (name)
CREATE INDEX ix_jobs_offers ON jobs (offers_at_us) WHERE offers_at_us > 0
CREATE INDEX ix_jobs_room ON jobs (room_asked_us) WHERE room_asked_us > 0
CREATE UNIQUE INDEX uq_jobs_name_unfinished ON jobs (name) WHERE outcome IS NULL

CREATE TABLE kept_secrets (
	name TEXT NOT NULL,
	value BLOB NOT NULL,
	set_at_us BIGINT DEFAULT 0 NOT NULL,
	set_by TEXT DEFAULT '' NOT NULL,
	CONSTRAINT pk_kept_secrets PRIMARY KEY (name)
)



CREATE TABLE login_sessions (
	digest TEXT NOT NULL,
	name TEXT NOT NULL,
	account BOOLEAN DEFAULT 0 NOT NULL,
	role TEXT DEFAULT '' NOT NULL,
	token_id TEXT DEFAULT '' NOT NULL,
	began_at_us BIGINT DEFAULT 0 NOT NULL,
	expires_at_us BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_login_sessions PRIMARY KEY (digest)
)



CREATE TABLE offers (
	provider TEXT NOT NULL,
	"key" TEXT NOT NULL,
	data TEXT NOT NULL,
	CONSTRAINT pk_offers PRIMARY KEY (provider, "key")
)



CREATE TABLE price_history (
	offer_key TEXT NOT NULL,
	at_us BIGINT DEFAULT 0 NOT NULL,
	price_microusd_per_h BIGINT DEFAULT 0 NOT NULL,
	list_microusd_per_h BIGINT DEFAULT 0 NOT NULL,
	price_source TEXT DEFAULT '' NOT NULL,
	CONSTRAINT pk_price_history PRIMARY KEY (offer_key, at_us)
)



CREATE TABLE providers (
	name TEXT NOT NULL,
	disabled TEXT DEFAULT '' NOT NULL,
	at_us BIGINT DEFAULT 0 NOT NULL,
	told_at_us BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_providers PRIMARY KEY (name)
)



CREATE TABLE user_tokens (
	id TEXT NOT NULL,
	name TEXT NOT NULL,
	account BOOLEAN DEFAULT 0 NOT NULL,
	role TEXT DEFAULT '' NOT NULL,
	digest TEXT NOT NULL,
	made_at_us BIGINT DEFAULT 0 NOT NULL,
	made_by TEXT DEFAULT '' NOT NULL,
	expires_at_us BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_user_tokens PRIMARY KEY (id)
)



CREATE TABLE alerts (
	id BIGINT NOT NULL,
	route TEXT NOT NULL,
	"key" TEXT DEFAULT '' NOT NULL,
	at_us BIGINT DEFAULT 0 NOT NULL,
	job_id TEXT,
	event TEXT NOT NULL,
	repeats INTEGER DEFAULT 0 NOT NULL,
	tries INTEGER DEFAULT 0 NOT NULL,
	next_at_us BIGINT DEFAULT 0 NOT NULL,
	sent_at_us BIGINT DEFAULT 0 NOT NULL,
	error TEXT DEFAULT '' NOT NULL,
	CONSTRAINT pk_alerts PRIMARY KEY (id),
	CONSTRAINT fk_alerts_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
)


CREATE INDEX ix_alerts_unsent ON alerts (next_at_us) WHERE sent_at_us = 0

CREATE TABLE attempts (
	job_id TEXT NOT NULL,
	generation INTEGER NOT NULL,
	opened_at_us BIGINT DEFAULT 0 NOT NULL,
	cause TEXT NOT NULL,
	CONSTRAINT pk_attempts PRIMARY KEY (job_id, generation),
	CONSTRAINT fk_attempts_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
)



CREATE TABLE carriage (
	job_id TEXT NOT NULL,
	month_us BIGINT DEFAULT 0 NOT NULL,
	microusd BIGINT DEFAULT 0 NOT NULL,
	microusd_per_h BIGINT DEFAULT 0 NOT NULL,
	at_us BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_carriage PRIMARY KEY (job_id, month_us),
	CONSTRAINT fk_carriage_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
)



CREATE TABLE checkpoints (
	job_id TEXT NOT NULL,
	manifest TEXT NOT NULL,
	generation INTEGER DEFAULT 0 NOT NULL,
	step BIGINT DEFAULT 0 NOT NULL,
	bytes BIGINT DEFAULT 0 NOT NULL,
	"trigger" TEXT DEFAULT '' NOT NULL,
	released BOOLEAN DEFAULT 0 NOT NULL,
	final BOOLEAN DEFAULT 0 NOT NULL,
	committed_at_us BIGINT DEFAULT 0 NOT NULL,
	stage_s FLOAT DEFAULT 0 NOT NULL,
	write_s FLOAT DEFAULT 0 NOT NULL,
	near_bytes BIGINT DEFAULT 0 NOT NULL,
	removed_at_us BIGINT DEFAULT 0 NOT NULL,
	shared_bytes BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_checkpoints PRIMARY KEY (job_id, manifest),
	CONSTRAINT fk_checkpoints_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
)



CREATE TABLE drills (
	id TEXT NOT NULL,
	job_id TEXT NOT NULL,
	kind TEXT NOT NULL,
	actor TEXT DEFAULT '' NOT NULL,
	asked_at_us BIGINT DEFAULT 0 NOT NULL,
	within_s FLOAT DEFAULT 0 NOT NULL,
	node_id TEXT DEFAULT '' NOT NULL,
	aimed_at_us BIGINT DEFAULT 0 NOT NULL,
	struck_at_us BIGINT DEFAULT 0 NOT NULL,
	ended_at_us BIGINT DEFAULT 0 NOT NULL,
	outcome TEXT,
	text TEXT DEFAULT '' NOT NULL,
	found TEXT DEFAULT '' NOT NULL,
	CONSTRAINT pk_drills PRIMARY KEY (id),
	CONSTRAINT ck_drills_kind CHECK (kind IN ('sigterm', 'notice', 'kill', 'agent', 'machine')),
	CONSTRAINT ck_drills_outcome CHECK (outcome IN ('passed', 'failed', 'called_off')),
	CONSTRAINT fk_drills_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
)


CREATE UNIQUE INDEX uq_drills_open ON drills (job_id) WHERE ended_at_us = 0

CREATE TABLE evaluations (
	job_id TEXT NOT NULL,
	digest TEXT NOT NULL,
	at_us BIGINT DEFAULT 0 NOT NULL,
	suite TEXT NOT NULL,
	cases BIGINT DEFAULT 0 NOT NULL,
	passed BIGINT DEFAULT 0 NOT NULL,
	tokens_per_s FLOAT DEFAULT 0 NOT NULL,
	ttft_s FLOAT DEFAULT 0 NOT NULL,
	ttft_p95_s FLOAT DEFAULT 0 NOT NULL,
	failed TEXT DEFAULT '' NOT NULL,
	source TEXT DEFAULT '' NOT NULL,
	CONSTRAINT pk_evaluations PRIMARY KEY (job_id, digest),
	CONSTRAINT fk_evaluations_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
)



CREATE TABLE events (
	id BIGINT NOT NULL,
	at_us BIGINT DEFAULT 0 NOT NULL,
	job_id TEXT,
	kind TEXT NOT NULL,
	text TEXT DEFAULT '' NOT NULL,
	node_id TEXT DEFAULT '' NOT NULL,
	severity TEXT NOT NULL,
	alert BOOLEAN DEFAULT 0 NOT NULL,
	"key" TEXT DEFAULT '' NOT NULL,
	data TEXT NOT NULL,
	CONSTRAINT pk_events PRIMARY KEY (id),
	CONSTRAINT ck_events_severity CHECK (severity IN ('debug', 'info', 'warning', 'error')),
	CONSTRAINT fk_events_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
)


CREATE INDEX ix_events_job ON events (job_id, id)

CREATE TABLE freight (
	job_id TEXT NOT NULL,
	url TEXT NOT NULL,
	node_id TEXT DEFAULT '' NOT NULL,
	month_us BIGINT DEFAULT 0 NOT NULL,
	bytes BIGINT DEFAULT 0 NOT NULL,
	egress_microusd BIGINT DEFAULT 0 NOT NULL,
	requests_microusd BIGINT DEFAULT 0 NOT NULL,
	began_at_us BIGINT DEFAULT 0 NOT NULL,
	staged_at_us BIGINT DEFAULT 0 NOT NULL,
	gone_at_us BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_freight PRIMARY KEY (job_id, url, node_id, month_us),
	CONSTRAINT fk_freight_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
)



CREATE TABLE outputs (
	job_id TEXT NOT NULL,
	manifest TEXT NOT NULL,
	digest TEXT NOT NULL,
	generation INTEGER DEFAULT 0 NOT NULL,
	rank INTEGER DEFAULT 0 NOT NULL,
	node_id TEXT NOT NULL,
	stored_at_us BIGINT DEFAULT 0 NOT NULL,
	files BIGINT DEFAULT 0 NOT NULL,
	bytes BIGINT DEFAULT 0 NOT NULL,
	new_bytes BIGINT DEFAULT 0 NOT NULL,
	text TEXT DEFAULT '' NOT NULL,
	CONSTRAINT pk_outputs PRIMARY KEY (job_id, manifest),
	CONSTRAINT fk_outputs_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
)



CREATE TABLE progress (
	id BIGINT NOT NULL,
	job_id TEXT NOT NULL,
	generation INTEGER DEFAULT 0 NOT NULL,
	at_us BIGINT DEFAULT 0 NOT NULL,
	from_step BIGINT DEFAULT 0 NOT NULL,
	to_step BIGINT DEFAULT 0 NOT NULL,
	losses TEXT NOT NULL,
	first_at_us BIGINT DEFAULT 0 NOT NULL,
	last_at_us BIGINT DEFAULT 0 NOT NULL,
	tokens BIGINT DEFAULT 0 NOT NULL,
	busy_s FLOAT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_progress PRIMARY KEY (id),
	CONSTRAINT fk_progress_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
)


CREATE INDEX ix_progress_job ON progress (job_id, at_us, generation, to_step, tokens, busy_s)

CREATE TABLE secrets (
	job_id TEXT NOT NULL,
	name TEXT NOT NULL,
	value BLOB NOT NULL,
	CONSTRAINT pk_secrets PRIMARY KEY (job_id, name),
	CONSTRAINT fk_secrets_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
)



CREATE TABLE nodes (
	id TEXT NOT NULL,
	job_id TEXT NOT NULL,
	generation INTEGER DEFAULT 0 NOT NULL,
	rank INTEGER DEFAULT 0 NOT NULL,
	candidate INTEGER DEFAULT 0 NOT NULL,
	token TEXT NOT NULL,
	offer TEXT NOT NULL,
	offer_key TEXT NOT NULL,
	provider TEXT NOT NULL,
	requested_at_us BIGINT DEFAULT 0 NOT NULL,
	expires_at_us BIGINT DEFAULT 0 NOT NULL,
	image_id TEXT DEFAULT '' NOT NULL,
	image_setup TEXT DEFAULT '' NOT NULL,
	moved_at_us BIGINT DEFAULT 0 NOT NULL,
	gang_size INTEGER DEFAULT 0 NOT NULL,
	state TEXT NOT NULL,
	chosen BOOLEAN DEFAULT 0 NOT NULL,
	leave_reason TEXT,
	leave_text TEXT DEFAULT '' NOT NULL,
	left_at_us BIGINT DEFAULT 0 NOT NULL,
	terminating_at_us BIGINT DEFAULT 0 NOT NULL,
	drained_at_us BIGINT DEFAULT 0 NOT NULL,
	kept_until_us BIGINT DEFAULT 0 NOT NULL,
	effect TEXT,
	effect_armed_at_us BIGINT DEFAULT 0 NOT NULL,
	effect_due_at_us BIGINT DEFAULT 0 NOT NULL,
	rate_microusd_per_h BIGINT DEFAULT 0 NOT NULL,
	instance_id TEXT DEFAULT '' NOT NULL,
	launched_at_us BIGINT DEFAULT 0 NOT NULL,
	launch_error TEXT DEFAULT '' NOT NULL,
	launch_error_code TEXT DEFAULT '' NOT NULL,
	host TEXT DEFAULT '' NOT NULL,
	private_host TEXT DEFAULT '' NOT NULL,
	port INTEGER DEFAULT 0 NOT NULL,
	ssh_user TEXT DEFAULT '' NOT NULL,
	host_public_key TEXT DEFAULT '' NOT NULL,
	cloud_state TEXT DEFAULT '' NOT NULL,
	surveyed_at_us BIGINT DEFAULT 0 NOT NULL,
	seen_at_us BIGINT DEFAULT 0 NOT NULL,
	missed_at_us BIGINT DEFAULT 0 NOT NULL,
	booted_at_us BIGINT DEFAULT 0 NOT NULL,
	started_at_us BIGINT DEFAULT 0 NOT NULL,
	started_claim TEXT DEFAULT '' NOT NULL,
	told_release_at_us BIGINT DEFAULT 0 NOT NULL,
	told_drain_at_us BIGINT DEFAULT 0 NOT NULL,
	told_save_at_us BIGINT DEFAULT 0 NOT NULL,
	cleaned_at_us BIGINT DEFAULT 0 NOT NULL,
	image_asked_at_us BIGINT DEFAULT 0 NOT NULL,
	imaged_at_us BIGINT DEFAULT 0 NOT NULL,
	image_error TEXT DEFAULT '' NOT NULL,
	terminated_at_us BIGINT DEFAULT 0 NOT NULL,
	renewed_until_us BIGINT DEFAULT 0 NOT NULL,
	lent_at_us BIGINT DEFAULT 0 NOT NULL,
	lent_until_us BIGINT DEFAULT 0 NOT NULL,
	gone_at_us BIGINT DEFAULT 0 NOT NULL,
	effect_failed_kind TEXT DEFAULT '' NOT NULL,
	effect_failed_at_us BIGINT DEFAULT 0 NOT NULL,
	effect_failures INTEGER DEFAULT 0 NOT NULL,
	effect_error TEXT DEFAULT '' NOT NULL,
	hello_at_us BIGINT DEFAULT 0 NOT NULL,
	ready_at_us BIGINT DEFAULT 0 NOT NULL,
	claimed_at_us BIGINT DEFAULT 0 NOT NULL,
	resumed_step BIGINT,
	anew_at_us BIGINT DEFAULT 0 NOT NULL,
	printed_steps TEXT DEFAULT '' NOT NULL,
	first_step_at_us BIGINT DEFAULT 0 NOT NULL,
	last_step BIGINT DEFAULT 0 NOT NULL,
	total_steps BIGINT DEFAULT 0 NOT NULL,
	heard_at_us BIGINT DEFAULT 0 NOT NULL,
	link_down_at_us BIGINT DEFAULT 0 NOT NULL,
	released_at_us BIGINT DEFAULT 0 NOT NULL,
	exit_code INTEGER,
	exited_at_us BIGINT DEFAULT 0 NOT NULL,
	exit_tail TEXT DEFAULT '' NOT NULL,
	exit_cause TEXT DEFAULT '' NOT NULL,
	failed_part TEXT DEFAULT '' NOT NULL,
	setup_failed BOOLEAN DEFAULT 0 NOT NULL,
	disk_full_at_us BIGINT DEFAULT 0 NOT NULL,
	wiped_at_us BIGINT DEFAULT 0 NOT NULL,
	wiped_text TEXT DEFAULT '' NOT NULL,
	outputs_since_us BIGINT DEFAULT 0 NOT NULL,
	journal_seq BIGINT DEFAULT 0 NOT NULL,
	wire BIGINT DEFAULT 0 NOT NULL,
	drill TEXT DEFAULT '' NOT NULL,
	CONSTRAINT pk_nodes PRIMARY KEY (id),
	CONSTRAINT uq_nodes_token UNIQUE (token),
	CONSTRAINT fk_nodes_job_id FOREIGN KEY(job_id, generation) REFERENCES attempts (job_id, generation),
	CONSTRAINT ck_nodes_state CHECK (state IN ('launching', 'booting', 'running', 'draining', 'terminating', 'gone')),
	CONSTRAINT ck_nodes_leave_reason CHECK (leave_reason IN ('preempted', 'lost', 'boot_timeout', 'capacity', 'failed', 'done', 'cancelled', 'outbid', 'moved', 'hedge_lost', 'drill')),
	CONSTRAINT ck_nodes_effect CHECK (effect IN ('launch', 'resolve', 'survey', 'boot', 'start', 'release', 'drain', 'save', 'read_head', 'image', 'terminate'))
)


CREATE INDEX ix_nodes_active ON nodes (provider, rate_microusd_per_h, job_id) WHERE state <> 'gone'
CREATE INDEX ix_nodes_down ON nodes (id) WHERE link_down_at_us > 0
CREATE INDEX ix_nodes_instance ON nodes (provider, instance_id)
CREATE INDEX ix_nodes_job ON nodes (job_id, generation)
CREATE INDEX ix_nodes_requested ON nodes (requested_at_us)
CREATE UNIQUE INDEX uq_nodes_chosen_rank ON nodes (job_id, rank) WHERE chosen AND state IN ('booting', 'running')

CREATE TABLE admissions (
	node_id TEXT NOT NULL,
	user_name TEXT NOT NULL,
	admitted_at_us BIGINT DEFAULT 0 NOT NULL,
	dismissed_at_us BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_admissions PRIMARY KEY (node_id, user_name),
	CONSTRAINT fk_admissions_node_id FOREIGN KEY(node_id) REFERENCES nodes (id)
)


CREATE INDEX ix_admissions_user ON admissions (user_name)

CREATE TABLE log_offsets (
	node_id TEXT NOT NULL,
	stream TEXT NOT NULL,
	stored_bytes BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_log_offsets PRIMARY KEY (node_id, stream),
	CONSTRAINT fk_log_offsets_node_id FOREIGN KEY(node_id) REFERENCES nodes (id)
)



CREATE TABLE notices (
	node_id TEXT NOT NULL,
	notice_id TEXT NOT NULL,
	kind TEXT NOT NULL,
	heard_at_us BIGINT DEFAULT 0 NOT NULL,
	deadline_us BIGINT,
	withdrawn BOOLEAN DEFAULT 0 NOT NULL,
	source TEXT DEFAULT '' NOT NULL,
	text TEXT DEFAULT '' NOT NULL,
	CONSTRAINT pk_notices PRIMARY KEY (node_id, notice_id),
	CONSTRAINT ck_notices_kind CHECK (kind IN ('rebalance', 'preempt', 'maintenance')),
	CONSTRAINT fk_notices_node_id FOREIGN KEY(node_id) REFERENCES nodes (id)
)



CREATE TABLE refusals (
	node_id TEXT NOT NULL,
	code TEXT NOT NULL,
	offer_key TEXT NOT NULL,
	scope TEXT NOT NULL,
	at_us BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_refusals PRIMARY KEY (node_id, code),
	CONSTRAINT ck_refusals_scope CHECK (scope IN ('offer', 'zone', 'region', 'provider')),
	CONSTRAINT fk_refusals_node_id FOREIGN KEY(node_id) REFERENCES nodes (id)
)


CREATE INDEX ix_refusals_at ON refusals (at_us)

CREATE TABLE segments (
	id BIGINT NOT NULL,
	node_id TEXT NOT NULL,
	job_id TEXT NOT NULL,
	kind TEXT NOT NULL,
	start_us BIGINT DEFAULT 0 NOT NULL,
	end_us BIGINT DEFAULT 0 NOT NULL,
	rate_microusd_per_h BIGINT DEFAULT 0 NOT NULL,
	list_rate_microusd_per_h BIGINT DEFAULT 0 NOT NULL,
	best_on_demand_microusd_per_h BIGINT DEFAULT 0 NOT NULL,
	price_source TEXT DEFAULT '' NOT NULL,
	state TEXT NOT NULL,
	cost_microusd BIGINT DEFAULT 0 NOT NULL,
	reconciled_at_us BIGINT DEFAULT 0 NOT NULL,
	invoiced_microusd BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_segments PRIMARY KEY (id),
	CONSTRAINT ck_segments_state CHECK (state IN ('unknown', 'open', 'closed', 'void')),
	CONSTRAINT ck_segments_ended CHECK ((end_us = 0) = (state IN ('unknown', 'open'))),
	CONSTRAINT fk_segments_node_id FOREIGN KEY(node_id) REFERENCES nodes (id),
	CONSTRAINT fk_segments_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
)


CREATE INDEX ix_segments_job ON segments (job_id, cost_microusd)
CREATE UNIQUE INDEX uq_segments_running ON segments (node_id) WHERE end_us = 0

CREATE TABLE audit (
	id BIGINT NOT NULL,
	at_us BIGINT DEFAULT 0 NOT NULL,
	uid BIGINT DEFAULT -1 NOT NULL,
	user_name TEXT DEFAULT '' NOT NULL,
	action TEXT NOT NULL,
	target TEXT DEFAULT '' NOT NULL,
	outcome TEXT NOT NULL,
	text TEXT DEFAULT '' NOT NULL,
	request TEXT DEFAULT '' NOT NULL,
	CONSTRAINT pk_audit PRIMARY KEY (id),
	CONSTRAINT ck_audit_outcome CHECK (outcome IN ('asked', 'done', 'refused', 'failed'))
)


CREATE INDEX ix_audit_at ON audit (at_us)

CREATE TABLE counters (
	name TEXT NOT NULL,
	value BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_counters PRIMARY KEY (name)
)



CREATE TABLE deployment (
	id INTEGER NOT NULL,
	name TEXT NOT NULL,
	created_at_us BIGINT DEFAULT 0 NOT NULL,
	max_nodes BIGINT DEFAULT 0 NOT NULL,
	max_microusd_per_h BIGINT DEFAULT 0 NOT NULL,
	projects TEXT DEFAULT '' NOT NULL,
	key_check BYTEA,
	key_epoch BIGINT DEFAULT 0 NOT NULL,
	quarantine TEXT DEFAULT '' NOT NULL,
	CONSTRAINT pk_deployment PRIMARY KEY (id),
	CONSTRAINT ck_deployment_single CHECK (id = 1)
)



CREATE TABLE disabled_users (
	name TEXT NOT NULL,
	uid BIGINT DEFAULT -1 NOT NULL,
	disabled_at_us BIGINT DEFAULT 0 NOT NULL,
	disabled_by TEXT DEFAULT '' NOT NULL,
	successor TEXT DEFAULT '' NOT NULL,
	CONSTRAINT pk_disabled_users PRIMARY KEY (name)
)



CREATE TABLE duties (
	name TEXT NOT NULL,
	holder TEXT NOT NULL,
	epoch BIGINT DEFAULT 0 NOT NULL,
	until_us BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_duties PRIMARY KEY (name)
)



CREATE TABLE images (
	node_id TEXT NOT NULL,
	job_id TEXT NOT NULL,
	name TEXT NOT NULL,
	provider TEXT NOT NULL,
	region TEXT NOT NULL,
	vendor_name TEXT NOT NULL,
	setup TEXT DEFAULT '' NOT NULL,
	base TEXT DEFAULT '' NOT NULL,
	version TEXT DEFAULT '' NOT NULL,
	asked_at_us BIGINT DEFAULT 0 NOT NULL,
	image_id TEXT DEFAULT '' NOT NULL,
	size_gib INTEGER DEFAULT 0 NOT NULL,
	made_at_us BIGINT DEFAULT 0 NOT NULL,
	unwanted_at_us BIGINT DEFAULT 0 NOT NULL,
	gone_at_us BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_images PRIMARY KEY (node_id)
)



CREATE TABLE jobs (
	id TEXT NOT NULL,
	name TEXT NOT NULL,
	spec TEXT NOT NULL,
	spec_yaml TEXT NOT NULL,
	user_name TEXT DEFAULT '' NOT NULL,
	request_id TEXT,
	job_key BYTEA NOT NULL,
	created_at_us BIGINT DEFAULT 0 NOT NULL,
	desired TEXT NOT NULL,
	approval_asked_by TEXT DEFAULT '' NOT NULL,
	approval_text TEXT DEFAULT '' NOT NULL,
	version BIGINT DEFAULT 0 NOT NULL,
	generation INTEGER DEFAULT 0 NOT NULL,
	outcome TEXT,
	outcome_text TEXT DEFAULT '' NOT NULL,
	finished_at_us BIGINT DEFAULT 0 NOT NULL,
	failures INTEGER DEFAULT 0 NOT NULL,
	place_after_us BIGINT DEFAULT 0 NOT NULL,
	save_wanted_at_us BIGINT DEFAULT 0 NOT NULL,
	waiting_since_us BIGINT DEFAULT 0 NOT NULL,
	waiting_told_us BIGINT DEFAULT 0 NOT NULL,
	unsaved_told_us BIGINT DEFAULT 0 NOT NULL,
	room_since_us BIGINT DEFAULT 0 NOT NULL,
	room_asked_us BIGINT DEFAULT 0 NOT NULL,
	room_microusd_per_h BIGINT DEFAULT 0 NOT NULL,
	offers_at_us BIGINT DEFAULT 0 NOT NULL,
	yields_to TEXT DEFAULT '' NOT NULL,
	yields_since_us BIGINT DEFAULT 0 NOT NULL,
	yielded_at_us BIGINT DEFAULT 0 NOT NULL,
	stop_text TEXT DEFAULT '' NOT NULL,
	wake_at_us BIGINT DEFAULT 0 NOT NULL,
	notes_seen BIGINT DEFAULT 0 NOT NULL,
	last_reason TEXT DEFAULT '' NOT NULL,
	notes BIGINT DEFAULT 0 NOT NULL,
	head_generation INTEGER DEFAULT 0 NOT NULL,
	head_step BIGINT DEFAULT 0 NOT NULL,
	head_manifest TEXT DEFAULT '' NOT NULL,
	head_released BOOLEAN DEFAULT false NOT NULL,
	head_final BOOLEAN DEFAULT false NOT NULL,
	head_seen_at_us BIGINT DEFAULT 0 NOT NULL,
	head_read_at_us BIGINT DEFAULT 0 NOT NULL,
	first_step_at_us BIGINT DEFAULT 0 NOT NULL,
	outputs_at_us BIGINT DEFAULT 0 NOT NULL,
	due_at_us BIGINT DEFAULT 0 NOT NULL,
	claim_owner TEXT DEFAULT '' NOT NULL,
	claim_until_us BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_jobs PRIMARY KEY (id),
	CONSTRAINT uq_jobs_request_id UNIQUE (request_id),
	CONSTRAINT ck_jobs_desired CHECK (desired IN ('run', 'pause', 'cancel')),
	CONSTRAINT ck_jobs_outcome CHECK (outcome IN ('succeeded', 'failed', 'cancelled'))
)


CREATE INDEX ix_jobs_due ON jobs (due_at_us, claim_until_us) WHERE due_at_us > 0
CREATE INDEX ix_jobs_name ON jobs (name)
CREATE INDEX ix_jobs_offers ON jobs (offers_at_us) WHERE offers_at_us > 0
CREATE INDEX ix_jobs_room ON jobs (room_asked_us) WHERE room_asked_us > 0
CREATE UNIQUE INDEX uq_jobs_name_unfinished ON jobs (name) WHERE outcome IS NULL

CREATE TABLE kept_secrets (
	name TEXT NOT NULL,
	value BYTEA NOT NULL,
	set_at_us BIGINT DEFAULT 0 NOT NULL,
	set_by TEXT DEFAULT '' NOT NULL,
	CONSTRAINT pk_kept_secrets PRIMARY KEY (name)
)



CREATE TABLE login_sessions (
	digest TEXT NOT NULL,
	name TEXT NOT NULL,
	account BOOLEAN DEFAULT false NOT NULL,
	role TEXT DEFAULT '' NOT NULL,
	token_id TEXT DEFAULT '' NOT NULL,
	began_at_us BIGINT DEFAULT 0 NOT NULL,
	expires_at_us BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_login_sessions PRIMARY KEY (digest)
)



CREATE TABLE offers (
	provider TEXT NOT NULL,
	key TEXT NOT NULL,
	data TEXT NOT NULL,
	CONSTRAINT pk_offers PRIMARY KEY (provider, key)
)



CREATE TABLE price_history (
	offer_key TEXT NOT NULL,
	at_us BIGINT DEFAULT 0 NOT NULL,
	price_microusd_per_h BIGINT DEFAULT 0 NOT NULL,
	list_microusd_per_h BIGINT DEFAULT 0 NOT NULL,
	price_source TEXT DEFAULT '' NOT NULL,
	CONSTRAINT pk_price_history PRIMARY KEY (offer_key, at_us)
)



CREATE TABLE providers (
	name TEXT NOT NULL,
	disabled TEXT DEFAULT '' NOT NULL,
	at_us BIGINT DEFAULT 0 NOT NULL,
	told_at_us BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_providers PRIMARY KEY (name)
)



CREATE TABLE user_tokens (
	id TEXT NOT NULL,
	name TEXT NOT NULL,
	account BOOLEAN DEFAULT false NOT NULL,
	role TEXT DEFAULT '' NOT NULL,
	digest TEXT NOT NULL,
	made_at_us BIGINT DEFAULT 0 NOT NULL,
	made_by TEXT DEFAULT '' NOT NULL,
	expires_at_us BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_user_tokens PRIMARY KEY (id)
)



CREATE TABLE alerts (
	id BIGINT NOT NULL,
	route TEXT NOT NULL,
	key TEXT DEFAULT '' NOT NULL,
	at_us BIGINT DEFAULT 0 NOT NULL,
	job_id TEXT,
	event TEXT NOT NULL,
	repeats INTEGER DEFAULT 0 NOT NULL,
	tries INTEGER DEFAULT 0 NOT NULL,
	next_at_us BIGINT DEFAULT 0 NOT NULL,
	sent_at_us BIGINT DEFAULT 0 NOT NULL,
	error TEXT DEFAULT '' NOT NULL,
	CONSTRAINT pk_alerts PRIMARY KEY (id),
	CONSTRAINT fk_alerts_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
)


CREATE INDEX ix_alerts_unsent ON alerts (next_at_us) WHERE sent_at_us = 0

CREATE TABLE attempts (
	job_id TEXT NOT NULL,
	generation INTEGER NOT NULL,
	opened_at_us BIGINT DEFAULT 0 NOT NULL,
	cause TEXT NOT NULL,
	CONSTRAINT pk_attempts PRIMARY KEY (job_id, generation),
	CONSTRAINT fk_attempts_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
)



CREATE TABLE carriage (
	job_id TEXT NOT NULL,
	month_us BIGINT DEFAULT 0 NOT NULL,
	microusd BIGINT DEFAULT 0 NOT NULL,
	microusd_per_h BIGINT DEFAULT 0 NOT NULL,
	at_us BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_carriage PRIMARY KEY (job_id, month_us),
	CONSTRAINT fk_carriage_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
)



CREATE TABLE checkpoints (
	job_id TEXT NOT NULL,
	manifest TEXT NOT NULL,
	generation INTEGER DEFAULT 0 NOT NULL,
	step BIGINT DEFAULT 0 NOT NULL,
	bytes BIGINT DEFAULT 0 NOT NULL,
	trigger TEXT DEFAULT '' NOT NULL,
	released BOOLEAN DEFAULT false NOT NULL,
	final BOOLEAN DEFAULT false NOT NULL,
	committed_at_us BIGINT DEFAULT 0 NOT NULL,
	stage_s FLOAT(53) DEFAULT 0 NOT NULL,
	write_s FLOAT(53) DEFAULT 0 NOT NULL,
	near_bytes BIGINT DEFAULT 0 NOT NULL,
	removed_at_us BIGINT DEFAULT 0 NOT NULL,
	shared_bytes BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_checkpoints PRIMARY KEY (job_id, manifest),
	CONSTRAINT fk_checkpoints_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
)



CREATE TABLE drills (
	id TEXT NOT NULL,
	job_id TEXT NOT NULL,
	kind TEXT NOT NULL,
	actor TEXT DEFAULT '' NOT NULL,
	asked_at_us BIGINT DEFAULT 0 NOT NULL,
	within_s FLOAT(53) DEFAULT 0 NOT NULL,
	node_id TEXT DEFAULT '' NOT NULL,
	aimed_at_us BIGINT DEFAULT 0 NOT NULL,
	struck_at_us BIGINT DEFAULT 0 NOT NULL,
	ended_at_us BIGINT DEFAULT 0 NOT NULL,
	outcome TEXT,
	text TEXT DEFAULT '' NOT NULL,
	found TEXT DEFAULT '' NOT NULL,
	CONSTRAINT pk_drills PRIMARY KEY (id),
	CONSTRAINT ck_drills_kind CHECK (kind IN ('sigterm', 'notice', 'kill', 'agent', 'machine')),
	CONSTRAINT ck_drills_outcome CHECK (outcome IN ('passed', 'failed', 'called_off')),
	CONSTRAINT fk_drills_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
)


CREATE UNIQUE INDEX uq_drills_open ON drills (job_id) WHERE ended_at_us = 0

CREATE TABLE evaluations (
	job_id TEXT NOT NULL,
	digest TEXT NOT NULL,
	at_us BIGINT DEFAULT 0 NOT NULL,
	suite TEXT NOT NULL,
	cases BIGINT DEFAULT 0 NOT NULL,
	passed BIGINT DEFAULT 0 NOT NULL,
	tokens_per_s FLOAT(53) DEFAULT 0 NOT NULL,
	ttft_s FLOAT(53) DEFAULT 0 NOT NULL,
	ttft_p95_s FLOAT(53) DEFAULT 0 NOT NULL,
	failed TEXT DEFAULT '' NOT NULL,
	source TEXT DEFAULT '' NOT NULL,
	CONSTRAINT pk_evaluations PRIMARY KEY (job_id, digest),
	CONSTRAINT fk_evaluations_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
)



CREATE TABLE events (
	id BIGINT NOT NULL,
	at_us BIGINT DEFAULT 0 NOT NULL,
	job_id TEXT,
	kind TEXT NOT NULL,
	text TEXT DEFAULT '' NOT NULL,
	node_id TEXT DEFAULT '' NOT NULL,
	severity TEXT NOT NULL,
	alert BOOLEAN DEFAULT false NOT NULL,
	key TEXT DEFAULT '' NOT NULL,
	data TEXT NOT NULL,
	CONSTRAINT pk_events PRIMARY KEY (id),
	CONSTRAINT ck_events_severity CHECK (severity IN ('debug', 'info', 'warning', 'error')),
	CONSTRAINT fk_events_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
)


CREATE INDEX ix_events_job ON events (job_id, id)

CREATE TABLE freight (
	job_id TEXT NOT NULL,
	url TEXT NOT NULL,
	node_id TEXT DEFAULT '' NOT NULL,
	month_us BIGINT DEFAULT 0 NOT NULL,
	bytes BIGINT DEFAULT 0 NOT NULL,
	egress_microusd BIGINT DEFAULT 0 NOT NULL,
	requests_microusd BIGINT DEFAULT 0 NOT NULL,
	began_at_us BIGINT DEFAULT 0 NOT NULL,
	staged_at_us BIGINT DEFAULT 0 NOT NULL,
	gone_at_us BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_freight PRIMARY KEY (job_id, url, node_id, month_us),
	CONSTRAINT fk_freight_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
)



CREATE TABLE outputs (
	job_id TEXT NOT NULL,
	manifest TEXT NOT NULL,
	digest TEXT NOT NULL,
	generation INTEGER DEFAULT 0 NOT NULL,
	rank INTEGER DEFAULT 0 NOT NULL,
	node_id TEXT NOT NULL,
	stored_at_us BIGINT DEFAULT 0 NOT NULL,
	files BIGINT DEFAULT 0 NOT NULL,
	bytes BIGINT DEFAULT 0 NOT NULL,
	new_bytes BIGINT DEFAULT 0 NOT NULL,
	text TEXT DEFAULT '' NOT NULL,
	CONSTRAINT pk_outputs PRIMARY KEY (job_id, manifest),
	CONSTRAINT fk_outputs_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
)



CREATE TABLE progress (
	id BIGINT NOT NULL,
	job_id TEXT NOT NULL,
	generation INTEGER DEFAULT 0 NOT NULL,
	at_us BIGINT DEFAULT 0 NOT NULL,
	from_step BIGINT DEFAULT 0 NOT NULL,
	to_step BIGINT DEFAULT 0 NOT NULL,
	losses TEXT NOT NULL,
	first_at_us BIGINT DEFAULT 0 NOT NULL,
	last_at_us BIGINT DEFAULT 0 NOT NULL,
	tokens BIGINT DEFAULT 0 NOT NULL,
	busy_s FLOAT(53) DEFAULT 0 NOT NULL,
	CONSTRAINT pk_progress PRIMARY KEY (id),
	CONSTRAINT fk_progress_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
)


CREATE INDEX ix_progress_job ON progress (job_id, at_us, generation, to_step, tokens, busy_s)

CREATE TABLE secrets (
	job_id TEXT NOT NULL,
	name TEXT NOT NULL,
	value BYTEA NOT NULL,
	CONSTRAINT pk_secrets PRIMARY KEY (job_id, name),
	CONSTRAINT fk_secrets_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
)



CREATE TABLE nodes (
	id TEXT NOT NULL,
	job_id TEXT NOT NULL,
	generation INTEGER DEFAULT 0 NOT NULL,
	rank INTEGER DEFAULT 0 NOT NULL,
	candidate INTEGER DEFAULT 0 NOT NULL,
	token TEXT NOT NULL,
	offer TEXT NOT NULL,
	offer_key TEXT NOT NULL,
	provider TEXT NOT NULL,
	requested_at_us BIGINT DEFAULT 0 NOT NULL,
	expires_at_us BIGINT DEFAULT 0 NOT NULL,
	image_id TEXT DEFAULT '' NOT NULL,
	image_setup TEXT DEFAULT '' NOT NULL,
	moved_at_us BIGINT DEFAULT 0 NOT NULL,
	gang_size INTEGER DEFAULT 0 NOT NULL,
	state TEXT NOT NULL,
	chosen BOOLEAN DEFAULT false NOT NULL,
	leave_reason TEXT,
	leave_text TEXT DEFAULT '' NOT NULL,
	left_at_us BIGINT DEFAULT 0 NOT NULL,
	terminating_at_us BIGINT DEFAULT 0 NOT NULL,
	drained_at_us BIGINT DEFAULT 0 NOT NULL,
	kept_until_us BIGINT DEFAULT 0 NOT NULL,
	effect TEXT,
	effect_armed_at_us BIGINT DEFAULT 0 NOT NULL,
	effect_due_at_us BIGINT DEFAULT 0 NOT NULL,
	rate_microusd_per_h BIGINT DEFAULT 0 NOT NULL,
	instance_id TEXT DEFAULT '' NOT NULL,
	launched_at_us BIGINT DEFAULT 0 NOT NULL,
	launch_error TEXT DEFAULT '' NOT NULL,
	launch_error_code TEXT DEFAULT '' NOT NULL,
	host TEXT DEFAULT '' NOT NULL,
	private_host TEXT DEFAULT '' NOT NULL,
	port INTEGER DEFAULT 0 NOT NULL,
	ssh_user TEXT DEFAULT '' NOT NULL,
	host_public_key TEXT DEFAULT '' NOT NULL,
	cloud_state TEXT DEFAULT '' NOT NULL,
	surveyed_at_us BIGINT DEFAULT 0 NOT NULL,
	seen_at_us BIGINT DEFAULT 0 NOT NULL,
	missed_at_us BIGINT DEFAULT 0 NOT NULL,
	booted_at_us BIGINT DEFAULT 0 NOT NULL,
	started_at_us BIGINT DEFAULT 0 NOT NULL,
	started_claim TEXT DEFAULT '' NOT NULL,
	told_release_at_us BIGINT DEFAULT 0 NOT NULL,
	told_drain_at_us BIGINT DEFAULT 0 NOT NULL,
	told_save_at_us BIGINT DEFAULT 0 NOT NULL,
	cleaned_at_us BIGINT DEFAULT 0 NOT NULL,
	image_asked_at_us BIGINT DEFAULT 0 NOT NULL,
	imaged_at_us BIGINT DEFAULT 0 NOT NULL,
	image_error TEXT DEFAULT '' NOT NULL,
	terminated_at_us BIGINT DEFAULT 0 NOT NULL,
	renewed_until_us BIGINT DEFAULT 0 NOT NULL,
	lent_at_us BIGINT DEFAULT 0 NOT NULL,
	lent_until_us BIGINT DEFAULT 0 NOT NULL,
	gone_at_us BIGINT DEFAULT 0 NOT NULL,
	effect_failed_kind TEXT DEFAULT '' NOT NULL,
	effect_failed_at_us BIGINT DEFAULT 0 NOT NULL,
	effect_failures INTEGER DEFAULT 0 NOT NULL,
	effect_error TEXT DEFAULT '' NOT NULL,
	hello_at_us BIGINT DEFAULT 0 NOT NULL,
	ready_at_us BIGINT DEFAULT 0 NOT NULL,
	claimed_at_us BIGINT DEFAULT 0 NOT NULL,
	resumed_step BIGINT,
	anew_at_us BIGINT DEFAULT 0 NOT NULL,
	printed_steps TEXT DEFAULT '' NOT NULL,
	first_step_at_us BIGINT DEFAULT 0 NOT NULL,
	last_step BIGINT DEFAULT 0 NOT NULL,
	total_steps BIGINT DEFAULT 0 NOT NULL,
	heard_at_us BIGINT DEFAULT 0 NOT NULL,
	link_down_at_us BIGINT DEFAULT 0 NOT NULL,
	released_at_us BIGINT DEFAULT 0 NOT NULL,
	exit_code INTEGER,
	exited_at_us BIGINT DEFAULT 0 NOT NULL,
	exit_tail TEXT DEFAULT '' NOT NULL,
	exit_cause TEXT DEFAULT '' NOT NULL,
	failed_part TEXT DEFAULT '' NOT NULL,
	setup_failed BOOLEAN DEFAULT false NOT NULL,
	disk_full_at_us BIGINT DEFAULT 0 NOT NULL,
	wiped_at_us BIGINT DEFAULT 0 NOT NULL,
	wiped_text TEXT DEFAULT '' NOT NULL,
	outputs_since_us BIGINT DEFAULT 0 NOT NULL,
	journal_seq BIGINT DEFAULT 0 NOT NULL,
	wire BIGINT DEFAULT 0 NOT NULL,
	drill TEXT DEFAULT '' NOT NULL,
	CONSTRAINT pk_nodes PRIMARY KEY (id),
	CONSTRAINT uq_nodes_token UNIQUE (token),
	CONSTRAINT fk_nodes_job_id FOREIGN KEY(job_id, generation) REFERENCES attempts (job_id, generation),
	CONSTRAINT ck_nodes_state CHECK (state IN ('launching', 'booting', 'running', 'draining', 'terminating', 'gone')),
	CONSTRAINT ck_nodes_leave_reason CHECK (leave_reason IN ('preempted', 'lost', 'boot_timeout', 'capacity', 'failed', 'done', 'cancelled', 'outbid', 'moved', 'hedge_lost', 'drill')),
	CONSTRAINT ck_nodes_effect CHECK (effect IN ('launch', 'resolve', 'survey', 'boot', 'start', 'release', 'drain', 'save', 'read_head', 'image', 'terminate'))
)


CREATE INDEX ix_nodes_active ON nodes (provider, rate_microusd_per_h, job_id) WHERE state <> 'gone'
CREATE INDEX ix_nodes_down ON nodes (id) WHERE link_down_at_us > 0
CREATE INDEX ix_nodes_instance ON nodes (provider, instance_id)
CREATE INDEX ix_nodes_job ON nodes (job_id, generation)
CREATE INDEX ix_nodes_requested ON nodes (requested_at_us)
CREATE UNIQUE INDEX uq_nodes_chosen_rank ON nodes (job_id, rank) WHERE chosen AND state IN ('booting', 'running')

CREATE TABLE admissions (
	node_id TEXT NOT NULL,
	user_name TEXT NOT NULL,
	admitted_at_us BIGINT DEFAULT 0 NOT NULL,
	dismissed_at_us BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_admissions PRIMARY KEY (node_id, user_name),
	CONSTRAINT fk_admissions_node_id FOREIGN KEY(node_id) REFERENCES nodes (id)
)


CREATE INDEX ix_admissions_user ON admissions (user_name)

CREATE TABLE log_offsets (
	node_id TEXT NOT NULL,
	stream TEXT NOT NULL,
	stored_bytes BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_log_offsets PRIMARY KEY (node_id, stream),
	CONSTRAINT fk_log_offsets_node_id FOREIGN KEY(node_id) REFERENCES nodes (id)
)



CREATE TABLE notices (
	node_id TEXT NOT NULL,
	notice_id TEXT NOT NULL,
	kind TEXT NOT NULL,
	heard_at_us BIGINT DEFAULT 0 NOT NULL,
	deadline_us BIGINT,
	withdrawn BOOLEAN DEFAULT false NOT NULL,
	source TEXT DEFAULT '' NOT NULL,
	text TEXT DEFAULT '' NOT NULL,
	CONSTRAINT pk_notices PRIMARY KEY (node_id, notice_id),
	CONSTRAINT ck_notices_kind CHECK (kind IN ('rebalance', 'preempt', 'maintenance')),
	CONSTRAINT fk_notices_node_id FOREIGN KEY(node_id) REFERENCES nodes (id)
)



CREATE TABLE refusals (
	node_id TEXT NOT NULL,
	code TEXT NOT NULL,
	offer_key TEXT NOT NULL,
	scope TEXT NOT NULL,
	at_us BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_refusals PRIMARY KEY (node_id, code),
	CONSTRAINT ck_refusals_scope CHECK (scope IN ('offer', 'zone', 'region', 'provider')),
	CONSTRAINT fk_refusals_node_id FOREIGN KEY(node_id) REFERENCES nodes (id)
)


CREATE INDEX ix_refusals_at ON refusals (at_us)

CREATE TABLE segments (
	id BIGINT NOT NULL,
	node_id TEXT NOT NULL,
	job_id TEXT NOT NULL,
	kind TEXT NOT NULL,
	start_us BIGINT DEFAULT 0 NOT NULL,
	end_us BIGINT DEFAULT 0 NOT NULL,
	rate_microusd_per_h BIGINT DEFAULT 0 NOT NULL,
	list_rate_microusd_per_h BIGINT DEFAULT 0 NOT NULL,
	best_on_demand_microusd_per_h BIGINT DEFAULT 0 NOT NULL,
	price_source TEXT DEFAULT '' NOT NULL,
	state TEXT NOT NULL,
	cost_microusd BIGINT DEFAULT 0 NOT NULL,
	reconciled_at_us BIGINT DEFAULT 0 NOT NULL,
	invoiced_microusd BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_segments PRIMARY KEY (id),
	CONSTRAINT ck_segments_state CHECK (state IN ('unknown', 'open', 'closed', 'void')),
	CONSTRAINT ck_segments_ended CHECK ((end_us = 0) = (state IN ('unknown', 'open'))),
	CONSTRAINT fk_segments_node_id FOREIGN KEY(node_id) REFERENCES nodes (id),
	CONSTRAINT fk_segments_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
)


CREATE INDEX ix_segments_job ON segments (job_id, cost_microusd)
CREATE UNIQUE INDEX uq_segments_running ON segments (node_id) WHERE end_us = 0
('0001', '0002', '0003', '0004', '0005', '0006', '0007', '0008', '0009', '0010', '0011', '0012', '0013', '0014', '0015', '0016', '0017', '0018', '0019', '0020', '0021', '0022', '0023', '0024', '0025', '0026', '0027', '0028', '0029', '0030', '0031', '0032', '0033', '0034')
