package dashboard_test

import (
	"cmp"
	"fmt"
	"html"
	"io"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/internal/dashboardtest"
)

func size(b *testing.B, name, otherwise string) int {
	b.Helper()
	n, err := strconv.Atoi(cmp.Or(os.Getenv(name), otherwise))
	if err != nil {
		b.Fatalf("%s: %v", name, err)
	}
	return n
}

// BenchmarkPages is how long each page takes for a viewer who is alone, so that nothing is shared with others. OUTBOX_DASHBOARD_TASKS is how many
// tasks are ready (20,000), OUTBOX_DASHBOARD_DEAD how many are dead (2,000). The promise is 200 ms at 10,000,000 and 100,000:
//
//	OUTBOX_DASHBOARD_TASKS=10000000 OUTBOX_DASHBOARD_DEAD=100000 go test ./dashboard -run '^$' -bench Pages -benchtime 20x -timeout 60m
func BenchmarkPages(b *testing.B) {
	tasks, dead := size(b, "OUTBOX_DASHBOARD_TASKS", "20000"), size(b, "OUTBOX_DASHBOARD_DEAD", "2000")
	db := newDatabase(b)
	dashboardtest.Fill(b, db.DB)
	db.Do(b, `ALTER TABLE outbox.task DISABLE TRIGGER USER`) // their counts are written at once, below
	for done := 0; done < tasks; done += 500_000 {
		db.Do(b, `INSERT INTO outbox.task (task_type, payload, created_at, run_at)
			SELECT 'LOAD_' || n % 10, '{"user_id": 12345}', now() - interval '1 hour', now() - interval '1 hour' FROM generate_series($1::int + 1, $2::int) n`, done, min(done+500_000, tasks))
	}
	db.Do(b, `ALTER TABLE outbox.task ENABLE TRIGGER USER`)
	db.Do(b, `INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind) SELECT count(*), count(*), 'LOAD_' || n % 10, 'ready' FROM generate_series(1, $1::int) n GROUP BY 3`, tasks)
	db.Do(b, `INSERT INTO outbox.dead_task (task_id, run_at, created_at, attempted_at, died_at, priority, attempt, max_attempts, reason, task_type, payload, last_error)
		SELECT 100000000 + n, now(), now() - interval '1 day', now(), now() - n * interval '1 second', 0, 10, 10, 'attempts', 'LOAD_' || n % 10, '{"user_id": 12345}', 'dial tcp 10.0.0.1:443: connection refused'
		  FROM generate_series(1, $1::int) n`, dead)
	db.Do(b, `VACUUM ANALYZE outbox.task`)
	db.Do(b, `VACUUM ANALYZE outbox.dead_task`)
	b.Logf("%d tasks are ready, %d are dead", tasks, dead)

	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	fresh := func() http.Handler { // has nothing in its cache
		d, err := dashboard.New(db.DB, dashboard.Config{Authorize: as(everything), Logger: quiet})
		if err != nil {
			b.Fatal(err)
		}
		return d
	}
	middle := db.Int(b, `SELECT max(task_id) FROM outbox.task`) - tasks/2
	deep := "/type?name=LOAD_3&state=ready"
	next := regexp.MustCompile(`rel="next" href="\.([^"]+)"`)
	for range 20 {
		if m := next.FindStringSubmatch(record(b, fresh(), "GET", deep, nil).body); m != nil {
			deep = html.UnescapeString(m[1])
		}
	}
	type page struct{ name, path string }
	run := func(page page) {
		b.Run(page.name, func(b *testing.B) {
			var longest time.Duration
			for range b.N {
				h := fresh()
				start := time.Now()
				a := record(b, h, "GET", page.path, nil)
				longest = max(longest, time.Since(start))
				if a.status != 200 {
					b.Fatalf("got %d: %s", a.status, a.text())
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/1000/float64(b.N), "ms/page")
			b.ReportMetric(float64(longest.Microseconds())/1000, "longest-ms")
			b.ReportMetric(0, "ns/op")
		})
	}
	for _, page := range []page{
		{"overview", "/"}, {"overview 24 h", "/?range=24h"}, {"type", "/type?name=LOAD_3"}, {"type, page 20", deep}, {"type, scheduled", "/type?name=REINDEX_SEARCH&state=scheduled"},
		{"type, dead", "/type?name=LOAD_3&state=dead"}, {"task", fmt.Sprint("/task?id=", middle)}, {"task with payload", "/task?id=100000001&payload=show"},
		{"dead letters", "/dead"}, {"dead letters of a type", "/dead?type=LOAD_3"}, {"dead letters by error", "/dead?error=refused"}, {"dead letters by a rare error", "/dead?error=no+address"},
		{"dead letters by no error", "/dead?error=none+has+this"}, {"dead letters by age", "/dead?older=6h"}, {"bulk, all", "/bulk?do=redrive"}, {"bulk, by error", "/bulk?do=purge&error=refused"},
		{"schedules", "/schedules"}, {"relays", "/relays"}, {"audit", "/audit"},
	} {
		run(page)
	}
	// Errors as long as they are kept, as stacks are.
	db.Do(b, `UPDATE outbox.dead_task SET last_error = last_error || (SELECT string_agg(md5((task_id * 100 + i)::text) || ' main.handle(0x' || to_hex(task_id * i) || ') /src/app/mail.go:123 +0x1f4', chr(10)) FROM generate_series(1, 47) i)
		WHERE task_id > 100000000`)
	db.Do(b, `VACUUM ANALYZE outbox.dead_task`)
	for _, page := range []page{
		{"long errors", "/dead"}, {"long errors, a rare one", "/dead?error=no+address"}, {"long errors, none", "/dead?error=none+has+this"}, {"long errors, bulk", "/bulk?do=purge&error=refused"},
	} {
		run(page)
	}
}
