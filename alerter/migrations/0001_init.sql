-- Written to mean the same in SQLite and PostgreSQL (where BLOB is a domain over BYTEA).
-- *_at columns are RFC 3339 in UTC: readable at a prompt, and they sort. *_ms columns are Unix milliseconds, for the program.

-- What happened to the runs. Who is burning money now:
--   SELECT id, run, kind, severity, state, opened_at, summary FROM incidents WHERE state <> 'resolved' ORDER BY opened_at;
CREATE TABLE incidents (
    id            TEXT PRIMARY KEY,
    run           TEXT NOT NULL,
    cause         TEXT NOT NULL,
    kind          TEXT NOT NULL,
    severity      TEXT NOT NULL,
    state         TEXT NOT NULL,
    signal        TEXT NOT NULL,
    start_step    BIGINT NOT NULL,
    opened_step   BIGINT NOT NULL,
    detected_step BIGINT NOT NULL,
    end_step      BIGINT,
    -- NULL where the number is not finite; the record has it.
    value         DOUBLE PRECISION,
    expected      DOUBLE PRECISION,
    score         DOUBLE PRECISION,
    summary       TEXT NOT NULL,
    opened_at     TEXT NOT NULL,
    resolved_at   TEXT,
    acked_by      TEXT,
    acked_at      TEXT,
    level         BIGINT NOT NULL,
    next_at       TEXT,
    flaps         BIGINT NOT NULL,
    -- The whole incident as JSON: what the program reads back.
    record        TEXT NOT NULL
);
CREATE INDEX incidents_by_opening ON incidents (opened_at);
CREATE INDEX incidents_unresolved ON incidents (state) WHERE state <> 'resolved';

CREATE TABLE timeline (
    incident TEXT NOT NULL,
    seq      BIGINT NOT NULL,
    at       TEXT NOT NULL,
    at_ms    BIGINT NOT NULL,
    actor    TEXT NOT NULL,
    what     TEXT NOT NULL,
    PRIMARY KEY (incident, seq)
);

-- What is to be told to whom. Pages that have not got out:
--   SELECT incident, receiver, attempts, error FROM outbox
--   WHERE page = 1 AND action = 'trigger' AND state IN ('pending', 'attempting', 'ambiguous');
CREATE TABLE outbox (
    idem_key     TEXT PRIMARY KEY,
    incident     TEXT NOT NULL,
    receiver     TEXT NOT NULL,
    seq          BIGINT NOT NULL,
    action       TEXT NOT NULL,
    page         BIGINT NOT NULL,
    -- pending: not sent. attempting: being sent; found at a start it means that nobody knows. ambiguous: sent, outcome unknown.
    -- delivered, failed, superseded: done.
    state        TEXT NOT NULL,
    attempts     BIGINT NOT NULL,
    created_ms   BIGINT NOT NULL,
    next_ms      BIGINT NOT NULL,
    done_at      TEXT,
    error        TEXT,
    -- 1 when the engine has learned of the outcome, in the transaction that kept what it made of it.
    reported     BIGINT NOT NULL,
    notification TEXT NOT NULL,
    UNIQUE (incident, receiver, seq)
);
CREATE INDEX outbox_undone ON outbox (receiver, incident, seq) WHERE state IN ('pending', 'attempting', 'ambiguous');
CREATE INDEX outbox_unreported ON outbox (reported) WHERE reported = 0 AND state IN ('delivered', 'failed');

-- What a notifier must remember of a conversation, such as the Slack channel id and the timestamp of the message it edits.
CREATE TABLE lanes (
    incident   TEXT NOT NULL,
    receiver   TEXT NOT NULL,
    memory     TEXT NOT NULL,
    updated_ms BIGINT NOT NULL,
    PRIMARY KEY (incident, receiver)
);
CREATE INDEX lanes_by_receiver ON lanes (receiver, updated_ms);

CREATE TABLE engine_state (
    key   TEXT PRIMARY KEY,
    value BLOB NOT NULL
);

-- How far each source's stream has been read, in step with engine_state.
CREATE TABLE cursors (
    source     TEXT PRIMARY KEY,
    cursor     TEXT NOT NULL,
    updated_ms BIGINT NOT NULL
);

CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
);
