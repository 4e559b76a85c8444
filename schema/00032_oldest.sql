-- +goose Up
-- A claim asks whether its type is paused, and may go by due time.
-- With psql: psql -v ON_ERROR_STOP=1 -1 -f 00032_oldest.sql
--
-- It holds a SHARE lock on outbox.task, which lets nobody write to it, while PostgreSQL builds the
-- index task_due: about a second for a million ready tasks. An index of that name that is there
-- already is taken: CREATE INDEX CONCURRENTLY builds one before, without the lock.

-- The ready tasks by due time: for claims of those that have been due longest, whatever their
-- priority and attempts, and for the age of the oldest.
CREATE INDEX IF NOT EXISTS task_due ON outbox.task (task_type, run_at, task_id)
  WITH (deduplicate_items = off) WHERE state = 'ready';
COMMENT ON COLUMN outbox.sample.oldest_ready
  IS 'for how long the ready task that waits longest had been due, in microseconds';

-- Each statement that locks tasks asks, with one probe of the index of task_type: its snapshot sees
-- each pause that was committed before the tasks that it sees.

-- As in 00023, but for pauses.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.claim_task(
  of_type text, from_priority smallint, from_attempt smallint, from_id bigint, most smallint,
    id_span bigint,
  idle_timeout text, lock_timeout text, statement_timeout text) RETURNS text
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
  SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  place tid;
  taken text;
  setting text := set_config('idle_in_transaction_session_timeout', idle_timeout, true)
    || set_config('lock_timeout', lock_timeout, true);
BEGIN
  IF id_span > 0 THEN
    SELECT t.ctid INTO place FROM outbox.task t WHERE t.state = 'ready' AND t.task_type = of_type
       AND t.priority = from_priority AND t.attempt = from_attempt AND t.task_id >= from_id
         AND t.task_id <= from_id + id_span
       AND NOT EXISTS (SELECT FROM outbox.task_type p
                        WHERE p.task_type = of_type AND p.paused)
     ORDER BY t.task_id LIMIT 1 FOR UPDATE SKIP LOCKED;
  END IF;
  IF place IS NULL THEN
    SELECT t.ctid INTO place FROM outbox.task t WHERE t.state = 'ready' AND t.task_type = of_type
       AND (t.priority, t.attempt, t.task_id) >= (from_priority, from_attempt, from_id)
         AND t.priority <= most
       AND NOT EXISTS (SELECT FROM outbox.task_type p
                        WHERE p.task_type = of_type AND p.paused)
     ORDER BY t.priority, t.attempt, t.task_id LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF place IS NULL THEN
      RETURN NULL;
    END IF;
  END IF;
  DELETE FROM outbox.task t WHERE t.ctid = place
  RETURNING concat_ws(E'\x1f', t.task_id, t.priority, t.attempt,
    (date_part('epoch', t.run_at) * 1000000)::bigint,
              CASE WHEN t.created_at <> t.run_at
                THEN (date_part('epoch', t.created_at) * 1000000)::bigint::text ELSE '' END,
              pg_current_xact_id(), COALESCE(outbox.optional_columns(t), ''), t.payload)
       INTO taken;
  setting := set_config('statement_timeout', statement_timeout, true);
  RETURN taken;
END
$$;
-- +goose StatementEnd

-- As in 00023, but for pauses and claims by due time: those take the tasks that have been due
-- longest, from due_from (in microseconds since 1970) and from_id on. due_from is NULL for the
-- lane's order.
DROP FUNCTION IF EXISTS
  outbox.claim_tasks(text, smallint, smallint, bigint, smallint, integer);
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.claim_tasks(
  of_type text, from_priority smallint, from_attempt smallint, from_id bigint, most smallint,
    up_to integer, due_from bigint DEFAULT NULL) RETURNS SETOF text
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
  SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  places tid[];
  xid    text;
