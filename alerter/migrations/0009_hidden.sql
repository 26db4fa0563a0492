-- While something hides an incident, what would call somebody about it waits in the outbox.

-- Since when nothing hides the incident, in Unix milliseconds; NULL while something does.
ALTER TABLE incidents ADD COLUMN loud_ms BIGINT DEFAULT 0;
UPDATE incidents SET loud_ms = NULL WHERE record LIKE '%"quiet":{%';

-- 1 of what is told all the same: a person asked for it, or it is an answer or an end.
ALTER TABLE outbox ADD COLUMN despite_quiet BIGINT NOT NULL DEFAULT 0;
