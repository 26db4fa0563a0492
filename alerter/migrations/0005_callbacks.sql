-- What services told us and we acted upon: neither a repetition nor a replay is acted upon again.
CREATE TABLE callbacks (
    service TEXT NOT NULL,
    id      TEXT NOT NULL,
    at_ms   BIGINT NOT NULL,
    PRIMARY KEY (service, id)
);
CREATE INDEX callbacks_by_age ON callbacks (at_ms);

-- What another service calls an incident of ours, and when, by its own clock, it last said something that counted.
CREATE TABLE counterparts (
    service  TEXT NOT NULL,
    id       TEXT NOT NULL,
    incident TEXT NOT NULL,
    spoke_ms BIGINT NOT NULL,
    PRIMARY KEY (service, id)
);
