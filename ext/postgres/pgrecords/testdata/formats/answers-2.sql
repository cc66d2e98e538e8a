CREATE TABLE IF NOT EXISTS weir_migrations (component TEXT NOT NULL, version INTEGER NOT NULL, PRIMARY KEY (component, version));

-- 0001_records.sql
-- What is known of clients that send requests with ids, and the answers to them.

CREATE TABLE IF NOT EXISTS weir_clients (
	id       BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	scope    TEXT NOT NULL,   -- the authenticated principal
	client   UUID NOT NULL,   -- 128 random bits, whatever their version
	mark     BIGINT NOT NULL, -- requests below it are stale; above every sequence number once the client is collected
	heard_at BIGINT NOT NULL, -- of the last mark, or of an answer that is gone; microseconds since 1970
	UNIQUE (scope, client)
);

CREATE TABLE IF NOT EXISTS weir_answers (
	client_id   BIGINT NOT NULL, -- of weir_clients; no foreign key, whose check would lock the client's row
	sequence    BIGINT NOT NULL,
	step        TEXT NOT NULL,
	fingerprint BYTEA,           -- NULL: not compared
	answer      BYTEA,           -- NULL: collected, the request is stale
	stored_at   BIGINT NOT NULL, -- microseconds since 1970
	PRIMARY KEY (client_id, sequence, step)
);

-- 0002_phases.sql
-- When a collection has to look at a client again: it finds those whose time has come by an index.

ALTER TABLE weir_clients ADD COLUMN IF NOT EXISTS phase SMALLINT NOT NULL DEFAULT 0;  -- 0: may have answers; 1: has none; 2: silent, only its mark is left
ALTER TABLE weir_clients ADD COLUMN IF NOT EXISTS phase_at BIGINT NOT NULL DEFAULT 0; -- since when; heard_at in phases 1 and 2; microseconds since 1970
CREATE INDEX IF NOT EXISTS weir_clients_phase ON weir_clients (phase, phase_at);

-- rows
INSERT INTO weir_clients (id, scope, client, mark, heard_at, phase, phase_at) OVERRIDING SYSTEM VALUE VALUES
	(1, 'ann', '01000000-0000-0000-0000-0000000000ff', 16, 1767323045678000, 0, 1767323045678000)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_answers (client_id, sequence, step, fingerprint, answer, stored_at) OVERRIDING SYSTEM VALUE VALUES
	(1, 17, 'refund', '\x01000000000000000000000000000000000000000000000000000000000000ff', '\x646f6e65', 1767323045678000)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_migrations (component, version) VALUES
	('pgrecords', 1)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_migrations (component, version) VALUES
	('pgrecords', 2)
	ON CONFLICT DO NOTHING;
