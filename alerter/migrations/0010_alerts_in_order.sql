-- Alerts in the order in which they began to fire: those of one request lie together, and end together. In the order of their
-- fingerprints, which is none, each would be a page of its own to write.
CREATE TABLE alerts_in_order (
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
    -- The labels beyond which whoever told it has no say, as a JSON object; of none where nothing limits them.
    within        TEXT NOT NULL
);
INSERT INTO alerts_in_order (id, fingerprint, labels, annotations, generator_url, starts_ms, ends_ms, updated_ms, within)
    SELECT ROW_NUMBER() OVER (ORDER BY starts_ms, fingerprint), fingerprint, labels, annotations, generator_url, starts_ms, ends_ms,
        updated_ms, within
    FROM alerts;
DROP TABLE alerts;
ALTER TABLE alerts_in_order RENAME TO alerts;
