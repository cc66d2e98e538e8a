-- Messages by key, for queues that take the keys in turn. Messages without a key are not in it.
CREATE INDEX IF NOT EXISTS weir_messages_key ON weir_messages (queue, (meta->>'key') COLLATE "C", at, position) WHERE meta->>'key' IS NOT NULL;
