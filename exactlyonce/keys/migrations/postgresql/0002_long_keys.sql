-- Keys of up to 255 bytes, as clients of other services send them, and an index for lists of requests by age.

ALTER TABLE weir_keys DROP CONSTRAINT IF EXISTS weir_keys_idempotency_key_check;
ALTER TABLE weir_keys ADD CONSTRAINT weir_keys_idempotency_key_check CHECK (length(idempotency_key) BETWEEN 1 AND 255) NOT VALID;
CREATE INDEX IF NOT EXISTS weir_keys_age ON weir_keys (created_at, id);
