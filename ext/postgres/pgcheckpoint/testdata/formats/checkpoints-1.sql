CREATE TABLE IF NOT EXISTS weir_migrations (component TEXT NOT NULL, version INTEGER NOT NULL, PRIMARY KEY (component, version));

-- 0001_checkpoints.sql
-- The checkpoints of pipelines. The row of a pipeline in weir_pipelines is locked while a checkpoint is saved.
CREATE TABLE IF NOT EXISTS weir_pipelines (
	name   text        PRIMARY KEY,
	epoch  numeric(20) NOT NULL, -- of the owner
	opened bigint      NOT NULL, -- how often a store was opened: the last one has the pipeline
	newest numeric(20) NOT NULL  -- the highest number of a checkpoint, 0: none
);
CREATE TABLE IF NOT EXISTS weir_checkpoints (
	pipeline text        NOT NULL REFERENCES weir_pipelines ON DELETE CASCADE,
	id       numeric(20) NOT NULL,
	snapshot bytea       NOT NULL, -- as Snapshot.WriteTo writes it
	PRIMARY KEY (pipeline, id)
);

-- rows
INSERT INTO weir_pipelines (name, epoch, opened, newest) OVERRIDING SYSTEM VALUE VALUES
	('copy', '3', 1, '7')
	ON CONFLICT DO NOTHING;
INSERT INTO weir_checkpoints (pipeline, id, snapshot) OVERRIDING SYSTEM VALUE VALUES
	('copy', '7', '\x8957454952434b0a02000000cb8a87b10700000000000000a53557690000000080756928010000000146267c99020000000200000000000000696e3a08183f0102c9f226e15900000000000000224dc97d0a52494557890d0a')
	ON CONFLICT DO NOTHING;
INSERT INTO weir_migrations (component, version) VALUES
	('pgcheckpoint', 1)
	ON CONFLICT DO NOTHING;
