CREATE TABLE IF NOT EXISTS weir_migrations (component TEXT NOT NULL, version INTEGER NOT NULL, PRIMARY KEY (component, version));

-- 0001_messages.sql
-- Messages in queues: github.com/weirflow/weir/ext/postgres.
CREATE TABLE IF NOT EXISTS weir_messages (
	position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	queue    text        NOT NULL,
	at       timestamptz NOT NULL,           -- when it can be taken: it is due, or its lease has ended
	due      timestamptz NOT NULL,
	arrived  timestamptz NOT NULL,
	leased   timestamptz,                    -- until when; NULL: never taken, or given back
	fence    bigint      NOT NULL DEFAULT 0, -- how often it was taken
	visit    bigint      NOT NULL,
	merges   bigint      NOT NULL,
	cause    text        NOT NULL,           -- of dead letters
	meta     jsonb       NOT NULL,
	schema   bytea,
	payload  bytea
);

CREATE UNIQUE INDEX IF NOT EXISTS weir_messages_identity ON weir_messages (queue, (meta->>'id'), visit, merges);
CREATE INDEX IF NOT EXISTS weir_messages_at ON weir_messages (queue, at, position);
CREATE INDEX IF NOT EXISTS weir_messages_queue ON weir_messages (queue, position);

-- 0002_locks.sql
-- Locks. A lock that was given back keeps its row, so its fencing numbers go on.
CREATE TABLE IF NOT EXISTS weir_locks (
	name  text PRIMARY KEY,
	owner text        NOT NULL, -- '': free
	fence bigint      NOT NULL,
	until timestamptz NOT NULL
);

-- 0003_lapses.sql
-- How many leases of a message have ended before it was settled or given back.
ALTER TABLE weir_messages ADD COLUMN IF NOT EXISTS lapses bigint NOT NULL DEFAULT 0;

-- 0004_records.sql
-- Records beside messages: jobs, the lines of their log, and what workers say of themselves.
CREATE TABLE IF NOT EXISTS weir_records (
	kind    text   NOT NULL,
	name    text   COLLATE "C" NOT NULL,
	version bigint NOT NULL, -- rises with each change
	value   text   NOT NULL,
	PRIMARY KEY (kind, name)
);

-- 0005_old_locks.sql
-- A lock whose lease ended long ago loses its row. The row with the empty name has the highest fencing number of those that went: a name
-- that comes back goes on behind it.
CREATE INDEX IF NOT EXISTS weir_locks_until ON weir_locks (until);
INSERT INTO weir_locks (name, owner, fence, until) VALUES ('', '', 0, 'infinity') ON CONFLICT DO NOTHING;

-- 0006_keys.sql
-- Messages by key, for queues that take the keys in turn. Messages without a key are not in it.
CREATE INDEX IF NOT EXISTS weir_messages_key ON weir_messages (queue, (meta->>'key') COLLATE "C", at, position) WHERE meta->>'key' IS NOT NULL;

-- 0007_put.sql
-- compatible: programs of earlier versions may start beside this file.
-- A message that was handed over is distinguished by the origin of its put as well, so a later put under its id is kept beside it (law W5).
-- Messages without an origin have ''. Programs of earlier versions pass the header on, so the index holds for their messages, too.
-- Reads go on while the new index is made.
CREATE UNIQUE INDEX IF NOT EXISTS weir_messages_put
	ON weir_messages (queue, (meta->>'id'), visit, merges, coalesce(meta->'headers'->>'Weir-Put', ''));
DROP INDEX IF EXISTS weir_messages_identity;
ALTER INDEX weir_messages_put RENAME TO weir_messages_identity;

