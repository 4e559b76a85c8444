package doctor

import (
	"context"
	"fmt"
)

// oldestTested and newestTested are the major versions of PostgreSQL that the outbox is tested with.
const oldestTested, newestTested = 14, 18

const serverSQL = `/* outbox: the server */
SELECT current_setting('server_version'), current_setting('server_version_num')::integer,
       pg_is_in_recovery(), current_setting('fsync')::boolean, current_setting('full_page_writes')::boolean,
       current_setting('synchronous_commit')`

func checkServer(ctx context.Context, v *visit) error {
	var version, commit string
	var number int
	var standby, fsync, pages bool
	if err := v.row(ctx, serverSQL, nil, &version, &number, &standby, &fsync, &pages, &commit); err != nil {
		return err
	}
	switch major := number / 10000; {
	case major < oldestTested:
		v.add("server-version", Critical, version,
			fmt.Sprintf("PostgreSQL %s is too old: schema.Migrate and relays refuse it", version),
			fmt.Sprintf("use PostgreSQL %d to %d", oldestTested, newestTested))
	case major > newestTested:
		v.add("server-version", Warning, version,
			fmt.Sprintf("PostgreSQL %s is newer than the tested versions, %d to %d", version, oldestTested,
				newestTested),
			"look for a version of the module github.com/txoutbox/outbox that names it; until then try each change "+
				"on staging")
	}
	if standby {
		v.add("primary", Info, "",
			"the server is a standby: relays cannot work on it, and its sessions and statistics are its own",
			"ask the primary as well")
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
			"synchronous_commit is off for this role: a crash of the server may lose the latest commits of such "+
				"roles, "+
				"tasks and business rows alike",
			"leave it on where tasks are enqueued and run, unless that is intended")
	}
	return nil
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
			fmt.Sprintf("the server's queue of notifications is %.1f %% full: once it is full, commits that notify "+
				"fail, "+
				"enqueues of tasks among them", float64(usage)/10000),
			"end the session that listens and does not read, mostly one that is idle in a transaction: "+
				"see held-transaction, and the server's log, which names its pid")
	}
	return nil
}

func queueSeverity(usage int64) Severity { return grade(usage, 50_000, 500_000) }
