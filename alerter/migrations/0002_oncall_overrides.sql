-- Who takes over on-call shifts, as people decide it at run time. Who is on call when is not in
-- these columns: a swap has two shifts, and a later override acts on an earlier one.
CREATE TABLE oncall_overrides (
    id         TEXT PRIMARY KEY,
    schedule   TEXT NOT NULL,
    -- Who takes over, both people of a swap.
    users      TEXT NOT NULL,
    -- The begin of the first shift of a swap.
    starts_at  TEXT NOT NULL,
    -- When the last shift ends, or it was removed.
    ends_at    TEXT NOT NULL,
    created_by TEXT NOT NULL,
    note       TEXT NOT NULL,
    -- The whole override as JSON: what the program reads back.
    record     TEXT NOT NULL
);
CREATE INDEX oncall_overrides_by_end ON oncall_overrides (ends_at);
