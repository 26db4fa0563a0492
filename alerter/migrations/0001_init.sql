-- Written to mean the same in SQLite and PostgreSQL (where BLOB is a domain over BYTEA).
-- *_at columns are RFC 3339 in UTC: readable at a prompt, and they sort. *_ms columns are Unix
-- milliseconds, for the program.

-- What happened to the runs. Who is burning money now:
--   SELECT id, run, kind, severity, state, opened_at, summary FROM incidents
--   WHERE state <> 'resolved' ORDER BY opened_at;
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
    record        TEXT NOT NULL,
    -- Nodes that are faulty themselves, between commas: ",gpu-042,gpu-043,". Of one node:
    --   SELECT id, run, kind, opened_at, summary FROM incidents WHERE nodes LIKE '%,gpu-042,%'
    --   ORDER BY opened_at;
    nodes         TEXT NOT NULL DEFAULT ',',
    -- Since when nothing suppresses it, in Unix milliseconds; NULL while something does: a page
    -- about it then waits in the outbox.
    unsuppressed_ms BIGINT DEFAULT 0,
    -- When one that a person resolved while it still fired comes back, in Unix milliseconds; NULL
    -- of all others.
    reopens_ms    BIGINT
);
CREATE INDEX incidents_by_opening ON incidents (opened_at);
CREATE INDEX incidents_unresolved ON incidents (state) WHERE state <> 'resolved';
CREATE INDEX incidents_reopening ON incidents (id) WHERE reopens_ms IS NOT NULL;

CREATE TABLE timeline (
    incident TEXT NOT NULL,
    seq      BIGINT NOT NULL,
    at       TEXT NOT NULL,
    at_ms    BIGINT NOT NULL,
    actor    TEXT NOT NULL,
    what     TEXT NOT NULL,
    -- Why nobody is notified from then on, where the entry is about that.
    suppressed TEXT,
    PRIMARY KEY (incident, seq)
);

-- What is to be sent to whom. Pages that have not been delivered:
--   SELECT incident, receiver, attempts, error FROM outbox
--   WHERE page = 1 AND action = 'trigger' AND state IN ('pending', 'attempting', 'ambiguous');
CREATE TABLE outbox (
    idem_key      TEXT PRIMARY KEY,
    incident      TEXT NOT NULL,
    receiver      TEXT NOT NULL,
    seq           BIGINT NOT NULL,
    action        TEXT NOT NULL,
    page          BIGINT NOT NULL,
    -- pending: not sent. attempting: being sent; found at a start it means that nobody knows.
    -- ambiguous: sent, outcome unknown. delivered, failed, superseded: done.
    state         TEXT NOT NULL,
    attempts      BIGINT NOT NULL,
    created_ms    BIGINT NOT NULL,
    next_ms       BIGINT NOT NULL,
    done_at       TEXT,
    error         TEXT,
    -- 1 when the engine has learned of the outcome, in the transaction that kept what it made of
    -- it.
    reported      BIGINT NOT NULL,
    notification  TEXT NOT NULL,
    -- 1 of what is sent although the incident is suppressed: a person asked for it, or it is an
    -- answer or an end.
    despite_suppression BIGINT NOT NULL DEFAULT 0,
    -- The number of a call among those of its incident and class (page, ticket), given before it is
    -- first sent to a receiver that rings once a key. A call that is repeated keeps it; NULL of
    -- what was never sent, and of what calls nobody.
    ring          BIGINT,
    -- 1 of a call of which the service has said that it notified somebody.
    confirmed     BIGINT NOT NULL DEFAULT 0,
    -- Who reported the incident: the exporter or the sender of alerts, and the user there. What
    -- waits is sent in turn.
    source        TEXT NOT NULL DEFAULT '',
    reporter      TEXT NOT NULL DEFAULT '',
    UNIQUE (incident, receiver, seq)
);
CREATE INDEX outbox_undone ON outbox (receiver, incident, seq) WHERE state IN ('pending', 'attempting', 'ambiguous');
CREATE INDEX outbox_unreported ON outbox (reported) WHERE reported = 0 AND state IN ('delivered', 'failed');
-- Calls of which their service says whether it notified somebody.
CREATE INDEX outbox_confirmed ON outbox (receiver) WHERE confirmed = 1;
CREATE INDEX outbox_unconfirmed ON outbox (receiver, done_at)
    WHERE confirmed = 0 AND page = 1 AND action = 'trigger' AND state = 'delivered' AND ring IS NOT NULL;
