-- A lock whose lease ended long ago loses its row. The row with the empty name has the highest fencing number of those that went: a name
-- that comes back goes on behind it.
CREATE INDEX IF NOT EXISTS weir_locks_until ON weir_locks (until);
INSERT INTO weir_locks (name, owner, fence, until) VALUES ('', '', 0, 9223372036854775807) ON CONFLICT DO NOTHING;
