package outbox_test

import (
	"context"
	"database/sql"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
)

// BenchmarkEnqueueBesideBareInserts prints the median ratio of turns, of BEGIN, a bare INSERT, COMMIT on 8 connections to the same with
// an Enqueue: go test . -run '^$' -bench EnqueueBeside -benchtime 1x
func BenchmarkEnqueueBesideBareInserts(b *testing.B) {
	d := newDatabase(b)
	exec(b, d.db, bareTable)
	const connections, each = 8, 60
	d.db.SetMaxIdleConns(connections)
	d.db.SetMaxOpenConns(connections)
	timed := func(insert func(tx *sql.Tx) error) float64 {
		began := time.Now()
		var all sync.WaitGroup
		for range connections {
			all.Go(func() {
				for range each {
					tx, err := d.db.BeginTx(context.Background(), nil)
					if err == nil {
						if err = insert(tx); err == nil {
							err = tx.Commit()
						}
					}
					if err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
		return time.Since(began).Seconds()
	}
	ours := func(tx *sql.Tx) error {
		_, err := outbox.Enqueue(b.Context(), tx, "SEND_WELCOME", Welcome{UserID: 12345})
		return err
	}
	bare := func(tx *sql.Tx) error {
		var id int64
		return tx.QueryRowContext(b.Context(), `INSERT INTO bare (task_type, payload) VALUES ($1, $2::jsonb) RETURNING task_id`, "SEND_WELCOME", `{"user_id":12345}`).Scan(&id)
	}
	for b.Loop() {
		timed(ours)
		timed(bare)
		var took, raw, ratios []float64
		for range 20 { // each goes first as often
			r, o := timed(bare), timed(ours)
			o += timed(ours)
			r += timed(bare)
			took, raw, ratios = append(took, o/2), append(raw, r/2), append(ratios, r/o)
		}
		b.ReportMetric(connections*each/median(took), "tasks/s")
		b.ReportMetric(connections*each/median(raw), "bare-rows/s")
		b.ReportMetric(median(ratios), "of-bare")
		b.ReportMetric(0, "ns/op")
	}
}
