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
