-- Locks. A lock that was given back keeps its row, so its fencing numbers go on.
CREATE TABLE IF NOT EXISTS weir_locks (
	name  text PRIMARY KEY,
	owner text        NOT NULL, -- '': free
	fence bigint      NOT NULL,
	until timestamptz NOT NULL
);
