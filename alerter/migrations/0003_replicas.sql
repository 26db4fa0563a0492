-- Several alerters on one PostgreSQL; both tables stay empty in SQLite. All times here are by the
-- clock of the database: the clocks of the replicas may differ.

-- Who may write. Each commit of a replica first updates this row, and does nothing if the epoch is
-- not its own any more. Who leads now:
--   SELECT holder, address, epoch FROM leases;
CREATE TABLE leases (
    name       TEXT PRIMARY KEY,
    -- Raised by each take-over.
    epoch      BIGINT NOT NULL,
    -- The random name of a process.
    holder     TEXT NOT NULL,
    -- Where the others reach it.
    address    TEXT NOT NULL,
    -- The commits under this lease so far.
    commits    BIGINT NOT NULL,
    expires_ms BIGINT NOT NULL
);

-- The replicas that were heard of lately.
CREATE TABLE replicas (
    id      TEXT PRIMARY KEY,
    address TEXT NOT NULL,
    version TEXT NOT NULL,
    -- A digest of the configuration, which must be the same on all.
    config  TEXT NOT NULL,
    seen_ms BIGINT NOT NULL
);
