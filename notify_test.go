package outbox_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lib/pq"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/schema"
)

// notified returns the channels of the notifications since its last call, or since listen.
type notified func() (channels []string)

// listen listens on the channels, for what has been committed by the time of a call.
func (d database) listen(t *testing.T, channels ...string) notified {
	t.Helper()
	l := pq.NewListener(d.url, 10*time.Millisecond, time.Second, nil)
	t.Cleanup(func() { l.Close() })
	for _, channel := range append(channels, "marker") {
		must(l.Listen(channel))
	}
	return func() (got []string) {
		t.Helper()
		exec(t, d.db, `SELECT pg_notify('marker', '')`) // it arrives after those of earlier commits
		for {
			select {
			case n := <-l.Notify:
				switch {
				case n == nil:
					t.Fatal("the listener lost its connection")
				case n.Channel == "marker":
					return got
				}
				got = append(got, n.Channel+n.Extra)
			case <-time.After(time.Minute):
				t.Fatal("the marker did not arrive")
			}
		}
	}
}

func TestAnEnqueueNotifiesOnlyWhileARelayAsks(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	const other = "select" // a reserved word
	must(schema.Migrate(t.Context(), d.db, schema.Schema(other)))
	received := d.listen(t, "outbox", other)
	for _, c := range []struct {
		when, until string
		want        bool
	}{
		{"when no relay ever requested wake-ups", "", false},
		{"until the second of a request", "extract(epoch FROM clock_timestamp())::bigint + 3600", true},
		{"after that second", "extract(epoch FROM clock_timestamp())::bigint - 1", false},
		{"after the request was withdrawn", "0", false},
	} {
		for _, name := range []string{"outbox", other} {
			if c.until != "" {
				exec(t, d.db, `SELECT setval('"`+name+`".wake', `+c.until+`)`)
			}
			tx := begin(t, d.db)
			first := put(t, tx, "T", 1, outbox.Schema(name))
			put(t, tx, "T", 2, outbox.Schema(name))
			put(t, tx, "T", 1, outbox.Schema(name), outbox.After(time.Hour))
			if got := received(); len(got) != 0 {
				t.Errorf("%s: %s: got %v before the commit, want nothing", c.when, name, got)
			}
			end(t, tx.Commit)
			var want []string
			if c.want {
				want = []string{fmt.Sprintf("%s0 %d T", name, first.ID), name} // the first task, and all others
			}
			if got := received(); !slices.Equal(got, want) {
				t.Errorf("%s: %s: got notifications %q, want %v", c.when, name, got, c.want)
			}
			if c.want {
				exec(t, d.db, `SELECT setval('"`+name+`".wake', 0)`)
			}
		}
	}
}

// Relays of other processes are told by the commit, on the channel of the schema, and of nothing
// that did not happen.
func TestRunNowWakesRelaysWithItsCommit(t *testing.T) {
	t.Parallel()
	const name = "app_outbox"
	d := newDatabase(t, schema.Schema(name))
	exec(t, d.db, `INSERT INTO app_outbox.task (task_type, run_at) SELECT 'T', now() + interval '1 hour'
		FROM generate_series(1, 3)`)
	exec(t, d.db, `SELECT setval('app_outbox.wake', 4102444800)`) // as a relay asks that is idle
	received := d.listen(t, name, "outbox")
	for _, c := range []struct {
		what   string
		taskID int64
		commit bool
		want   []string
	}{{"rolled back", 1, false, nil}, {"committed", 1, true, []string{name}}, {"a task that is ready", 1, true, nil},
		{"an unknown task", 9, true, nil}, {"another one", 2, true, []string{name}}, {"nobody asks", 3, true, nil}} {
		if c.what == "nobody asks" {
			exec(t, d.db, `SELECT setval('app_outbox.wake', 0)`)
		}
		tx := begin(t, d.db)
		if _, err := outbox.RunNow(t.Context(), tx, c.taskID, outbox.Schema(name)); err != nil {
			t.Fatal(err)
		}
		how := tx.Rollback
		if c.commit {
			how = tx.Commit
		}
		end(t, how)
		if got := received(); !slices.Equal(got, c.want) {
			t.Errorf("%s: notified %q, want %q", c.what, got, c.want)
		}
	}
}
