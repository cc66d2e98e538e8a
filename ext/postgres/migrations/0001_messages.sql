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
