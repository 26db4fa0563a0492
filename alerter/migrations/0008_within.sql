-- The labels beyond which whoever told an alert has no say, as a JSON object; of none where nothing limits them.
ALTER TABLE alerts ADD COLUMN within TEXT NOT NULL DEFAULT '{}';
