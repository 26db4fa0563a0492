-- Nodes that are sick themselves, between commas: ",gpu-042,gpu-043,". Of one node:
--   SELECT id, run, kind, opened_at, summary FROM incidents WHERE nodes LIKE '%,gpu-042,%' ORDER BY opened_at;
ALTER TABLE incidents ADD COLUMN nodes TEXT NOT NULL DEFAULT ',';
