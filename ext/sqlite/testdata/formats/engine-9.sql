CREATE TABLE IF NOT EXISTS weir_migrations (component TEXT NOT NULL, version INTEGER NOT NULL, PRIMARY KEY (component, version));

-- 0001_messages.sql
-- Messages in queues: github.com/weirflow/weir/ext/sqlite. Times are nanoseconds since 1970.
CREATE TABLE IF NOT EXISTS weir_messages (
	position INTEGER PRIMARY KEY AUTOINCREMENT,
	queue    TEXT    NOT NULL,
	at       INTEGER NOT NULL,           -- when it can be taken: it is due, or its lease has ended
	due      INTEGER NOT NULL,
	arrived  INTEGER NOT NULL,
	leased   INTEGER,                    -- until when; NULL: never taken, or given back
	fence    INTEGER NOT NULL DEFAULT 0, -- how often it was taken
	visit    INTEGER NOT NULL,
	merges   INTEGER NOT NULL,
	cause    TEXT    NOT NULL,           -- of dead letters
	meta     TEXT    NOT NULL,           -- JSON
	schema   BLOB,
	payload  BLOB
) STRICT;

CREATE UNIQUE INDEX IF NOT EXISTS weir_messages_identity ON weir_messages (queue, meta->>'id', visit, merges);
CREATE INDEX IF NOT EXISTS weir_messages_at ON weir_messages (queue, at);
CREATE INDEX IF NOT EXISTS weir_messages_queue ON weir_messages (queue);

-- The highest time that the stores of this file have used: their clock does not go back when the machine's does.
CREATE TABLE IF NOT EXISTS weir_messages_clock (
	id  INTEGER PRIMARY KEY CHECK (id = 1),
	now INTEGER NOT NULL
) STRICT;

