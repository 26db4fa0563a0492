-- Who takes over on-call shifts, as people decide it at run time. Who stands in now:
--   SELECT schedule, users, created_by, note, ends_at FROM oncall_overrides
--   WHERE strftime('%Y-%m-%dT%H:%M:%fZ', 'now') BETWEEN starts_at AND ends_at;
CREATE TABLE oncall_overrides (
    id         TEXT PRIMARY KEY,
    schedule   TEXT NOT NULL,
    -- Who takes over, both people of a swap.
    users      TEXT NOT NULL,
    starts_at  TEXT NOT NULL,
    -- When it ends, or was removed.
    ends_at    TEXT NOT NULL,
    created_by TEXT NOT NULL,
    note       TEXT NOT NULL,
    -- The whole override as JSON: what the program reads back.
    record     TEXT NOT NULL
);
CREATE INDEX oncall_overrides_by_end ON oncall_overrides (ends_at);
