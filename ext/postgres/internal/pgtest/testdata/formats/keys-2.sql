CREATE TABLE IF NOT EXISTS weir_migrations (component TEXT NOT NULL, version INTEGER NOT NULL, PRIMARY KEY (component, version));

-- 0001_keys.sql
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

-- 0002_long_keys.sql
-- Keys of up to 255 bytes, as clients of other services send them, and an index for lists of requests by age.

ALTER TABLE weir_keys DROP CONSTRAINT IF EXISTS weir_keys_idempotency_key_check;
ALTER TABLE weir_keys ADD CONSTRAINT weir_keys_idempotency_key_check CHECK (length(idempotency_key) BETWEEN 1 AND 255) NOT VALID;
CREATE INDEX IF NOT EXISTS weir_keys_age ON weir_keys (created_at, id);

-- rows
INSERT INTO weir_keys (id, principal, idempotency_key, operation, request_method, request_path, request_query, request_type, request_body, fingerprint, created_at, last_run_at, locked_at, expires_at, fence, recovery_point, response) OVERRIDING SYSTEM VALUE VALUES
	('0af7651916cd43dd8448eb211c80319c', 'ann', '1', 'order', 'POST', '/orders', 'a=b', 'application/json', '\x7b226e223a357d', '\x010a45db9229f3ddc0b35ab410edc91dea74a7c04880d68dc420e606b37ed4be', 1767323045000000, 1767323045000000, NULL, 1767409445000000, 1, 'finished', '\x01c801010c436f6e74656e742d5479706501106170706c69636174696f6e2f6a736f6e22646f6e65220a')
	ON CONFLICT DO NOTHING;
INSERT INTO weir_key_steps (key_id, position, name, result) OVERRIDING SYSTEM VALUE VALUES
	('0af7651916cd43dd8448eb211c80319c', 1, 'charge', '\x35')
	ON CONFLICT DO NOTHING;
INSERT INTO weir_migrations (component, version) VALUES
	('keys', 1)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_migrations (component, version) VALUES
	('keys', 2)
	ON CONFLICT DO NOTHING;
