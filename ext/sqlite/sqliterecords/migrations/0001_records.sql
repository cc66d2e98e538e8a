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
