CREATE TABLE IF NOT EXISTS weir_migrations (component TEXT NOT NULL, version INTEGER NOT NULL, PRIMARY KEY (component, version));

-- 0001_records.sql
-- What is known of clients that send requests with ids, and the answers to them.

CREATE TABLE IF NOT EXISTS weir_clients (
	id       INTEGER PRIMARY KEY,
	scope    TEXT NOT NULL,    -- the authenticated principal
	client   BLOB NOT NULL,    -- 16 bytes
	mark     INTEGER NOT NULL, -- requests below it are stale; above every sequence number once the client is collected
	heard_at INTEGER NOT NULL, -- of the last mark, or of an answer that is gone; microseconds since 1970
	UNIQUE (scope, client)
) STRICT;

CREATE TABLE IF NOT EXISTS weir_answers (
	client_id   INTEGER NOT NULL, -- of weir_clients
	sequence    INTEGER NOT NULL,
	step        TEXT NOT NULL,
	fingerprint BLOB,             -- NULL: not compared
	answer      BLOB,             -- NULL: collected, the request is stale
	stored_at   INTEGER NOT NULL, -- microseconds since 1970
	PRIMARY KEY (client_id, sequence, step)
) STRICT, WITHOUT ROWID;

-- 0002_phases.sql
-- When a collection has to look at a client again: it finds those whose time has come by an index.

ALTER TABLE weir_clients ADD COLUMN phase INTEGER NOT NULL DEFAULT 0;    -- 0: may have answers; 1: has none; 2: silent, only its mark is left
ALTER TABLE weir_clients ADD COLUMN phase_at INTEGER NOT NULL DEFAULT 0; -- since when; heard_at in phases 1 and 2; microseconds since 1970
CREATE INDEX weir_clients_phase ON weir_clients (phase, phase_at);

-- rows
INSERT INTO weir_clients (id, scope, client, mark, heard_at, phase, phase_at) VALUES
	(1, 'ann', X'010000000000000000000000000000ff', 16, 1767323045678000, 0, 1767323045678000)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_answers (client_id, sequence, step, fingerprint, answer, stored_at) VALUES
	(1, 17, 'refund', X'01000000000000000000000000000000000000000000000000000000000000ff', X'646f6e65', 1767323045678000)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_migrations (component, version) VALUES
	('sqliterecords', 1)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_migrations (component, version) VALUES
	('sqliterecords', 2)
	ON CONFLICT DO NOTHING;
