//go:build unix

package main

import "github.com/txoutbox/outbox"

// work is the payload of each task.
type work struct {
	K      string `json:"k"`                // names the task in every ledger
	Fail   int    `json:"fail,omitempty"`   // so many attempts fail, after their writes
	How    string `json:"how,omitempty"`    // of poison and misbehaving tasks
	Entity int    `json:"entity,omitempty"` // of a keyed task
	Seq    int    `json:"seq,omitempty"`    // of an ordered task
}

// The kinds of tasks, which are their types.
var (
	typeTx         = outbox.NewTaskType[work]("TX")
	typeBatch      = outbox.NewTaskType[work]("BATCH")
	typeLeased     = outbox.NewTaskType[work]("LEASED")     // leaves an effect by task.Complete, and calls the sink before
	typePlain      = outbox.NewTaskType[work]("PLAIN")      // leased; calls the sink only
	typeKeyed      = outbox.NewTaskType[work]("KEYED")      // leased, with a unique key
	typeOrdered    = outbox.NewTaskType[work]("ORDERED")    // Tx, with an ordering key
	typeCancelable = outbox.NewTaskType[work]("CANCELABLE") // Tx; may be cancelled by the operator
	typePoison     = outbox.NewTaskType[work]("POISON")     // ends its process, or its connection
	typeMisbehaves = outbox.NewTaskType[work]("MISBEHAVES") // misbehaves, and never takes effect
	typeCommits    = outbox.NewTaskType[work]("COMMITS")    // commits in its handler and fails then
)

const (
	entities     = 5000
	busyEntities = 50 // which half of the keyed tasks are for
	accounts     = 100
	poisonStarts = 3 // max attempts of poison
)

// tables are the app's, beside the outbox's. The triggers note who ends the lease of another process, and why attempts failed; the app's connections have the process as their name.
const tables = `
CREATE TABLE business (k text PRIMARY KEY, due timestamptz);
CREATE TABLE effect (effect_id bigint GENERATED ALWAYS AS IDENTITY, k text NOT NULL, kind text NOT NULL, seq int NOT NULL, ordering_key text, fail int NOT NULL, task_id bigint NOT NULL, attempt int NOT NULL,
  relay text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL);
INSERT INTO account SELECT n, 1000 FROM generate_series(0, 99) n;
CREATE TABLE entity (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0, seen bigint NOT NULL DEFAULT 0);
INSERT INTO entity (id) SELECT n FROM generate_series(1, 5000) n;
CREATE TABLE canceled (k text NOT NULL, result text NOT NULL);
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE deferred (id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE stolen (task_id bigint NOT NULL, holder text, by text);
CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  holder text := (SELECT pid FROM outbox.relay WHERE relay_id = OLD.relay_id);
BEGIN
  IF holder IS DISTINCT FROM current_setting('application_name') THEN
    INSERT INTO public.stolen VALUES (OLD.task_id, holder, current_setting('application_name'));
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER audit AFTER DELETE ON outbox.task FOR EACH ROW WHEN (OLD.state = 'leased') EXECUTE FUNCTION audit();
CREATE TRIGGER audit_update AFTER UPDATE ON outbox.task FOR EACH ROW
  WHEN (OLD.state = 'leased' AND NEW.state <> 'leased' AND NEW.state <> 'ready') EXECUTE FUNCTION audit();
CREATE TABLE failure (k text NOT NULL, kind text NOT NULL, attempt int NOT NULL, fail int NOT NULL, by text NOT NULL, error text NOT NULL);
CREATE FUNCTION failed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO public.failure VALUES (NEW.payload ->> 'k', NEW.task_type, NEW.attempt, coalesce((NEW.payload ->> 'fail')::int, 0), current_setting('application_name'), NEW.last_error);
  RETURN NULL;
END $$;
CREATE TRIGGER failed AFTER INSERT OR UPDATE OF last_error ON outbox.task
  FOR EACH ROW WHEN (NEW.last_error IS NOT NULL AND NEW.last_error NOT LIKE '%this attempt was to fail%') EXECUTE FUNCTION failed();
CREATE TABLE ledger (k text NOT NULL, kind text NOT NULL, outcome text NOT NULL);
CREATE TABLE sink (k text NOT NULL, calls int NOT NULL);`
