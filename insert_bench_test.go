package outbox_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lib/pq"

	"github.com/txoutbox/outbox"
)

// bareTable has the columns, defaults and indexes of the table of tasks, and none of its triggers and CHECKs.
const bareTable = `CREATE TABLE bare (LIKE outbox.task INCLUDING DEFAULTS INCLUDING IDENTITY INCLUDING INDEXES INCLUDING STORAGE)`

// mail is a payload of about 200 bytes.
type mail struct {
	UserID  int64     `json:"user_id"`
	To      string    `json:"to"`
	Subject string    `json:"subject"`
	At      time.Time `json:"at"`
	Retry   bool      `json:"retry"`
	Tags    []string  `json:"tags"`
}

func newMail(n int) mail {
	return mail{int64(n), fmt.Sprintf("user%d@example.com", n), "Your order has been shipped and will arrive soon", time.Date(2025, 1, 2, 3, 4, 5, n, time.UTC), n%2 == 0, []string{"order", "shipping"}}
}

// BenchmarkEnqueueMany prints the tasks a second of calls of 5,000 on lib/pq, the rows a second of the bare INSERT of the same rows
// with payloads that are made before, and the median ratio of turns: go test . -run '^$' -bench EnqueueMany -benchtime 1x
func BenchmarkEnqueueMany(b *testing.B) {
	const n = 5000
	for name, payload := range map[string]func(int) any{
		"small": func(i int) any { return Welcome{UserID: int64(i)} },
		"200B":  func(i int) any { return newMail(i) },
		"2kB":   func(i int) any { return map[string]string{"text": strings.Repeat("It's \"quoted\". ", 130)} },
	} {
		b.Run(name, func(b *testing.B) {
			d := newDatabase(b)
			exec(b, d.db, bareTable)
			tasks, types, payloads := make([]outbox.NewTask, n), make([]string, n), make([]string, n)
			for i := range tasks {
				tasks[i] = outbox.NewTask{Type: "SEND_WELCOME", Payload: payload(i)}
				text, err := json.Marshal(tasks[i].Payload)
				if err != nil {
					b.Fatal(err)
				}
				types[i], payloads[i] = tasks[i].Type, string(text)
			}
			timed := func(insert func(tx outbox.Querier) error) float64 {
				began := time.Now()
				tx := begin(b, d.db)
				if err := insert(tx); err != nil {
					b.Fatal(err)
				}
				if err := tx.Commit(); err != nil {
					b.Fatal(err)
				}
				return time.Since(began).Seconds()
			}
			ours := func(tx outbox.Querier) error {
				_, err := outbox.EnqueueMany(b.Context(), tx, tasks)
				return err
			}
			bare := func(tx outbox.Querier) error {
				_, err := tx.ExecContext(b.Context(), `INSERT INTO bare (task_type, payload) SELECT t, p::jsonb FROM unnest($1::text[], $2::text[]) AS n (t, p)`, pq.Array(types), pq.Array(payloads))
				return err
			}
			for b.Loop() {
				var took, raw, ratios []float64
				for round := range 24 {
					if round%8 == 0 {
						exec(b, d.db, `TRUNCATE outbox.task, bare`)
						timed(ours)
						timed(bare)
					}
					o, r := timed(ours), timed(bare)
					took, raw, ratios = append(took, o), append(raw, r), append(ratios, r/o)
				}
				b.ReportMetric(n/median(took), "tasks/s")
				b.ReportMetric(n/median(raw), "bare-rows/s")
				b.ReportMetric(median(ratios), "of-bare")
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}
