-- Answers of calls that are not repeated.

CREATE TABLE IF NOT EXISTS weir_cached_answers (
	cache     TEXT NOT NULL,    -- the name of the cache
	key       BLOB NOT NULL,    -- SHA-256 of the user's key
	answer    BLOB NOT NULL,    -- as codec.Default writes it
	stored_at INTEGER NOT NULL, -- microseconds since 1970
	PRIMARY KEY (cache, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS weir_cached_answers_by_age ON weir_cached_answers (cache, stored_at);