BEGIN
  IF due_from IS NULL THEN
    places := ARRAY(
      SELECT t.ctid FROM outbox.task t WHERE t.state = 'ready' AND t.task_type = of_type
         AND (t.priority, t.attempt, t.task_id) >= (from_priority, from_attempt, from_id)
           AND t.priority <= most
         AND NOT EXISTS (SELECT FROM outbox.task_type p
                          WHERE p.task_type = of_type AND p.paused)
       ORDER BY t.priority, t.attempt, t.task_id LIMIT up_to FOR UPDATE SKIP LOCKED);
  ELSE
    places := ARRAY(
      SELECT t.ctid FROM outbox.task t WHERE t.state = 'ready' AND t.task_type = of_type
         AND (t.run_at, t.task_id)
          >= (timestamptz 'epoch' + due_from * interval '1 microsecond', from_id)
         AND NOT EXISTS (SELECT FROM outbox.task_type p
                          WHERE p.task_type = of_type AND p.paused)
       ORDER BY t.run_at, t.task_id LIMIT up_to FOR UPDATE SKIP LOCKED);
  END IF;
  IF cardinality(places) = 0 THEN
    RETURN;
  END IF;
  xid := pg_current_xact_id();
  RETURN QUERY
  DELETE FROM outbox.task t WHERE t.ctid = ANY (places)
  RETURNING concat_ws(E'\x1f', t.task_id, t.priority, t.attempt,
    (date_part('epoch', t.run_at) * 1000000)::bigint,
              CASE WHEN t.created_at <> t.run_at
                THEN (date_part('epoch', t.created_at) * 1000000)::bigint::text ELSE '' END,
              xid, COALESCE(outbox.optional_columns(t), ''), t.payload);
END
$$;
-- +goose StatementEnd

-- As in 00023, but for pauses and claims by due time: see claim_tasks.
DROP FUNCTION IF EXISTS
  outbox.lease_tasks(text, integer, uuid, uuid, bigint, bigint, bigint, smallint, smallint, bigint,
    bigint[], smallint, smallint, integer, bigint);
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.lease_tasks(
  of_type text, most integer, of_relay uuid, of_token uuid, registered_us bigint,
    timeout_us bigint, margin_us bigint,
  from_priority smallint, from_attempt smallint, from_id bigint,
  pivots bigint[], pivot_priority smallint, pivot_attempt smallint, lead integer, id_span bigint,
  due_from bigint DEFAULT NULL,
  OUT tasks text, OUT xid text)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
  SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  places      tid[];
  lost_ids    bigint[];
  lost_relays uuid[];
  lines       text;
  n           integer;
  pass        integer := CASE WHEN due_from IS NOT NULL THEN 4
    WHEN cardinality(pivots) > 0 THEN 1 ELSE 3 END;