-- 0002_locks.sql
-- Locks. Times are nanoseconds since 1970. A lock that was given back keeps its row, so its fencing numbers go on.
CREATE TABLE IF NOT EXISTS weir_locks (
	name  TEXT PRIMARY KEY,
	owner TEXT    NOT NULL, -- '': free
	fence INTEGER NOT NULL,
	until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- 0003_lapses.sql
-- How many leases of a message have ended before it was settled or given back.
ALTER TABLE weir_messages ADD COLUMN lapses INTEGER NOT NULL DEFAULT 0;

-- 0004_records.sql
-- Records beside messages: jobs, the lines of their log, and what workers say of themselves.
CREATE TABLE IF NOT EXISTS weir_records (
	kind    TEXT    NOT NULL,
	name    TEXT    NOT NULL,
	version INTEGER NOT NULL, -- rises with each change
	value   TEXT    NOT NULL,
	PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;

-- 0005_old_locks.sql
-- A lock whose lease ended long ago loses its row. The row with the empty name has the highest fencing number of those that went: a name
-- that comes back goes on behind it.
CREATE INDEX IF NOT EXISTS weir_locks_until ON weir_locks (until);
INSERT INTO weir_locks (name, owner, fence, until) VALUES ('', '', 0, 9223372036854775807) ON CONFLICT DO NOTHING;

-- 0006_keys.sql
-- Messages by key, for queues that take the keys in turn. Messages without a key are not in it.
CREATE INDEX IF NOT EXISTS weir_messages_key ON weir_messages (queue, meta->>'key', at, position) WHERE meta->>'key' IS NOT NULL;

-- 0007_put.sql
-- compatible: programs of earlier versions may start beside this file.
-- A message that was handed over is distinguished by the origin of its put as well, so a later put under its id is kept beside it (law W5).
-- Messages without an origin have ''. Programs of earlier versions pass the header on, so the index holds for their messages, too.
DROP INDEX IF EXISTS weir_messages_identity;
CREATE UNIQUE INDEX weir_messages_identity
	ON weir_messages (queue, meta->>'id', visit, merges, coalesce(meta->'headers'->>'Weir-Put', ''));

-- 0008_heads.sql
-- compatible: programs of earlier versions may start beside this file.
-- Queues whose keys are in order deliver one message of a key at a time: its head. Due messages behind it are parked: at is 9223372036854775806.
-- When a head goes, the next message of its key becomes the head. Programs of earlier versions do not do that, so programs that take the keys in
-- order look for messages that are parked and have no head.
ALTER TABLE weir_messages ADD COLUMN head INTEGER NOT NULL DEFAULT 0;
CREATE UNIQUE INDEX IF NOT EXISTS weir_messages_head ON weir_messages (queue, meta->>'key') WHERE head = 1;
CREATE INDEX IF NOT EXISTS weir_messages_order ON weir_messages (queue, meta->>'key') WHERE meta->>'key' IS NOT NULL;

-- 0009_in_flight.sql
-- compatible: programs of earlier versions may start beside this file.
-- Queues that bound the messages of a key in flight count their leases. Such a lease sets limited to its fence. Other leases, as of programs of
-- earlier versions, raise the fence only, and do not count. So the index has no messages of other queues.
ALTER TABLE weir_messages ADD COLUMN limited INTEGER;
CREATE INDEX IF NOT EXISTS weir_messages_flight ON weir_messages (meta->>'key', queue) WHERE limited = fence AND leased IS NOT NULL;

-- rows
INSERT INTO weir_messages (position, queue, at, due, arrived, leased, fence, visit, merges, cause, meta, schema, payload, lapses, head, limited) VALUES
	(1, 'orders', 1767323105678000000, 1767323045678000000, 1767323045678000000, 1767323105678000000, 2, 2, 1, '', '{"id":"leased","key":"customer 5%FF","origin":{"source":"orders","partition":"0","position":"17"},"visit":2,"attempts":4,"firstFailure":"2026-01-02T03:04:05.678Z","lastFailure":"2026-01-02T03:04:06.678Z","lastError":"503: Ä, again","reasons":["unavailable","a,b"],"outcomeUnknown":true,"request":"\"0af7651916cd43dd8448eb211c80319c\";seq=1;attempt=4","remembered":"2026-01-03T03:04:05.678Z","provider":"acquirer-2","merges":1,"headers":{"Weir-Colour":"of a later version","Weir-Deadline":"2026-01-02T04:04:05.678Z","tenant":"blue"}}', X'6a', X'7b226e223a357d', 0, 0, NULL)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_messages (position, queue, at, due, arrived, leased, fence, visit, merges, cause, meta, schema, payload, lapses, head, limited) VALUES
	(2, 'orders', 1767326645678000000, 1767326645678000000, 1767323045678000000, NULL, 0, 2, 1, '', '{"id":"waits","key":"customer 5%FF","origin":{"source":"orders","partition":"0","position":"17"},"visit":2,"attempts":4,"firstFailure":"2026-01-02T03:04:05.678Z","lastFailure":"2026-01-02T03:04:06.678Z","lastError":"503: Ä, again","reasons":["unavailable","a,b"],"outcomeUnknown":true,"request":"\"0af7651916cd43dd8448eb211c80319c\";seq=1;attempt=4","remembered":"2026-01-03T03:04:05.678Z","provider":"acquirer-2","merges":1,"headers":{"Weir-Colour":"of a later version","Weir-Deadline":"2026-01-02T04:04:05.678Z","tenant":"blue"}}', X'6a', X'7b226e223a357d', 0, 0, NULL)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_messages (position, queue, at, due, arrived, leased, fence, visit, merges, cause, meta, schema, payload, lapses, head, limited) VALUES
	(3, 'orders', 9223372036854775807, 1767323045678000000, 1767323045678000000, NULL, 0, 2, 1, '', '{"id":"held","key":"customer 5%FF","origin":{"source":"orders","partition":"0","position":"17"},"visit":2,"attempts":4,"firstFailure":"2026-01-02T03:04:05.678Z","lastFailure":"2026-01-02T03:04:06.678Z","lastError":"503: Ä, again","reasons":["unavailable","a,b"],"outcomeUnknown":true,"request":"\"0af7651916cd43dd8448eb211c80319c\";seq=1;attempt=4","remembered":"2026-01-03T03:04:05.678Z","provider":"acquirer-2","merges":1,"headers":{"Weir-Colour":"of a later version","Weir-Deadline":"2026-01-02T04:04:05.678Z","tenant":"blue"}}', X'6a', X'7b226e223a357d', 0, 0, NULL)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_messages (position, queue, at, due, arrived, leased, fence, visit, merges, cause, meta, schema, payload, lapses, head, limited) VALUES
	(4, 'orders-dead', 1767323045678000000, 1767323045678000000, 1767323045678000000, NULL, 0, 2, 1, 'exhausted', '{"id":"orders/0/17","key":"customer 5%FF","origin":{"source":"orders","partition":"0","position":"17"},"visit":2,"attempts":4,"firstFailure":"2026-01-02T03:04:05.678Z","lastFailure":"2026-01-02T03:04:06.678Z","lastError":"503: Ä, again","reasons":["unavailable","a,b"],"outcomeUnknown":true,"request":"\"0af7651916cd43dd8448eb211c80319c\";seq=1;attempt=4","remembered":"2026-01-03T03:04:05.678Z","provider":"acquirer-2","merges":1,"headers":{"Weir-Colour":"of a later version","Weir-Deadline":"2026-01-02T04:04:05.678Z","tenant":"blue"}}', X'6a', X'7b226e223a357d', 0, 0, NULL)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_messages (position, queue, at, due, arrived, leased, fence, visit, merges, cause, meta, schema, payload, lapses, head, limited) VALUES
	(5, 'in order', 1767323105678000000, 1767323045678000000, 1767323045678000000, 1767323105678000000, 1, 2, 1, '', '{"id":"head","key":"customer 5%FF","origin":{"source":"orders","partition":"0","position":"17"},"visit":2,"attempts":4,"firstFailure":"2026-01-02T03:04:05.678Z","lastFailure":"2026-01-02T03:04:06.678Z","lastError":"503: Ä, again","reasons":["unavailable","a,b"],"outcomeUnknown":true,"request":"\"0af7651916cd43dd8448eb211c80319c\";seq=1;attempt=4","remembered":"2026-01-03T03:04:05.678Z","provider":"acquirer-2","merges":1,"headers":{"Weir-Colour":"of a later version","Weir-Deadline":"2026-01-02T04:04:05.678Z","tenant":"blue"}}', X'6a', X'7b226e223a357d', 0, 1, NULL)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_messages (position, queue, at, due, arrived, leased, fence, visit, merges, cause, meta, schema, payload, lapses, head, limited) VALUES
	(6, 'in order', 9223372036854775806, 1767323045678000000, 1767323045678000000, NULL, 0, 2, 1, '', '{"id":"parked","key":"customer 5%FF","origin":{"source":"orders","partition":"0","position":"17"},"visit":2,"attempts":4,"firstFailure":"2026-01-02T03:04:05.678Z","lastFailure":"2026-01-02T03:04:06.678Z","lastError":"503: Ä, again","reasons":["unavailable","a,b"],"outcomeUnknown":true,"request":"\"0af7651916cd43dd8448eb211c80319c\";seq=1;attempt=4","remembered":"2026-01-03T03:04:05.678Z","provider":"acquirer-2","merges":1,"headers":{"Weir-Colour":"of a later version","Weir-Deadline":"2026-01-02T04:04:05.678Z","tenant":"blue"}}', X'6a', X'7b226e223a357d', 0, 0, NULL)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_messages (position, queue, at, due, arrived, leased, fence, visit, merges, cause, meta, schema, payload, lapses, head, limited) VALUES
	(7, 'by key', 1767323105678000000, 1767323045678000000, 1767323045678000000, 1767323105678000000, 1, 2, 1, '', '{"id":"leased","key":"customer 5%FF","origin":{"source":"orders","partition":"0","position":"17"},"visit":2,"attempts":4,"firstFailure":"2026-01-02T03:04:05.678Z","lastFailure":"2026-01-02T03:04:06.678Z","lastError":"503: Ä, again","reasons":["unavailable","a,b"],"outcomeUnknown":true,"request":"\"0af7651916cd43dd8448eb211c80319c\";seq=1;attempt=4","remembered":"2026-01-03T03:04:05.678Z","provider":"acquirer-2","merges":1,"headers":{"Weir-Colour":"of a later version","Weir-Deadline":"2026-01-02T04:04:05.678Z","tenant":"blue"}}', X'6a', X'7b226e223a357d', 0, 0, 1)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_messages (position, queue, at, due, arrived, leased, fence, visit, merges, cause, meta, schema, payload, lapses, head, limited) VALUES
	(8, 'by key', 1767323045678000000, 1767323045678000000, 1767323045678000000, NULL, 0, 2, 1, '', '{"id":"waits","key":"customer 5%FF","origin":{"source":"orders","partition":"0","position":"17"},"visit":2,"attempts":4,"firstFailure":"2026-01-02T03:04:05.678Z","lastFailure":"2026-01-02T03:04:06.678Z","lastError":"503: Ä, again","reasons":["unavailable","a,b"],"outcomeUnknown":true,"request":"\"0af7651916cd43dd8448eb211c80319c\";seq=1;attempt=4","remembered":"2026-01-03T03:04:05.678Z","provider":"acquirer-2","merges":1,"headers":{"Weir-Colour":"of a later version","Weir-Deadline":"2026-01-02T04:04:05.678Z","tenant":"blue"}}', X'6a', X'7b226e223a357d', 0, 0, NULL)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_messages_clock (id, now) VALUES
	(1, 1767323045678000000)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_locks (name, owner, fence, until) VALUES
	('', '', 0, 9223372036854775807)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_locks (name, owner, fence, until) VALUES
	('relay', 'host 1', 1, 1767323105678000000)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_records (kind, name, version, value) VALUES
	('job', '000000000001', 1, '{}')
	ON CONFLICT DO NOTHING;
INSERT INTO weir_migrations (component, version) VALUES
	('sqlitestore', 1)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_migrations (component, version) VALUES
	('sqlitestore', 2)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_migrations (component, version) VALUES
	('sqlitestore', 3)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_migrations (component, version) VALUES
	('sqlitestore', 4)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_migrations (component, version) VALUES
	('sqlitestore', 5)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_migrations (component, version) VALUES
	('sqlitestore', 6)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_migrations (component, version) VALUES
	('sqlitestore compatible', 7)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_migrations (component, version) VALUES
	('sqlitestore compatible', 8)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_migrations (component, version) VALUES
	('sqlitestore compatible', 9)
	ON CONFLICT DO NOTHING;
