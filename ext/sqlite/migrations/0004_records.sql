-- Records beside messages: jobs, the lines of their log, and what workers say of themselves.
CREATE TABLE IF NOT EXISTS weir_records (
	kind    TEXT    NOT NULL,
	name    TEXT    NOT NULL,
	version INTEGER NOT NULL, -- rises with each change
	value   TEXT    NOT NULL,
	PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;
