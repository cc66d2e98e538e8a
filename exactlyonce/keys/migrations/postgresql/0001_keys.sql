-- Requests with an idempotency key, and the steps that they have finished. Times are microseconds since 1970.

CREATE TABLE IF NOT EXISTS weir_keys (
	id              TEXT PRIMARY KEY,  -- random; keys for foreign calls derive from it
	principal       TEXT NOT NULL,     -- the user
	idempotency_key TEXT NOT NULL CHECK (length(idempotency_key) BETWEEN 1 AND 100),
	operation       TEXT NOT NULL,     -- which handler runs it
	request_method  TEXT NOT NULL CHECK (length(request_method) <= 10),
	request_path    TEXT NOT NULL CHECK (length(request_path) <= 100),
	request_query   TEXT NOT NULL,
	request_type    TEXT NOT NULL,     -- Content-Type
	request_body    BYTEA NOT NULL,
	fingerprint     BYTEA NOT NULL,    -- SHA-256 of the request
	created_at      BIGINT NOT NULL,
	last_run_at     BIGINT NOT NULL,
	locked_at       BIGINT,            -- NULL: no attempt runs
	expires_at      BIGINT NOT NULL,
	fence           BIGINT NOT NULL,   -- rises with each attempt
	recovery_point  TEXT NOT NULL CHECK (length(recovery_point) <= 50),
	response        BYTEA,             -- NULL: not finished
	UNIQUE (principal, idempotency_key)
);

CREATE INDEX IF NOT EXISTS weir_keys_finished ON weir_keys (expires_at) WHERE response IS NOT NULL;
CREATE INDEX IF NOT EXISTS weir_keys_unfinished ON weir_keys (id) WHERE response IS NULL;

CREATE TABLE IF NOT EXISTS weir_key_steps (
	key_id   TEXT NOT NULL REFERENCES weir_keys (id) ON DELETE CASCADE,
	position BIGINT NOT NULL,
	name     TEXT NOT NULL,
	result   BYTEA NOT NULL,           -- JSON
	PRIMARY KEY (key_id, position)
);
