-- Alerts of other programs that fire, as they were told last. Those that are over are not here: the incidents have their history.
CREATE TABLE alerts (
    -- Of the labels, in hexadecimal, as Prometheus and Alertmanager make it.
    fingerprint   TEXT PRIMARY KEY,
    labels        TEXT NOT NULL,
    annotations   TEXT NOT NULL,
    generator_url TEXT NOT NULL,
    starts_ms     BIGINT NOT NULL,
    ends_ms       BIGINT NOT NULL,
    updated_ms    BIGINT NOT NULL
);
