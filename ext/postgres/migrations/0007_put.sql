-- compatible: programs of earlier versions may start beside this file.
-- A message that was handed over is distinguished by the origin of its put as well, so a later put under its id is kept beside it (law W5).
-- Messages without an origin have ''. Programs of earlier versions pass the header on, so the index holds for their messages, too.
-- Reads go on while the new index is made.
CREATE UNIQUE INDEX IF NOT EXISTS weir_messages_put
	ON weir_messages (queue, (meta->>'id'), visit, merges, coalesce(meta->'headers'->>'Weir-Put', ''));
DROP INDEX IF EXISTS weir_messages_identity;
ALTER INDEX weir_messages_put RENAME TO weir_messages_identity;
