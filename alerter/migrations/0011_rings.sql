-- The number of a call among those of its incident and class (page, ticket), given before it is first sent to a receiver that rings
-- once a key. A call that is repeated keeps it; NULL of what was never sent, and of what calls nobody.
ALTER TABLE outbox ADD COLUMN ring BIGINT;
