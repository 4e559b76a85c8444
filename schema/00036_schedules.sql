-- +goose Up
-- Which schedules a relay has, so that others know whose a schedule is.
-- With psql: psql -v ON_ERROR_STOP=1 -1 -f 00036_schedules.sql

ALTER TABLE outbox.relay ADD COLUMN IF NOT EXISTS schedules jsonb;
COMMENT ON COLUMN outbox.relay.schedules
  IS 'the definition of each schedule in its Config, by name; NULL: not known, of an older version';

-- Schedules that nobody fires: no living relay has the definition of the row, or a living relay has a
-- schedule whose row is missing. A definition is a hash of the payload too, so viewers see this
-- instead. It is empty while a relay of an older version lives, which does not say what it has.
CREATE OR REPLACE VIEW outbox.unowned_schedule AS
WITH living AS MATERIALIZED (SELECT schedules FROM outbox.relay WHERE alive_until > clock_timestamp()),
known AS MATERIALIZED (
  SELECT DISTINCT k.key COLLATE "C" AS name, k.value COLLATE "C" AS definition
    FROM living CROSS JOIN LATERAL jsonb_each_text(schedules) AS k)
SELECT u.name, u.missing
  FROM (SELECT s.name, false AS missing FROM outbox.schedule s
         WHERE NOT paused AND next_at IS NOT NULL
           AND NOT EXISTS (SELECT 1 FROM known k WHERE k.name = s.name AND k.definition = s.definition)
        UNION ALL
        SELECT DISTINCT k.name, true FROM known k
         WHERE NOT EXISTS (SELECT 1 FROM outbox.schedule s WHERE s.name = k.name)) u
 WHERE EXISTS (SELECT 1 FROM living) AND NOT EXISTS (SELECT 1 FROM living WHERE schedules IS NULL);
COMMENT ON VIEW outbox.unowned_schedule IS 'schedules that no living relay fires, and missing ones that one has';

INSERT INTO outbox.migration (version) VALUES (36) ON CONFLICT DO NOTHING;
