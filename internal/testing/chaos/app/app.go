//go:build unix

// Package app is the app whose outbox is broken: its tables and tasks, and the processes that
// enqueue and run them.
package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	"github.com/txoutbox/outbox"
	outboxpgx "github.com/txoutbox/outbox/adapter/pgx"
	"github.com/txoutbox/outbox/pgdb"
)

// Run is a process of the app. It returns when it got SIGTERM or has enqueued enough.
func Run(ctx context.Context, c Config) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	p, err := open(c.URL, c.Driver)
	if err != nil {
		return err
	}
	if c.Role == RoleProducer {
		return produce(ctx, c, p)
	}
	side, err := p.another()
	if err != nil {
		return err
	}
	side.SetMaxOpenConns(4)
	return runRelay(ctx, c, p.db, side)
}

// pools are those of a process, whose sessions have the process as their name.
type pools struct {
	db      *sql.DB
	another func() (*sql.DB, error)
	inTx    func(ctx context.Context, fn func(tx outbox.Querier) error) error
}

// sharedConns are for a relay of 8 workers with schedules, and 4 of the side.
const sharedConns = 15

func open(url, driver string) (pools, error) {
	url += "&application_name=" + strconv.Itoa(os.Getpid())
	if driver == "pgxpool" { // one for all; a producer knows pgx alone
		pool, err := pgxpool.New(context.Background(), url+"&pool_max_conns="+strconv.Itoa(sharedConns))
		if err != nil {
			return pools{}, err
		}
		return pools{outboxpgx.OpenDB(pool), func() (*sql.DB, error) { return outboxpgx.OpenDB(pool), nil },
			func(ctx context.Context, fn func(tx outbox.Querier) error) error {
				return outboxpgx.InTx(ctx, pool, pgx.TxOptions{}, func(tx pgx.Tx) error { return fn(outboxpgx.Querier(tx)) })
			}}, nil
	}
	another := func() (*sql.DB, error) {
		if driver == "pgx" {
			return sql.Open("pgx", url)
		}
		return pgdb.Open(url)
	}
	db, err := another()
	return pools{db, another, func(ctx context.Context, fn func(tx outbox.Querier) error) error {
		return outbox.InTx(ctx, db, func(tx *sql.Tx) error { return fn(tx) })
	}}, err
}

// User is the role of the app.
const User = "app"

// The roles of a process.
const (
	RoleRelay    = "relay"
	RoleProducer = "producer"
)

// Config is what a process of the app does.
type Config struct {
	Role   string
	Name   string
	URL    string
	Driver string // pq, pgx or pgxpool
	Dir    string // of records
	Seed   uint64 // of a producer
	Tasks  int    // of a producer; 0 is no limit
	Group  int    // handlers.GroupCommit
	Dawdle int64  // one in so many leased tasks dawdles; 0 is none

	DawdleFor      time.Duration // of such a task
	Broker         string        // the URL of the NATS server
	BrokerPassword string        // the file that has the app's password
}

// Payload is that of each task.
type Payload struct {
	K      string `json:"k"`                // names the task in every ledger
	Fail   int    `json:"fail,omitempty"`   // so many attempts fail, after their writes
	How    string `json:"how,omitempty"`    // of poison
	Entity int    `json:"entity,omitempty"` // of a keyed task
	Seq    int    `json:"seq,omitempty"`    // of an ordered task or event
	Key    string `json:"key,omitempty"`    // of a grouped task
	Period string `json:"period,omitempty"` // the unique key of a task with one for a period
}

// codec writes its name before the payload. SQL's plain_payload takes it away.
type codec byte

func (c codec) Name() string { return string(c) }

func (c codec) Encode(plain []byte) ([]byte, error) { return append([]byte{byte(c)}, plain...), nil }

func (c codec) Decode(stored []byte) ([]byte, error) {
	if len(stored) == 0 || stored[0] != byte(c) {
		return nil, fmt.Errorf("chaos: the codec %s did not write it", c.Name())
	}
	return stored[1:], nil
}

// errAsked is the error of an attempt that Payload.Fail asks to fail. Tables know its text.
var errAsked = errors.New("chaos: this attempt was to fail")

// The task types that producers enqueue.
var (
	typeTx    = outbox.NewTaskType[Payload]("TX")
	typeBatch = outbox.NewTaskType[Payload]("BATCH", outbox.Codec(codec('a')))
	// calls the outside world, then writes its effect by task.Complete
	typeLeased = outbox.NewTaskType[Payload]("LEASED", outbox.Codec(codec('a'), codec('b')))
	// typeLeased of a replica that has the codecs the other way round, as while keys are rotated
	typeLeasedRotated = outbox.NewTaskType[Payload]("LEASED", outbox.Codec(codec('b'), codec('a')))

	typePlain    = outbox.NewTaskType[Payload]("PLAIN")    // leased; calls the outside world only
	typeKeyed    = outbox.NewTaskType[Payload]("KEYED")    // leased, with a unique key
	typeOrdered  = outbox.NewTaskType[Payload]("ORDERED")  // Tx, with an ordering key
	typeGrouped  = outbox.NewTaskType[Payload]("GROUPED")  // Tx, with a group key
	typePeriod   = outbox.NewTaskType[Payload]("PERIOD")   // Tx, with a unique key that is kept for the whole run
	typeExpiring = outbox.NewTaskType[Payload]("EXPIRING") // Tx, with an expiry
	// forwarded to the broker, in the order of its key
	typeEvent = outbox.NewTaskType[Payload]("EVENT", outbox.Codec(codec('a')))
)

