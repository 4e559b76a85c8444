package relay_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/proxy"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/pgdb"
	"github.com/txoutbox/outbox/relay"
)

// F24, C6. A relay with one worker works again within 45 s after one of its connections has fallen
// silent, whatever was said on it last. (LISTEN has a watch of its own.)
func TestASilentConnectionCostsAWorkerLessThan45Seconds(t *testing.T) {
	needs.Timing(t)
	t.Parallel()
	end := proxy.Commit("INSERT INTO effect")
	for name, c := range map[string]struct {
		kind string
		at   func(statement, before string) bool
	}{
		"begin":           {"tx", proxy.Statement("BEGIN")},
		"claim":           {"tx", proxy.Statement("outbox: claim")},
		"journal":         {"tx", proxy.Statement("outbox: journal runs")},
		"handler":         {"tx", proxy.Statement("INSERT INTO effect")},
		"end":             {"tx", proxy.Statement("SET CONSTRAINTS ALL IMMEDIATE")},
		"commit":          {"tx", end},
		"poll":            {"tx", proxy.Statement("outbox: poll")},
		"batch committed": {"batch", end},
		"lease":           {"complete", proxy.Statement("outbox: lease")},
		"lease committed": {"complete", proxy.Commit("outbox: lease")},
		"heartbeat":       {"complete", proxy.Statement("outbox: heartbeat")},
		"complete":        {"complete", end},
	} {
		for _, how := range []proxy.How{proxy.SilenceRequest, proxy.SilenceReply} {
			t.Run(name+map[proxy.How]string{proxy.SilenceRequest: ", request", proxy.SilenceReply: ", reply"}[how],
				func(t *testing.T) {
					t.Parallel()
					db := newDatabase(t, "postgres")
					p, url := relaytest.Through(t, db.URL)
					pool, err := pgdb.Open(url)
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { pool.Close() })
					reg := handlers.New()
					relaytest.Register(reg, c.kind, "SILENT", 10,
						func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[payload]) error {
							for _, task := range tasks {
								if err := effect(ctx, tx, task.ID, task.Attempt); err != nil {
									return err
								}
							}
							return nil
						}, handlers.Timeout(10*time.Second))
					run(t, &database{&relaytest.Database{DB: pool, URL: db.URL}}, reg,
						relay.Config{Workers: 1, PollInterval: 100 * time.Millisecond})
					db.Enqueue(t, "SILENT", 1)
					db.Emptied(t, 20*time.Second)
					caught := make(chan struct{})
					p.Set(&proxy.Trap{Catches: c.at, How: how, Then: func() { close(caught) }})
					db.Enqueue(t, "SILENT", 1)
					<-caught
					fell := time.Now()
					db.Enqueue(t, "SILENT", 3)
					db.Emptied(t, 60*time.Second)
					if took := time.Since(fell); took > 45*time.Second {
						t.Errorf("the tasks were done %v after the silence began, want 45 s", took)
					}
					db.OnceEach(t, 5)
					db.becomes(t, 20*time.Second, 1, "the relay's heartbeat goes on", `SELECT count(*) FROM outbox.relay
					WHERE alive_until > $1::timestamptz + interval '15 s'`, fell.Format(time.RFC3339Nano))
				})
		}
	}
}
