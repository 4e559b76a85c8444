package doctor

import (
	"context"
	"fmt"
	"time"
)

const serverSQL = `/* outbox: the server */
SELECT current_setting('server_version'), current_setting('server_version_num')::integer, current_setting('server_encoding'),
       pg_is_in_recovery(), current_setting('fsync')::boolean, current_setting('full_page_writes')::boolean,
       current_setting('synchronous_commit')`

func checkServer(ctx context.Context, v *visit) error {
	var version, encoding, commit string
	var number int
	var standby, fsync, pages bool
	if err := v.row(ctx, serverSQL, nil, &version, &number, &encoding, &standby, &fsync, &pages, &commit); err != nil {
		return err
	}
	if severity, what, do := serverVersion(number/10000, version, v.settings.now()); severity > OK {
		v.add("server-version", severity, version, what, do)
	}
	if encoding != "UTF8" {
		v.add("encoding", Critical, encoding,
			"the encoding of the database is "+encoding+", the outbox needs UTF8: schema.Migrate refuses it, and relays do not start",
			"create a database with TEMPLATE template0 ENCODING 'UTF8', and move the data there")
	}
	if standby {
		v.add("primary", Info, "",
			"the server is a standby: relays cannot work on it, and its sessions and statistics are its own", "ask the primary as well")
	}
	off := func(setting string) {
		v.add("durability", Critical, setting, setting+" is off: a crash of the machine may destroy the database",
			"ALTER SYSTEM SET "+setting+" = on, then SELECT pg_reload_conf()")
	}
	if !fsync {
		off("fsync")
	}
	if !pages {
		off("full_page_writes")
	}
	if commit == "off" {
		v.add("durability", Info, "synchronous_commit",
			"synchronous_commit is off for this role: a crash of the server may lose the latest commits of such roles, "+
				"tasks and business rows alike",
			"leave it on where tasks are enqueued and run, unless that is intended")
	}
	return nil
}

const clockSQL = `/* outbox: clock */
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint`

const clockOff = 5 * time.Second

func checkClock(ctx context.Context, v *visit) error {
	var us int64
	before := time.Now()
	if err := v.row(ctx, clockSQL, nil, &us); err != nil {
		return err
	}
	if off := clockDifference(time.UnixMicro(us), before, time.Now()); off > clockOff || off < -clockOff {
		way := "ahead of"
		if off < 0 {
			way, off = "behind", -off
		}
		v.add("clock", Info, "", fmt.Sprintf("the server's clock is %s %s this process's: "+
			"the outbox uses the server's, but a RunAt that the app computes is by the app's", said(off), way),
			"synchronise both; enqueue with outbox.After, which uses the server's clock")
	}
	return nil
}

// clockDifference is the least that the server's clock is ahead: the server read it between two
// times of this process.
func clockDifference(server, before, after time.Time) time.Duration {
	switch {
	case server.After(after):
		return server.Sub(after)
	case server.Before(before):
		return server.Sub(before)
	}
	return 0
}

const queueSQL = `/* outbox: usage of the queue of notifications */
SELECT (pg_notification_queue_usage() * 1000000)::bigint`

func checkNotifications(ctx context.Context, v *visit) error {
	var usage int64 // millionths
	if err := v.row(ctx, queueSQL, nil, &usage); err != nil {
		return err
	}
	if severity := queueSeverity(usage); severity > OK {
		v.add("notification-queue", severity, "",
			fmt.Sprintf("the server's queue of notifications is %.1f %% full: once it is full, commits that notify fail, "+
				"enqueues of tasks among them", float64(usage)/10000),
			"end the session that listens and does not read, mostly one that is idle in a transaction: "+
				"see held-transaction, and the server's log, which names its pid")
	}
	return nil
}

func queueSeverity(usage int64) Severity { return grade(usage, 50_000, 500_000) }

const wraparoundSQL = `/* outbox: age of transaction ids */
SELECT c.oid::regclass::text, n.nspname = $1, GREATEST(age(c.relfrozenxid), mxid_age(c.relminmxid)),
       GREATEST(age(d.datfrozenxid), mxid_age(d.datminmxid))
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_database d ON d.datname = current_database()
 WHERE c.relkind IN ('r', 'm', 't') AND c.relfrozenxid <> '0'
 ORDER BY 3 DESC, 2 DESC, 1 LIMIT 1`

func checkWraparound(ctx context.Context, v *visit) error {
	var table string
	var ours bool
	var ofTable, ofDatabase int64
	if err := v.row(ctx, wraparoundSQL, []any{v.schema}, &table, &ours, &ofTable, &ofDatabase); err != nil {
		return err
	}
	if severity := wraparoundSeverity(max(ofTable, ofDatabase)); severity > OK {
		of := "a table of the app"
		if ours {
			of = "a table of the outbox"
		}
		v.add("wraparound", severity, table, fmt.Sprintf(
			"%s, %s, has transaction ids that are %d old: at about 2,100,000,000 the server refuses writes", table, of, ofTable),
			"end the sessions and slots that hold up vacuum (held-transaction, prepared-transaction, replication-slot, "+
				"standby-feedback), then VACUUM (FREEZE) "+table)
	}
	return nil
}

// wraparoundSeverity is by age. Autovacuum starts at autovacuum_freeze_max_age, 200 million by
// default; at vacuum_failsafe_age, 1,600 million, it does nothing else.
func wraparoundSeverity(age int64) Severity { return grade(age, 1_000_000_000, 1_500_000_000) }