-- 0008_heads.sql
-- compatible: programs of earlier versions may start beside this file.
-- Queues whose keys are in order deliver one message of a key at a time: its head. Due messages behind it are parked: at is 9999-12-30.
-- When a head goes, the next message of its key becomes the head. Programs of earlier versions do not do that, so programs that take the keys in
-- order look for messages that are parked and have no head. Reads go on while the larger index is made.
CREATE INDEX IF NOT EXISTS weir_messages_order ON weir_messages (queue, (meta->>'key') COLLATE "C", position) WHERE meta->>'key' IS NOT NULL;
ALTER TABLE weir_messages ADD COLUMN IF NOT EXISTS head boolean NOT NULL DEFAULT false;
CREATE UNIQUE INDEX IF NOT EXISTS weir_messages_head ON weir_messages (queue, (meta->>'key') COLLATE "C") WHERE head;

-- 0009_in_flight.sql
-- compatible: programs of earlier versions may start beside this file.
-- Queues that bound the messages of a key in flight count their leases. Such a lease sets limited to its fence. Other leases, as of programs of
-- earlier versions, raise the fence only, and do not count. So the index has no messages of other queues.
ALTER TABLE weir_messages ADD COLUMN IF NOT EXISTS limited bigint;
CREATE INDEX IF NOT EXISTS weir_messages_flight ON weir_messages ((meta->>'key') COLLATE "C", queue) WHERE limited = fence AND leased IS NOT NULL;

