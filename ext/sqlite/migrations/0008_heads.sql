-- compatible: programs of earlier versions may start beside this file.
-- Queues whose keys are in order deliver one message of a key at a time: its head. Due messages behind it are parked: at is 9223372036854775806.
-- When a head goes, the next message of its key becomes the head. Programs of earlier versions do not do that, so programs that take the keys in
-- order look for messages that are parked and have no head.
ALTER TABLE weir_messages ADD COLUMN head INTEGER NOT NULL DEFAULT 0;
CREATE UNIQUE INDEX IF NOT EXISTS weir_messages_head ON weir_messages (queue, meta->>'key') WHERE head = 1;
CREATE INDEX IF NOT EXISTS weir_messages_order ON weir_messages (queue, meta->>'key') WHERE meta->>'key' IS NOT NULL;
