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
