package admin_test

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/txoutbox/outbox/admin"
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
			filter admin.Filter
			want   []int64
		}{
			"zero":          {admin.Filter{}, []int64{4, 3, 2, 1}},
			"all":           {admin.Filter{All: true}, []int64{4, 3, 2, 1}},
			"ids":           {admin.Filter{IDs: []int64{4, 2, 99}}, []int64{4, 2}},
			"no ids":        {admin.Filter{IDs: []int64{}}, nil},
			"type":          {admin.Filter{Type: "MAIL"}, []int64{2, 1}},
			"reason":        {admin.Filter{Reason: admin.ReasonLostConnections}, []int64{3}},
			"error":         {admin.Filter{Error: "connection refused"}, []int64{4, 1}},
			"error with %":  {admin.Filter{Error: `50% of it_em \`}, []int64{2}},
			"error with _":  {admin.Filter{Error: "50_"}, nil},
			"after":         {admin.Filter{DiedAfter: now.Add(-35 * time.Minute)}, []int64{4, 3}},
			"before":        {admin.Filter{DiedBefore: now.Add(-35 * time.Minute)}, []int64{2, 1}},
			"older":         {admin.Filter{OlderThan: 25 * time.Minute}, []int64{3, 2, 1}},
			"older by then": {admin.Filter{OlderThan: 25 * time.Minute}.Until(now.Add(-10 * time.Minute)), []int64{2, 1}},
			"before, then":  {admin.Filter{DiedBefore: now.Add(-45 * time.Minute)}.Until(now), []int64{1}},
			"together": {admin.Filter{Type: "MAIL", Reason: admin.ReasonAttempts, Error: "refused",
				DiedAfter: now.Add(-time.Hour), DiedBefore: now, OlderThan: time.Minute}, []int64{1}},
			"ids and a type": {admin.Filter{Type: "MAIL", IDs: []int64{1, 3}}, []int64{1}},
		} {
			for _, look := range []int{0, 2000} {
				p := admin.Page{Look: look}
				got, next, err1 := c.DeadLetters(t.Context(), tt.filter, p)
				n, end, err2 := c.CountDeadLetters(t.Context(), tt.filter, p)
				if !slices.Equal(ids(got), tt.want) || int(n) != len(tt.want) || next+end != "" || err1 != nil || err2 != nil {
					t.Errorf("%s, look %d: got %v, %q, %v; counted %d, %q, %v; want %v",
						name, look, ids(got), next, err1, n, end, err2, tt.want)
				}
			}
		}
	})
}

// A field without a condition would let Purge delete the dead letters that it does not mean.
func TestEachFieldOfAFilterIsACondition(t *testing.T) {
	t.Parallel()
	indexed := []string{"IDs", "Type", "DiedAfter", "DiedBefore", "OlderThan"}
	for i, of := 0, reflect.TypeFor[admin.Filter](); i < of.NumField(); i++ {
		var f admin.Filter
		name, field := of.Field(i).Name, reflect.ValueOf(&f).Elem().Field(i)
		switch value := field.Addr().Interface().(type) {
		case *string:
			*value = "x"
		case *time.Time:
			*value = time.Unix(1, 0)
		case *time.Duration:
			*value = time.Hour
		case *[]int64:
			*value = []int64{1}
		case *bool: // All
			continue
		default:
			t.Fatalf("there is no value of %s", name)
		}
		if f.String() == "all" {
			t.Errorf("%s is no condition", name)
		}
		if got := admin.Searches(f); got == slices.Contains(indexed, name) {
			t.Errorf("%s: a search is %v", name, got)
		}
	}
}