BEGIN
  LOOP
    IF pass = 1 THEN
      SELECT array_agg(f.place), array_agg(f.task_id) FILTER (WHERE f.relay_id IS NOT NULL),
             array_agg(f.relay_id) FILTER (WHERE f.relay_id IS NOT NULL)
        INTO places, lost_ids, lost_relays
        FROM (SELECT l.place, l.task_id, l.relay_id FROM unnest(pivots) AS p (task_id)
               CROSS JOIN LATERAL (
                 SELECT t.ctid AS place, t.task_id, t.relay_id FROM outbox.task t
                  WHERE t.state = 'ready' AND t.task_type = of_type
                    AND t.priority = pivot_priority AND t.attempt = pivot_attempt
                    AND t.task_id >= p.task_id AND t.task_id <= p.task_id + id_span
                    AND NOT EXISTS (SELECT FROM outbox.task_type p
                                     WHERE p.task_type = of_type AND p.paused)
                  ORDER BY t.task_id LIMIT lead FOR UPDATE SKIP LOCKED) l
               LIMIT most) f;
    ELSIF pass = 2 THEN
      SELECT array_agg(f.place), array_agg(f.task_id) FILTER (WHERE f.relay_id IS NOT NULL),
             array_agg(f.relay_id) FILTER (WHERE f.relay_id IS NOT NULL)
        INTO places, lost_ids, lost_relays
        FROM (SELECT l.place, l.task_id, l.relay_id FROM unnest(pivots) AS p (task_id)
               CROSS JOIN LATERAL (
                 SELECT t.ctid AS place, t.task_id, t.relay_id FROM outbox.task t
                  WHERE t.state = 'ready' AND t.task_type = of_type
                    AND (t.priority, t.attempt, t.task_id)
                     >= (pivot_priority, pivot_attempt, p.task_id)
                    AND t.priority <= pivot_priority
                    AND NOT EXISTS (SELECT FROM outbox.task_type p
                                     WHERE p.task_type = of_type AND p.paused)
                  ORDER BY t.priority, t.attempt, t.task_id LIMIT lead FOR UPDATE SKIP LOCKED) l
               LIMIT most) f;
    ELSIF pass = 3 THEN
      SELECT array_agg(f.place), array_agg(f.task_id) FILTER (WHERE f.relay_id IS NOT NULL),
             array_agg(f.relay_id) FILTER (WHERE f.relay_id IS NOT NULL)
        INTO places, lost_ids, lost_relays
        FROM (SELECT t.ctid AS place, t.task_id, t.relay_id FROM outbox.task t
          WHERE t.state = 'ready' AND t.task_type = of_type
                 AND (t.priority, t.attempt, t.task_id) >= (from_priority, from_attempt, from_id)
                 AND NOT EXISTS (SELECT FROM outbox.task_type p
                                  WHERE p.task_type = of_type AND p.paused)
               ORDER BY t.priority, t.attempt, t.task_id LIMIT most FOR UPDATE SKIP LOCKED) f;
    ELSE
      SELECT array_agg(f.place), array_agg(f.task_id) FILTER (WHERE f.relay_id IS NOT NULL),
             array_agg(f.relay_id) FILTER (WHERE f.relay_id IS NOT NULL)
        INTO places, lost_ids, lost_relays
        FROM (SELECT t.ctid AS place, t.task_id, t.relay_id FROM outbox.task t
          WHERE t.state = 'ready' AND t.task_type = of_type
                 AND (t.run_at, t.task_id)
                  >= (timestamptz 'epoch' + due_from * interval '1 microsecond', from_id)
                 AND NOT EXISTS (SELECT FROM outbox.task_type p
                                  WHERE p.task_type = of_type AND p.paused)
               ORDER BY t.run_at, t.task_id LIMIT most FOR UPDATE SKIP LOCKED) f;
    END IF;
    IF places IS NOT NULL THEN
      WITH leased AS (
        UPDATE outbox.task t
           SET state = 'leased', attempt = CASE WHEN t.relay_id IS NULL
             THEN LEAST(t.attempt + 1, 32767) ELSE t.attempt END,
               attempted_at = clock_timestamp(), relay_id = of_relay, lease_token = of_token,
               leased_until = clock_timestamp() + COALESCE(t.timeout_ms * timeout_us + margin_us,
                 registered_us) * interval '1 microsecond'
         WHERE t.ctid = ANY (places)
        RETURNING concat_ws(E'\t', t.task_id, t.ctid, t.priority, t.attempt,
          (date_part('epoch', t.run_at) * 1000000)::bigint,
                    CASE WHEN t.created_at <> t.run_at
                      THEN ((date_part('epoch', t.created_at) * 1000000)::bigint)::text ELSE '' END,
                    CASE WHEN lost_ids IS NULL THEN ''
                      ELSE COALESCE(lost_relays[array_position(lost_ids, t.task_id)]::text, '') END,
                    t.payload, COALESCE(outbox.optional_columns(t), '')) AS line)
      SELECT string_agg(line, E'\n'), count(*) INTO lines, n FROM leased;
      tasks := concat_ws(E'\n', tasks, lines);
      most := most - n;
      xid := pg_current_xact_id()::text;
    END IF;
    EXIT WHEN most <= 0 OR pass >= 3;
    pass := pass + 1;
  END LOOP;
END
$$;
-- +goose StatementEnd

INSERT INTO outbox.migration (version) VALUES (32) ON CONFLICT DO NOTHING;
