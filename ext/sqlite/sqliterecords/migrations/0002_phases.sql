-- When a collection has to look at a client again: it finds those whose time has come by an index.

ALTER TABLE weir_clients ADD COLUMN phase INTEGER NOT NULL DEFAULT 0;    -- 0: may have answers; 1: has none; 2: silent, only its mark is left
ALTER TABLE weir_clients ADD COLUMN phase_at INTEGER NOT NULL DEFAULT 0; -- since when; heard_at in phases 1 and 2; microseconds since 1970
CREATE INDEX weir_clients_phase ON weir_clients (phase, phase_at);
