-- Who changed what, by which door, and what came of it. Rows are added and, when they are old, forgotten; never changed.
CREATE TABLE audit (
    seq     BIGINT NOT NULL PRIMARY KEY,
    at      TEXT NOT NULL,
    at_ms   BIGINT NOT NULL,
    actor   TEXT NOT NULL,
    door    TEXT NOT NULL,
    action  TEXT NOT NULL,
    target  TEXT NOT NULL,
    outcome TEXT NOT NULL,
    remote  TEXT NOT NULL,
    detail  TEXT NOT NULL
);
CREATE INDEX audit_by_time ON audit (at_ms);
