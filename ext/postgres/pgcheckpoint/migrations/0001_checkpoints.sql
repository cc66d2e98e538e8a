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
