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
	request_body    BLOB NOT NULL,
	fingerprint     BLOB NOT NULL,     -- SHA-256 of the request
	created_at      INTEGER NOT NULL,
	last_run_at     INTEGER NOT NULL,
	locked_at       INTEGER,           -- NULL: no attempt runs
	expires_at      INTEGER NOT NULL,
	fence           INTEGER NOT NULL,  -- rises with each attempt
	recovery_point  TEXT NOT NULL CHECK (length(recovery_point) <= 50),
	response        BLOB,              -- NULL: not finished
	UNIQUE (principal, idempotency_key)
) STRICT;

CREATE INDEX IF NOT EXISTS weir_keys_finished ON weir_keys (expires_at) WHERE response IS NOT NULL;
CREATE INDEX IF NOT EXISTS weir_keys_unfinished ON weir_keys (id) WHERE response IS NULL;

CREATE TABLE IF NOT EXISTS weir_key_steps (
	key_id   TEXT NOT NULL REFERENCES weir_keys (id) ON DELETE CASCADE,
	position INTEGER NOT NULL,
	name     TEXT NOT NULL,
	result   BLOB NOT NULL,            -- JSON
	PRIMARY KEY (key_id, position)
) STRICT;

-- 0002_long_keys.sql
-- Keys of up to 255 bytes, as clients of other services send them, and an index for lists of requests by age. SQLite cannot change a CHECK, so both
-- tables are made again, the steps too: to drop the table that they refer to would remove them.

CREATE TABLE weir_keys_2 (
	id              TEXT PRIMARY KEY,  -- random; keys for calls of other services derive from it
	principal       TEXT NOT NULL,     -- the user
	idempotency_key TEXT NOT NULL CHECK (length(idempotency_key) BETWEEN 1 AND 255),
	operation       TEXT NOT NULL,     -- which handler runs it
	request_method  TEXT NOT NULL CHECK (length(request_method) <= 10),
	request_path    TEXT NOT NULL CHECK (length(request_path) <= 100),
	request_query   TEXT NOT NULL,
	request_type    TEXT NOT NULL,     -- Content-Type
	request_body    BLOB NOT NULL,
	fingerprint     BLOB NOT NULL,     -- SHA-256 of the request
	created_at      INTEGER NOT NULL,
	last_run_at     INTEGER NOT NULL,
	locked_at       INTEGER,           -- NULL: no attempt runs
	expires_at      INTEGER NOT NULL,
	fence           INTEGER NOT NULL,  -- rises with each attempt
	recovery_point  TEXT NOT NULL CHECK (length(recovery_point) <= 50),
	response        BLOB,              -- NULL: not finished
	UNIQUE (principal, idempotency_key)
) STRICT;
INSERT INTO weir_keys_2 SELECT id, principal, idempotency_key, operation, request_method, request_path, request_query, request_type, request_body,
	fingerprint, created_at, last_run_at, locked_at, expires_at, fence, recovery_point, response FROM weir_keys;

CREATE TABLE weir_key_steps_2 (
	key_id   TEXT NOT NULL REFERENCES weir_keys_2 (id) ON DELETE CASCADE,
	position INTEGER NOT NULL,
	name     TEXT NOT NULL,
	result   BLOB NOT NULL,            -- JSON
	PRIMARY KEY (key_id, position)
) STRICT;
INSERT INTO weir_key_steps_2 SELECT key_id, position, name, result FROM weir_key_steps;

DROP TABLE weir_key_steps;
DROP TABLE weir_keys;
ALTER TABLE weir_keys_2 RENAME TO weir_keys;
ALTER TABLE weir_key_steps_2 RENAME TO weir_key_steps;

CREATE INDEX weir_keys_finished ON weir_keys (expires_at) WHERE response IS NOT NULL;
CREATE INDEX weir_keys_unfinished ON weir_keys (id) WHERE response IS NULL;
CREATE INDEX weir_keys_age ON weir_keys (created_at, id);

-- rows
INSERT INTO weir_keys (id, principal, idempotency_key, operation, request_method, request_path, request_query, request_type, request_body, fingerprint, created_at, last_run_at, locked_at, expires_at, fence, recovery_point, response) VALUES
	('0af7651916cd43dd8448eb211c80319c', 'ann', '1', 'order', 'POST', '/orders', 'a=b', 'application/json', X'7b226e223a357d', X'010a45db9229f3ddc0b35ab410edc91dea74a7c04880d68dc420e606b37ed4be', 1767323045000000, 1767323045000000, NULL, 1767409445000000, 1, 'finished', X'01c801010c436f6e74656e742d5479706501106170706c69636174696f6e2f6a736f6e22646f6e65220a')
	ON CONFLICT DO NOTHING;
INSERT INTO weir_key_steps (key_id, position, name, result) VALUES
	('0af7651916cd43dd8448eb211c80319c', 1, 'charge', X'35')
	ON CONFLICT DO NOTHING;
INSERT INTO weir_migrations (component, version) VALUES
	('keys', 1)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_migrations (component, version) VALUES
	('keys', 2)
	ON CONFLICT DO NOTHING;
