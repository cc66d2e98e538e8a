-- Locks. Times are nanoseconds since 1970. A lock that was given back keeps its row, so its fencing numbers go on.
CREATE TABLE IF NOT EXISTS weir_locks (
	name  TEXT PRIMARY KEY,
	owner TEXT    NOT NULL, -- '': free
	fence INTEGER NOT NULL,
	until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
