-- +goose Up
-- Recurring tasks: iterations of a task that runs again, and schedules that enqueue at times of their own.
-- With psql: psql -v ON_ERROR_STOP=1 -1 -f 00004_recurring.sql

ALTER TABLE outbox.task ADD COLUMN IF NOT EXISTS iterations integer NOT NULL DEFAULT 0;
ALTER TABLE outbox.dead_task ADD COLUMN IF NOT EXISTS iterations integer NOT NULL DEFAULT 0;
COMMENT ON COLUMN outbox.task.iterations IS 'how often its handler returned RunAgain; 0 until the first time';

-- One row for each schedule that a relay was started with. When it fires is computed by the relays that know it, from
-- what is in the row; the row is locked while it fires.
CREATE TABLE IF NOT EXISTS outbox.schedule (
  name       text        PRIMARY KEY,
  next_at    timestamptz,
  last_at    timestamptz,
  created_at timestamptz NOT NULL DEFAULT now(),
  paused     boolean     NOT NULL DEFAULT false,
  catch_up   text        NOT NULL DEFAULT 'once',
  task_type  text        NOT NULL,
  payload    jsonb       NOT NULL,
  spec       text        NOT NULL DEFAULT '',
  timing     text        NOT NULL,
  definition text        NOT NULL,
  CONSTRAINT schedule_name_check     CHECK (octet_length(name) BETWEEN 1 AND 128 AND name !~ '[[:cntrl:]]'),
  CONSTRAINT schedule_catch_up_check CHECK (catch_up IN ('once', 'all')),
  CONSTRAINT schedule_time_check     CHECK (isfinite(next_at) AND next_at < '10000-01-01 00:00:00+00'
                                        AND isfinite(last_at) AND last_at < '10000-01-01 00:00:00+00')
) WITH (
  fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100,
  autovacuum_vacuum_cost_delay = 0
);
COMMENT ON COLUMN outbox.schedule.next_at    IS 'the next firing; NULL: it has ended, or its Next misbehaved';
COMMENT ON COLUMN outbox.schedule.last_at    IS 'the latest firing that enqueued a task';
COMMENT ON COLUMN outbox.schedule.payload    IS 'as last registered, to be read: what is enqueued comes from the code of the relay that fires';
COMMENT ON COLUMN outbox.schedule.timing     IS 'a hash of when it fires: when it changes, next_at is computed anew';
COMMENT ON COLUMN outbox.schedule.definition IS 'a hash of all of it: only relays that know this very schedule fire it';

INSERT INTO outbox.migration (version) VALUES (4) ON CONFLICT DO NOTHING;