-- Pages that a receiver refused for good: they are looked at again for as long as nobody was
-- notified of their incident.
CREATE INDEX outbox_refused ON outbox (receiver, incident) WHERE state = 'failed' AND page = 1 AND action = 'trigger';

-- What a notifier must remember of a conversation, such as the Slack channel id and the timestamp
-- of the message it edits.
CREATE TABLE lanes (
    incident   TEXT NOT NULL,
    receiver   TEXT NOT NULL,
    memory     TEXT NOT NULL,
    updated_ms BIGINT NOT NULL,
    PRIMARY KEY (incident, receiver)
);
CREATE INDEX lanes_by_receiver ON lanes (receiver, updated_ms);

-- What was seen of a run around an incident, from which its chart is drawn. Large ones:
--   SELECT incident, LENGTH(seen) FROM charts ORDER BY 2 DESC LIMIT 10;
CREATE TABLE charts (
    incident TEXT PRIMARY KEY,
    -- Severity, signal and whether it was over when this was seen: another chart is taken when it
    -- changes.
    stage    TEXT NOT NULL,
    -- 1 once the incident is over: its chart stays.
    frozen   BIGINT NOT NULL,
    -- JSON; empty where nothing was known.
    seen     TEXT NOT NULL,
    taken_ms BIGINT NOT NULL
);
CREATE INDEX charts_unfrozen ON charts (incident) WHERE frozen = 0;

-- Charts in the conversations of receivers: one a lane, replaced when the incident changes. None is
-- a message: a page never waits for one. Those that could not be shown:
--   SELECT incident, receiver, attempts, error FROM pictures WHERE error IS NOT NULL;
CREATE TABLE pictures (
    incident TEXT NOT NULL,
    receiver TEXT NOT NULL,
    -- The stage of the chart that is shown, or was given up.
    stage    TEXT NOT NULL,
    -- The service's names of files: the one that is shown, the one that is being shown (found at a
    -- start it may or may not be, and is taken away), and the one that is to be taken away.
    shown    TEXT,
    coming   TEXT,
    stale    TEXT,
    attempts BIGINT NOT NULL,
    next_ms  BIGINT NOT NULL,
    error    TEXT,
    PRIMARY KEY (incident, receiver)
);
CREATE INDEX pictures_unsettled ON pictures (receiver, incident) WHERE coming IS NOT NULL OR stale IS NOT NULL;

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

-- What each list of targets named when it was last believed, one address a line: after a restart,
-- an answer that leaves them out is not believed at once.
CREATE TABLE target_lists (
    list    TEXT PRIMARY KEY,
    targets TEXT NOT NULL
);

CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
);

-- What people do not want to be notified of. Who silences what now:
--   SELECT id, matchers, created_by, comment, ends_at FROM silences
--   WHERE ends_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now');
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

-- Alerts of other programs that fire, as they were posted last. Those that are over are not here:
-- the incidents have their history. They are kept in the order in which they began to fire: those
-- of one request lie together, and end together. In the order of their fingerprints, which is none,
-- each would be a page of its own to write.
CREATE TABLE alerts (
    -- The program knows which alert has which.
    id            INTEGER PRIMARY KEY,
    -- Of the labels, in hexadecimal, as Prometheus and Alertmanager make it.
    fingerprint   TEXT NOT NULL,
    labels        TEXT NOT NULL,
    annotations   TEXT NOT NULL,
    generator_url TEXT NOT NULL,
    starts_ms     BIGINT NOT NULL,
    ends_ms       BIGINT NOT NULL,
    updated_ms    BIGINT NOT NULL,
    -- The labels beyond which whoever posted it has no say, as a JSON object; of none where nothing
    -- limits them.
    within        TEXT NOT NULL,
    -- The name of the token that posted it, where that is limited.
    sender        TEXT NOT NULL DEFAULT ''
);

-- What services reported and we acted upon: neither a repetition nor a replay is acted upon again.
CREATE TABLE callbacks (
    service TEXT NOT NULL,
    id      TEXT NOT NULL,
    at_ms   BIGINT NOT NULL,
    PRIMARY KEY (service, id)
);
CREATE INDEX callbacks_by_age ON callbacks (at_ms);