-- rows
INSERT INTO weir_messages (position, queue, at, due, arrived, leased, fence, visit, merges, cause, meta, schema, payload, lapses, head, limited) OVERRIDING SYSTEM VALUE VALUES
	(1, 'orders', '2026-01-02 03:05:05.678Z', '2026-01-02 03:04:05.678Z', '2026-01-02 03:04:05.678Z', '2026-01-02 03:05:05.678Z', 2, 2, 1, '', '{"id": "leased", "key": "customer 5%FF", "visit": 2, "merges": 1, "origin": {"source": "orders", "position": "17", "partition": "0"}, "headers": {"tenant": "blue", "Weir-Colour": "of a later version", "Weir-Deadline": "2026-01-02T04:04:05.678Z"}, "reasons": ["unavailable", "a,b"], "request": "\"0af7651916cd43dd8448eb211c80319c\";seq=1;attempt=4", "attempts": 4, "provider": "acquirer-2", "lastError": "503: Ä, again", "remembered": "2026-01-03T03:04:05.678Z", "lastFailure": "2026-01-02T03:04:06.678Z", "firstFailure": "2026-01-02T03:04:05.678Z", "outcomeUnknown": true}', '\x6a', '\x7b226e223a357d', 0, false, NULL)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_messages (position, queue, at, due, arrived, leased, fence, visit, merges, cause, meta, schema, payload, lapses, head, limited) OVERRIDING SYSTEM VALUE VALUES
	(2, 'orders', '2026-01-02 04:04:05.678Z', '2026-01-02 04:04:05.678Z', '2026-01-02 03:04:05.678Z', NULL, 0, 2, 1, '', '{"id": "waits", "key": "customer 5%FF", "visit": 2, "merges": 1, "origin": {"source": "orders", "position": "17", "partition": "0"}, "headers": {"tenant": "blue", "Weir-Colour": "of a later version", "Weir-Deadline": "2026-01-02T04:04:05.678Z"}, "reasons": ["unavailable", "a,b"], "request": "\"0af7651916cd43dd8448eb211c80319c\";seq=1;attempt=4", "attempts": 4, "provider": "acquirer-2", "lastError": "503: Ä, again", "remembered": "2026-01-03T03:04:05.678Z", "lastFailure": "2026-01-02T03:04:06.678Z", "firstFailure": "2026-01-02T03:04:05.678Z", "outcomeUnknown": true}', '\x6a', '\x7b226e223a357d', 0, false, NULL)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_messages (position, queue, at, due, arrived, leased, fence, visit, merges, cause, meta, schema, payload, lapses, head, limited) OVERRIDING SYSTEM VALUE VALUES
	(3, 'orders', '9999-12-31 00:00:00Z', '2026-01-02 03:04:05.678Z', '2026-01-02 03:04:05.678Z', NULL, 0, 2, 1, '', '{"id": "held", "key": "customer 5%FF", "visit": 2, "merges": 1, "origin": {"source": "orders", "position": "17", "partition": "0"}, "headers": {"tenant": "blue", "Weir-Colour": "of a later version", "Weir-Deadline": "2026-01-02T04:04:05.678Z"}, "reasons": ["unavailable", "a,b"], "request": "\"0af7651916cd43dd8448eb211c80319c\";seq=1;attempt=4", "attempts": 4, "provider": "acquirer-2", "lastError": "503: Ä, again", "remembered": "2026-01-03T03:04:05.678Z", "lastFailure": "2026-01-02T03:04:06.678Z", "firstFailure": "2026-01-02T03:04:05.678Z", "outcomeUnknown": true}', '\x6a', '\x7b226e223a357d', 0, false, NULL)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_messages (position, queue, at, due, arrived, leased, fence, visit, merges, cause, meta, schema, payload, lapses, head, limited) OVERRIDING SYSTEM VALUE VALUES
	(4, 'orders-dead', '2026-01-02 03:04:05.678Z', '2026-01-02 03:04:05.678Z', '2026-01-02 03:04:05.678Z', NULL, 0, 2, 1, 'exhausted', '{"id": "orders/0/17", "key": "customer 5%FF", "visit": 2, "merges": 1, "origin": {"source": "orders", "position": "17", "partition": "0"}, "headers": {"tenant": "blue", "Weir-Colour": "of a later version", "Weir-Deadline": "2026-01-02T04:04:05.678Z"}, "reasons": ["unavailable", "a,b"], "request": "\"0af7651916cd43dd8448eb211c80319c\";seq=1;attempt=4", "attempts": 4, "provider": "acquirer-2", "lastError": "503: Ä, again", "remembered": "2026-01-03T03:04:05.678Z", "lastFailure": "2026-01-02T03:04:06.678Z", "firstFailure": "2026-01-02T03:04:05.678Z", "outcomeUnknown": true}', '\x6a', '\x7b226e223a357d', 0, false, NULL)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_messages (position, queue, at, due, arrived, leased, fence, visit, merges, cause, meta, schema, payload, lapses, head, limited) OVERRIDING SYSTEM VALUE VALUES
	(5, 'in order', '2026-01-02 03:05:05.678Z', '2026-01-02 03:04:05.678Z', '2026-01-02 03:04:05.678Z', '2026-01-02 03:05:05.678Z', 1, 2, 1, '', '{"id": "head", "key": "customer 5%FF", "visit": 2, "merges": 1, "origin": {"source": "orders", "position": "17", "partition": "0"}, "headers": {"tenant": "blue", "Weir-Colour": "of a later version", "Weir-Deadline": "2026-01-02T04:04:05.678Z"}, "reasons": ["unavailable", "a,b"], "request": "\"0af7651916cd43dd8448eb211c80319c\";seq=1;attempt=4", "attempts": 4, "provider": "acquirer-2", "lastError": "503: Ä, again", "remembered": "2026-01-03T03:04:05.678Z", "lastFailure": "2026-01-02T03:04:06.678Z", "firstFailure": "2026-01-02T03:04:05.678Z", "outcomeUnknown": true}', '\x6a', '\x7b226e223a357d', 0, true, NULL)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_messages (position, queue, at, due, arrived, leased, fence, visit, merges, cause, meta, schema, payload, lapses, head, limited) OVERRIDING SYSTEM VALUE VALUES
	(6, 'in order', '9999-12-30 00:00:00Z', '2026-01-02 03:04:05.678Z', '2026-01-02 03:04:05.678Z', NULL, 0, 2, 1, '', '{"id": "parked", "key": "customer 5%FF", "visit": 2, "merges": 1, "origin": {"source": "orders", "position": "17", "partition": "0"}, "headers": {"tenant": "blue", "Weir-Colour": "of a later version", "Weir-Deadline": "2026-01-02T04:04:05.678Z"}, "reasons": ["unavailable", "a,b"], "request": "\"0af7651916cd43dd8448eb211c80319c\";seq=1;attempt=4", "attempts": 4, "provider": "acquirer-2", "lastError": "503: Ä, again", "remembered": "2026-01-03T03:04:05.678Z", "lastFailure": "2026-01-02T03:04:06.678Z", "firstFailure": "2026-01-02T03:04:05.678Z", "outcomeUnknown": true}', '\x6a', '\x7b226e223a357d', 0, false, NULL)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_messages (position, queue, at, due, arrived, leased, fence, visit, merges, cause, meta, schema, payload, lapses, head, limited) OVERRIDING SYSTEM VALUE VALUES
	(7, 'by key', '2026-01-02 03:05:05.678Z', '2026-01-02 03:04:05.678Z', '2026-01-02 03:04:05.678Z', '2026-01-02 03:05:05.678Z', 1, 2, 1, '', '{"id": "leased", "key": "customer 5%FF", "visit": 2, "merges": 1, "origin": {"source": "orders", "position": "17", "partition": "0"}, "headers": {"tenant": "blue", "Weir-Colour": "of a later version", "Weir-Deadline": "2026-01-02T04:04:05.678Z"}, "reasons": ["unavailable", "a,b"], "request": "\"0af7651916cd43dd8448eb211c80319c\";seq=1;attempt=4", "attempts": 4, "provider": "acquirer-2", "lastError": "503: Ä, again", "remembered": "2026-01-03T03:04:05.678Z", "lastFailure": "2026-01-02T03:04:06.678Z", "firstFailure": "2026-01-02T03:04:05.678Z", "outcomeUnknown": true}', '\x6a', '\x7b226e223a357d', 0, false, 1)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_messages (position, queue, at, due, arrived, leased, fence, visit, merges, cause, meta, schema, payload, lapses, head, limited) OVERRIDING SYSTEM VALUE VALUES
	(8, 'by key', '2026-01-02 03:04:05.678Z', '2026-01-02 03:04:05.678Z', '2026-01-02 03:04:05.678Z', NULL, 0, 2, 1, '', '{"id": "waits", "key": "customer 5%FF", "visit": 2, "merges": 1, "origin": {"source": "orders", "position": "17", "partition": "0"}, "headers": {"tenant": "blue", "Weir-Colour": "of a later version", "Weir-Deadline": "2026-01-02T04:04:05.678Z"}, "reasons": ["unavailable", "a,b"], "request": "\"0af7651916cd43dd8448eb211c80319c\";seq=1;attempt=4", "attempts": 4, "provider": "acquirer-2", "lastError": "503: Ä, again", "remembered": "2026-01-03T03:04:05.678Z", "lastFailure": "2026-01-02T03:04:06.678Z", "firstFailure": "2026-01-02T03:04:05.678Z", "outcomeUnknown": true}', '\x6a', '\x7b226e223a357d', 0, false, NULL)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_locks (name, owner, fence, until) OVERRIDING SYSTEM VALUE VALUES
	('', '', 0, 'infinity')
	ON CONFLICT DO NOTHING;
INSERT INTO weir_locks (name, owner, fence, until) OVERRIDING SYSTEM VALUE VALUES
	('relay', 'host 1', 1, '2026-01-02 03:05:05.678Z')
	ON CONFLICT DO NOTHING;
INSERT INTO weir_records (kind, name, version, value) OVERRIDING SYSTEM VALUE VALUES
	('job', '000000000001', 1, '{}')
	ON CONFLICT DO NOTHING;
INSERT INTO weir_migrations (component, version) VALUES
	('pgstore', 1)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_migrations (component, version) VALUES
	('pgstore', 2)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_migrations (component, version) VALUES
	('pgstore', 3)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_migrations (component, version) VALUES
	('pgstore', 4)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_migrations (component, version) VALUES
	('pgstore', 5)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_migrations (component, version) VALUES
	('pgstore', 6)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_migrations (component, version) VALUES
	('pgstore compatible', 7)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_migrations (component, version) VALUES
	('pgstore compatible', 8)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_migrations (component, version) VALUES
	('pgstore compatible', 9)
	ON CONFLICT DO NOTHING;