// TypePoison is that of tasks that end their process, or their connection.
var TypePoison = outbox.NewTaskType[Payload]("POISON")

// TypeTick is that of the schedule.
var TypeTick = outbox.NewTaskType[Payload]("TICK")

// Damaged are the types of tasks whose payload is made unreadable.
var Damaged = []outbox.TaskType[Payload]{typeTx, typeBatch, typeLeased}

const (
	entities     = 5000
	busyEntities = 50 // which half of the keyed tasks are for
	accounts     = 100
	groupKeys    = 10
	perKey       = 2 // handlers.MaxRunningPerKey
)

// PoisonStarts is the max attempts of poison.
const PoisonStarts = 3

// Tables are the app's. The triggers record who ends the lease of another process, and why attempts
// failed.
const Tables = `
CREATE TABLE business (k text PRIMARY KEY, due timestamptz);
CREATE TABLE effect (
  effect_id bigint GENERATED ALWAYS AS IDENTITY, k text NOT NULL, kind text NOT NULL, seq int NOT NULL,
  ordering_key text, fail int NOT NULL, task_id bigint NOT NULL, attempt int NOT NULL, relay text NOT NULL,
  at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL);
INSERT INTO account SELECT n, 1000 FROM generate_series(0, 99) n;
CREATE TABLE entity (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0, seen bigint NOT NULL DEFAULT 0);
INSERT INTO entity (id) SELECT n FROM generate_series(1, 5000) n;
CREATE TABLE ledger (k text NOT NULL, kind text NOT NULL, outcome text NOT NULL);
CREATE TABLE call (k text NOT NULL, calls int NOT NULL);
CREATE TABLE damaged (task_id bigint NOT NULL);
CREATE TABLE tick (tick_id bigint GENERATED ALWAYS AS IDENTITY);
CREATE TABLE event (
  k text NOT NULL, target int NOT NULL, ordering_key text NOT NULL, seq int NOT NULL, place int NOT NULL);
CREATE TABLE stolen (task_id bigint NOT NULL, holder text, by text);
CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  holder text := (SELECT pid FROM outbox.relay WHERE relay_id = OLD.relay_id);
  caller text := current_setting('application_name');
BEGIN
  -- A relay's first beat commits asynchronously, so a failover may lose its row until the next beat.
  IF holder IS DISTINCT FROM caller
     AND (holder IS NOT NULL OR EXISTS (SELECT FROM outbox.relay WHERE pid::text = caller)) THEN
    INSERT INTO public.stolen VALUES (OLD.task_id, holder, caller);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER audit AFTER DELETE ON outbox.task
  FOR EACH ROW WHEN (OLD.state = 'leased') EXECUTE FUNCTION audit();
CREATE TRIGGER audit_update AFTER UPDATE ON outbox.task
  FOR EACH ROW WHEN (OLD.state = 'leased' AND NEW.state <> 'leased'
    AND (NEW.timeline -> -1 ->> 'event' IN ('lost', 'lease_lost')) IS NOT TRUE) EXECUTE FUNCTION audit();
CREATE TABLE failure (
  k text NOT NULL, kind text NOT NULL, attempt int NOT NULL, fail int NOT NULL, error text NOT NULL);
CREATE FUNCTION plain_payload(stored jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
SELECT CASE jsonb_typeof(stored) WHEN 'string'
  THEN convert_from(substring(decode(stored #>> '{}', 'base64') FROM 2), 'UTF8')::jsonb ELSE stored END $$;
CREATE FUNCTION failed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  payload jsonb := public.plain_payload(NEW.payload);
BEGIN
  INSERT INTO public.failure VALUES (payload ->> 'k', NEW.task_type, NEW.attempt,
    coalesce((payload ->> 'fail')::int, 0), NEW.last_error);
  RETURN NULL;
END $$;
CREATE TRIGGER failed AFTER INSERT OR UPDATE OF last_error ON outbox.task
  FOR EACH ROW WHEN (NEW.last_error IS NOT NULL AND NEW.last_error NOT LIKE '%this attempt was to fail%'
    AND NEW.last_error NOT LIKE '%the task cannot be read%')
  EXECUTE FUNCTION failed();`
