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