-- What another service calls an incident of ours, and when, by its own clock, it last said
-- something that counted.
CREATE TABLE counterparts (
    service  TEXT NOT NULL,
    id       TEXT NOT NULL,
    incident TEXT NOT NULL,
    spoke_ms BIGINT NOT NULL,
    -- The service's name of the incident that a person merged this one into; empty of one that
    -- stands by itself.
    merged_into TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (service, id)
);
CREATE INDEX counterparts_merged ON counterparts (service, merged_into) WHERE merged_into <> '';

-- Who changed what, by which door, and what came of it. Rows are added and, when they are old,
-- forgotten; never changed.
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

-- The signals of the runs, for pictures: written now and then beside what is decided, and lost
-- without harm.
CREATE TABLE series (
    run    TEXT NOT NULL,
    -- Empty: what the signals of the run share.
    signal TEXT NOT NULL,
    -- When the run stepped last.
    at_ms  BIGINT NOT NULL,
    data   BLOB NOT NULL,
    PRIMARY KEY (run, signal)
);
CREATE INDEX series_by_age ON series (at_ms);

-- Where the time of the runs went, a row a run and hour, kept for ever: few bytes each, so that a
-- month of a thousand runs is less than 50 MB in SQLite. What is accounted of an hour that is not
-- over is in engine_state. A day of one:
--   SELECT datetime((h.id >> 20) * 3600, 'unixepoch') AS hour, h.* FROM run_hours AS h
--   JOIN accounted_runs AS r ON r.number = h.id & 1048575 WHERE r.run = 'llama-70b'
--   ORDER BY h.id DESC LIMIT 24;
CREATE TABLE accounted_runs (
    number INTEGER PRIMARY KEY,
    run    TEXT NOT NULL UNIQUE
);
CREATE TABLE run_hours (
    -- Hours since 1970 times 2^20, plus the number of the run: rows are added at the end, and need
    -- no index beside it.
    id            INTEGER PRIMARY KEY,
    -- Attempts whose start was seen and that made a step, plus 65536 times those that ended before
    -- their end.
    attempts      BIGINT NOT NULL,
    -- Of all states; what each cost is the share of its GPUs' time.
    cents         BIGINT NOT NULL,
    -- Of steps that the run keeps, in ten thousands.
    tokens_e4     BIGINT NOT NULL,
    -- Of its nodes, as far as it was measured, in ten thousands, and of how many seconds of GPUs it
    -- was not.
    joules_e4        BIGINT NOT NULL,
    unmeasured_gpu_s BIGINT NOT NULL,
    carbon_grams     BIGINT NOT NULL,
    -- GPUs of the run. The time of its GPUs in a state is the time of the run in it times these;
    -- where that is not so for every state (they became more or fewer within the hour), gpu_ms has
    -- it by state, as a JSON object.
    gpus           BIGINT NOT NULL,
    gpu_ms         TEXT,
    -- An hour less the time of all states: the productive time is 3600000 less this and less the
    -- times below.
    unaccounted_ms BIGINT NOT NULL,
    slowed_ms      BIGINT NOT NULL,
    stalled_ms     BIGINT NOT NULL,
    saving_ms      BIGINT NOT NULL,
    loading_ms     BIGINT NOT NULL,
    starting_ms    BIGINT NOT NULL,
    evaluating_ms  BIGINT NOT NULL,
    recomputing_ms BIGINT NOT NULL,
    down_ms        BIGINT NOT NULL,
    idle_ms        BIGINT NOT NULL,
    unknown_ms     BIGINT NOT NULL
);

-- Reports that are sent on schedule, as all their receivers get them. Their messages are rows of
-- outbox and lanes, with the id of the report in place of an incident's. What became of the last
-- ones:
--   SELECT incident, receiver, state, attempts, error FROM outbox WHERE incident LIKE 'report/%'
--   ORDER BY created_ms DESC LIMIT 10;
CREATE TABLE reports (
    -- report/<schedule>/<day>: a schedule sends one a day at most.
    id      TEXT PRIMARY KEY,
    -- JSON.
    report  TEXT NOT NULL,
    made_ms BIGINT NOT NULL
);
-- The schedules of reports. What was due then or earlier is done: it is in outbox, or the schedule
-- is younger.
CREATE TABLE report_schedules (
    name       TEXT PRIMARY KEY,
    settled_ms BIGINT NOT NULL
);
