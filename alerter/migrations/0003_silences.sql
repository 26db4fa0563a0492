-- What people asked to be told nothing about. Who keeps what quiet now:
--   SELECT id, matchers, created_by, comment, ends_at FROM silences WHERE ends_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now');
CREATE TABLE silences (
    id         TEXT PRIMARY KEY,
    matchers   TEXT NOT NULL,
    starts_at  TEXT NOT NULL,
    ends_at    TEXT NOT NULL,
    created_by TEXT NOT NULL,
    comment    TEXT NOT NULL,
    -- The whole silence as JSON: what the program reads back.
    record     TEXT NOT NULL
);
CREATE INDEX silences_by_end ON silences (ends_at);
