-- compatible: programs of earlier versions may start beside this file.
-- A message that was handed over is distinguished by the origin of its put as well, so a later put under its id is kept beside it (law W5).
-- Messages without an origin have ''. Programs of earlier versions pass the header on, so the index holds for their messages, too.
DROP INDEX IF EXISTS weir_messages_identity;
CREATE UNIQUE INDEX weir_messages_identity
	ON weir_messages (queue, meta->>'id', visit, merges, coalesce(meta->'headers'->>'Weir-Put', ''));
