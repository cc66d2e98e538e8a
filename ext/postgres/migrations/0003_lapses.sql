-- How many leases of a message have ended before it was settled or given back.
ALTER TABLE weir_messages ADD COLUMN IF NOT EXISTS lapses bigint NOT NULL DEFAULT 0;
