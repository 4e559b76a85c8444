package relay

import (
	"database/sql"
	"log/slog"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/decide"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/report"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/tail"
)

// newUnsent is a teller whose database is closed.
func newUnsent(t *testing.T) *teller {
	t.Helper()
	db, err := sql.Open("postgres", "postgres://127.0.0.1:1/nowhere")
	if err != nil {
		t.Fatal(err)
	}
	_ = db.Close()
	return newTeller(store.NewUUID(), "outbox", pg.NewPool(db), slog.New(slog.DiscardHandler),
		func() time.Duration { return 0 })
}

// What is too much, and what cannot be sent, is told by its number later; memory is bounded.
func TestWhatATellerCannotSendIsCounted(t *testing.T) {
	t.Parallel()
	o := newUnsent(t)
	o.looked(time.Minute)
	for i := range tailMost + 500 {
		o.ended(report.End{Type: "T", Tasks: []report.TaskEnd{{ID: int64(i + 1), Outcome: decide.Done}}})
	}
	if len(o.events) != tailMost || o.leftOut != 500 || o.events[tailMost-1].TaskID != tailMost {
		t.Errorf("%d events are kept, and %d left out", len(o.events), o.leftOut)
	}
	if err := o.send(); err == nil {
		t.Error("a closed pool sent them")
	}
	if o.leftOut != tailMost+500 || len(o.events) != 0 {
		t.Errorf("%d events are kept, and %d left out", len(o.events), o.leftOut)
	}
	many := report.End{Type: "T", Tasks: make([]report.TaskEnd, tailMost+3)}
	for i := range many.Tasks {
		many.Tasks[i].ID = int64(i + 1)
	}
	o.ended(many)
	if o.leftOut != tailMost+503 {
		t.Errorf("of a batch that is too large %d events are left out", o.leftOut-tailMost-500)
	}
	texts := tail.Encode(tail.Message{Relay: o.relayID, LeftOut: o.leftOut, Events: o.events})
	if m, ok := tail.Decode(texts[0]); !ok || m.LeftOut != o.leftOut {
		t.Errorf("%d events are told as left out", m.LeftOut)
	}
}

func TestATellerCollectsNothingWhileNobodyLooks(t *testing.T) {
	o := newUnsent(t)
	runs := func() {
		end := report.End{Type: "T", Tasks: []report.TaskEnd{{ID: 1}}}
		o.ended(end)
		o.began(report.Begun{Type: "T"})
		o.lost(report.Lost{Type: "T", TaskID: 1})
	}
	for _, left := range []time.Duration{0, -time.Second} {
		o.looked(left)
		if runs(); o.on() || len(o.events) > 0 {
			t.Errorf("%v are left, and %d events are kept", left, len(o.events))
		}
	}
	if n := testing.AllocsPerRun(100, runs); n > 1 { // the tasks of this test
		t.Errorf("%v allocations of a run that nobody looks at", n)
	}
	if err := o.send(); err != nil {
		t.Errorf("it sent something: %v", err)
	}
}
