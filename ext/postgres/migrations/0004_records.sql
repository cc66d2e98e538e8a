-- Records beside messages: jobs, the lines of their log, and what workers say of themselves.
CREATE TABLE IF NOT EXISTS weir_records (
	kind    text   NOT NULL,
	name    text   COLLATE "C" NOT NULL,
	version bigint NOT NULL, -- rises with each change
	value   text   NOT NULL,
	PRIMARY KEY (kind, name)
);
