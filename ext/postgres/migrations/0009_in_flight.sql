-- compatible: programs of earlier versions may start beside this file.
-- Queues that bound the messages of a key in flight count their leases. Such a lease sets limited to its fence. Other leases, as of programs of
-- earlier versions, raise the fence only, and do not count. So the index has no messages of other queues.
ALTER TABLE weir_messages ADD COLUMN IF NOT EXISTS limited bigint;
CREATE INDEX IF NOT EXISTS weir_messages_flight ON weir_messages ((meta->>'key') COLLATE "C", queue) WHERE limited = fence AND leased IS NOT NULL;
