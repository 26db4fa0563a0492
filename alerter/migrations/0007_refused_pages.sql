-- Pages that a receiver refused for good: they are looked at again for as long as nobody was told of their incident.
CREATE INDEX outbox_refused ON outbox (receiver, incident) WHERE state = 'failed' AND page = 1 AND action = 'trigger';
