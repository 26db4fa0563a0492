-- When an incident that a person resolved while it still fired comes back, in Unix milliseconds; NULL of all others.
ALTER TABLE incidents ADD COLUMN reopens_ms BIGINT;
CREATE INDEX incidents_reopening ON incidents (id) WHERE reopens_ms IS NOT NULL;
