CREATE TABLE IF NOT EXISTS weir_migrations (component TEXT NOT NULL, version INTEGER NOT NULL, PRIMARY KEY (component, version));

-- 0001_cached_answers.sql
-- Answers of calls that are not repeated.

CREATE TABLE IF NOT EXISTS weir_cached_answers (
	cache     TEXT NOT NULL,    -- the name of the cache
	key       BLOB NOT NULL,    -- SHA-256 of the user's key
	answer    BLOB NOT NULL,    -- as codec.Default writes it
	stored_at INTEGER NOT NULL, -- microseconds since 1970
	PRIMARY KEY (cache, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS weir_cached_answers_by_age ON weir_cached_answers (cache, stored_at);

-- rows
INSERT INTO weir_cached_answers (cache, key, answer, stored_at) VALUES
	('summaries', X'5feceb66ffc86f38d952786c6d696c79c2dbc239dd4e91b46729d73a27fb57e9', X'7b2254657874223a22796573227d', 1767323045678000)
	ON CONFLICT DO NOTHING;
INSERT INTO weir_migrations (component, version) VALUES
	('sqliteanswers', 1)
	ON CONFLICT DO NOTHING;
