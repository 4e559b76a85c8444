package admin_test

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

func TestFiltersSayWhichDeadLettersAreMeant(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		bury(t, db, "MAIL", "attempts", "dial tcp: connection refused", 1, 1, 50)
		bury(t, db, "MAIL", "handler", "dead: 50% of it_em \\ is wrong", 2, 1, 40)
		bury(t, db, "PAY", "lost_connections", "relay: 10 runs", 3, 1, 30)
		bury(t, db, "PAY", "committed", "connection refused", 4, 1, 20)
		now, c := time.Now(), client(t, db.DB)
		for name, tt := range map[string]struct {
			filter admin.DeadFilter
			want   []int64
		}{
			"zero":         {admin.DeadFilter{}, []int64{4, 3, 2, 1}},
			"all":          {admin.DeadFilter{All: true}, []int64{4, 3, 2, 1}},
			"ids":          {admin.DeadFilter{IDs: []int64{4, 2, 99}}, []int64{4, 2}},
			"no ids":       {admin.DeadFilter{IDs: []int64{}}, nil},
			"type":         {admin.DeadFilter{Type: "MAIL"}, []int64{2, 1}},
			"reason":       {admin.DeadFilter{Reason: outbox.ReasonLostConnections}, []int64{3}},
			"error":        {admin.DeadFilter{Error: "connection refused"}, []int64{4, 1}},
			"error with %": {admin.DeadFilter{Error: `50% of it_em \`}, []int64{2}},
			"error with _": {admin.DeadFilter{Error: "50_"}, nil},
			"after":        {admin.DeadFilter{DiedAfter: now.Add(-35 * time.Minute)}, []int64{4, 3}},
			"before":       {admin.DeadFilter{DiedBefore: now.Add(-35 * time.Minute)}, []int64{2, 1}},
			"older":        {admin.DeadFilter{OlderThan: 25 * time.Minute}, []int64{3, 2, 1}},
			"together": {admin.DeadFilter{Type: "MAIL", Reason: outbox.ReasonAttempts, Error: "refused",
				DiedAfter: now.Add(-time.Hour), DiedBefore: now, OlderThan: time.Minute}, []int64{1}},
			"ids and a type": {admin.DeadFilter{Type: "MAIL", IDs: []int64{1, 3}}, []int64{1}},
		} {
			for _, look := range []int{0, 2000} {
				q := admin.DeadQuery{Filter: tt.filter, MaxScan: look}
				got, next, err1 := tasksOf(c.DeadLetters(t.Context(), q))
				n, err2 := c.CountDeadLetters(t.Context(), q)
				want := admin.DeadCount{Count: int64(len(tt.want))}
				if !slices.Equal(ids(got), tt.want) || n != want || next != "" || err1 != nil || err2 != nil {
					t.Errorf("%s, look %d: got %v, %q, %v; counted %+v, %v; want %v",
						name, look, ids(got), next, err1, n, err2, tt.want)
				}
			}
		}
	})
}

// A field without a condition, or with that of another column, would let Purge delete dead letters
// that it does not mean. A field selects by the field of Task that has its name, or has a value
// here.
func TestEachFieldOfAFilterIsACondition(t *testing.T) {
	t.Parallel()
	db := relaytest.Open(t, relaytest.Migrated(t))
	fill(t, db, "dead_task", 1, map[string]any{"state": "dead", "reason": outbox.ReasonHandler})
	fill(t, db, "dead_task", 2, map[string]any{"state": "dead", "reason": outbox.ReasonCommitted})
	c := client(t, db.DB)
	older, err1 := c.Task(t.Context(), 1)
	newer, err2 := c.Task(t.Context(), 2)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	given := map[string]admin.DeadFilter{
		"IDs": {IDs: []int64{1}}, "Error": {Error: older.LastError},
		"DiedAfter": {DiedAfter: newer.EndedAt}, "DiedBefore": {DiedBefore: newer.EndedAt},
		"OlderThan": {OlderThan: time.Since(newer.EndedAt) + time.Hour},
	}
	indexed := []string{"IDs", "Type", "DiedAfter", "DiedBefore", "OlderThan"}
	for i, of := 0, reflect.TypeFor[admin.DeadFilter](); i < of.NumField(); i++ {
		name := of.Field(i).Name
		if name == "All" {
			continue
		}
		f, ok := given[name]
		if !ok {
			value, to := reflect.ValueOf(older).FieldByName(name), reflect.ValueOf(&f).Elem().Field(i)
			if !value.IsValid() || value.Type() != to.Type() {
				t.Fatalf("there is no value of %s", name)
			}
			to.Set(value)
		}
		want := []int64{1}
		if name == "DiedAfter" {
			want = []int64{2}
		}
		if f.String() == "all" {
			t.Errorf("%s is no condition", name)
		}
		if got := admin.Searches(f); got == slices.Contains(indexed, name) {
			t.Errorf("%s: a search is %v", name, got)
		}
		got, _, err1 := tasksOf(c.DeadLetters(t.Context(), admin.DeadQuery{Filter: f}))
		n, err2 := c.CountDeadLetters(t.Context(), admin.DeadQuery{Filter: f})
		if !slices.Equal(ids(got), want) || n.Count != 1 || err1 != nil || err2 != nil {
			t.Errorf("%v: got %v, %v; counted %d, %v; want %v", f, ids(got), err1, n.Count, err2, want)
		}
	}
}
