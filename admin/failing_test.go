package admin_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

// A minute is written as finished/failed, the oldest first; the last one is not sampled yet.
func TestATypeWhoseRunsFailIsNamedWithSinceWhenAndItsLastError(t *testing.T) {
	t.Parallel()
	db := relaytest.Open(t, relaytest.Migrated(t))
	now := db.Text(t, `SELECT now()`)
	began := time.UnixMicro(int64(db.Int(t, `SELECT (extract(epoch FROM $1::timestamptz) * 1e6)::bigint`, now)))
	db.Do(t, `INSERT INTO outbox.sample (task_type, at, ready, scheduled, leased, waiting, dead, finished, failed,
			oldest_ready)
		SELECT '', $1::timestamptz - n * interval '1 minute', 0, 0, 0, 0, 0, 0, 0, 0 FROM generate_series(1, 9) AS n`, now)
	cases := []struct{ name, minutes, want string }{
		{"from the first minute on", "0/0 0/3", "2 0/3"},
		{"each run of an hour", "0/0 0/9 0/1 0/0 0/2", "5 0/12"},
		{"in the present minute", "5/0 9/0 0/3", "1 0/3"},
		{"more than it finishes", "9/0 2/3 1/4", "2 3/7"},
		{"too few runs", "9/0 0/2", ""},
		{"as many as it finishes", "9/0 4/4 4/4", ""},
		{"no more", "9/0 0/50 30/2 1/0", ""},
		{"no more, but seldom", "0/3 0/50 1/0 0/2", ""},
		{"none", "9/0 0/0 4/0", ""},
		{"before its first sample", "0/7", "1 0/7"},
		{"and after it", "0/7 0/0", "2 0/7"},
	}
	for _, c := range cases {
		var finished, failed, n int
		minutes := strings.Fields(c.minutes)
		for i, minute := range minutes {
			fmt.Sscanf(minute, "%d/%d", &finished, &failed)
			db.Do(t, `INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind)
				VALUES (0, $2, $1, 'ready'), ($3, 0, $1, 'failed')`, c.name, finished, failed)
			if n = len(minutes) - 1 - i; n > 0 {
				db.Do(t, `INSERT INTO outbox.sample (task_type, at, ready, scheduled, leased, waiting, dead, oldest_ready,
						finished, failed)
					SELECT $1, $3::timestamptz - $2 * interval '1 minute', 0, 0, 0, 0, 0, 0,
						sum(arrived), sum(tasks) FILTER (WHERE kind = 'failed')
					  FROM outbox.counter_log WHERE task_type = $1 AND kind IN ('ready', 'failed')`, c.name, n, now)
			}
		}
		db.Do(t, `INSERT INTO outbox.task (task_type, state, attempt, run_at, last_error)
			VALUES ($1, 'scheduled', 3, now() + interval '1 hour', 'earlier'),
				($1, 'scheduled', 1, now(), 'no such host')`, c.name)
		db.Do(t, `UPDATE outbox.task SET attempted_at = now() - (attempt - 1) * interval '1 hour'`)
	}
	types, err := client(t, db.DB).Types(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, of := range types {
		if f := of.Failing; f != nil {
			ago := int(began.Sub(f.Since).Round(time.Minute).Minutes())
			got[of.Type] = fmt.Sprintf("%d %d/%d", ago, f.Finished, f.Failed)
			if f.LastError != "no such host" {
				t.Errorf("%s: the last error is %q", of.Type, f.LastError)
			}
		}
	}
	for _, c := range cases {
		if got[c.name] != c.want {
			t.Errorf("%s (%s): got %q, want %q", c.name, c.minutes, got[c.name], c.want)
		}
	}
	db.Do(t, `INSERT INTO outbox.dead_task (task_id, run_at, created_at, died_at, attempt, max_attempts, reason, task_type,
			payload, last_error)
		SELECT n, now(), now(), now() - n * interval '1 hour', 1, 1, 'handler', 'before its first sample', '{}', 'death ' || n
		  FROM generate_series(900001, 900009) AS n`)
	db.Do(t, `DELETE FROM outbox.task`)
	types, err = client(t, db.DB).Types(t.Context())
	i := slices.IndexFunc(types, func(of admin.Type) bool {
		return of.Type == "before its first sample" && of.Failing != nil
	})
	if err != nil || i < 0 || types[i].Failing.LastError != "death 900001" {
		t.Errorf("where all are dead: %+v, %v", types, err)
	}
}
