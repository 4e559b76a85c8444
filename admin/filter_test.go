package admin_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
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
			"zero":           {admin.Filter{}, []int64{4, 3, 2, 1}},
			"all":            {admin.Filter{All: true}, []int64{4, 3, 2, 1}},
			"ids":            {admin.Filter{IDs: []int64{4, 2, 99}}, []int64{4, 2}},
			"no ids":         {admin.Filter{IDs: []int64{}}, nil},
			"type":           {admin.Filter{Type: "MAIL"}, []int64{2, 1}},
			"reason":         {admin.Filter{Reason: admin.ReasonLostConnections}, []int64{3}},
			"error":          {admin.Filter{Error: "connection refused"}, []int64{4, 1}},
			"error with %":   {admin.Filter{Error: `50% of it_em \`}, []int64{2}},
			"error with _":   {admin.Filter{Error: "50_"}, nil},
			"after":          {admin.Filter{DiedAfter: now.Add(-35 * time.Minute)}, []int64{4, 3}},
			"before":         {admin.Filter{DiedBefore: now.Add(-35 * time.Minute)}, []int64{2, 1}},
			"older":          {admin.Filter{OlderThan: 25 * time.Minute}, []int64{3, 2, 1}},
			"together":       {admin.Filter{Type: "MAIL", Reason: admin.ReasonAttempts, Error: "refused", DiedAfter: now.Add(-time.Hour), DiedBefore: now, OlderThan: time.Minute}, []int64{1}},
			"ids and a type": {admin.Filter{Type: "MAIL", IDs: []int64{1, 3}}, []int64{1}},
		} {
			for _, look := range []int{0, 2000} {
				p := admin.Page{Look: look}
				if got, next, err := c.DeadLetters(t.Context(), tt.filter, p); err != nil || !slices.Equal(ids(got), tt.want) || next != "" {
					t.Errorf("%s, look %d: got %v, %q, %v, want %v", name, look, ids(got), next, err, tt.want)
				}
				if n, next, err := c.CountDeadLetters(t.Context(), tt.filter, p); err != nil || int(n) != len(tt.want) || next != "" {
					t.Errorf("%s, look %d: counted %d, %q, %v, want %d", name, look, n, next, err, len(tt.want))
				}
			}
		}
	})
}

func TestBadFiltersAndPagesAreRefusedBeforeAnySQL(t *testing.T) {
	t.Parallel()
	c, ctx := unreachable(t), t.Context()
	some := admin.Filter{Type: "X"}
	for want, b := range map[string]struct {
		filter admin.Filter
		page   admin.Page
	}{
		"Filter.Type":              {filter: admin.Filter{Type: "a\x00"}},
		"Filter.Error: \"a\\xff\"": {filter: admin.Filter{Error: "a\xff"}},
		"Filter.Reason":            {filter: admin.Filter{Reason: "old age"}},
		"Filter.OlderThan":         {filter: admin.Filter{OlderThan: -1}},
		"Filter.DiedAfter":         {filter: admin.Filter{DiedAfter: time.Unix(1<<50, 0)}},
		"Filter.DiedBefore":        {filter: admin.Filter{DiedBefore: time.Unix(-1<<50, 0)}},
		"Filter.IDs":               {filter: admin.Filter{IDs: make([]int64, 1001)}},
		"Page.Limit: -1":           {some, admin.Page{Limit: -1}},
		"Page.Limit: 1001":         {some, admin.Page{Limit: 1001}},
		"Page.Look: -1":            {some, admin.Page{Look: -1}},
		"Page.Look: 100001":        {some, admin.Page{Look: 100_001}},
		`Page.After: "ready.1"`:    {some, admin.Page{After: "ready.1"}},
		`Page.After: "dead.`:       {some, admin.Page{After: "dead.9223372036854775807.1"}},
	} {
		b.filter.All = true // Redrive and Purge refuse it for no other reason
		for call, do := range map[string]func() error{
			"DeadLetters":      func() error { _, _, err := c.DeadLetters(ctx, b.filter, b.page); return err },
			"CountDeadLetters": func() error { _, _, err := c.CountDeadLetters(ctx, b.filter, b.page); return err },
			"Redrive":          func() error { _, _, err := c.Redrive(ctx, b.filter, b.page); return err },
			"Purge":            func() error { _, _, err := c.Purge(ctx, b.filter, b.page); return err },
		} {
			if err := do(); !errors.Is(err, outbox.ErrInvalidOption) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want ErrInvalidOption with %q", call, err, want)
			}
		}
	}
	for want, do := range map[string]func() error{
		"would redrive all": func() error { return errOf(c.Redrive(ctx, admin.Filter{}, admin.Page{})) },
		"would purge all":   func() error { return errOf(c.Purge(ctx, admin.Filter{}, admin.Page{})) },
		"would take all":    func() error { _, err := c.EveryPage(ctx, c.Purge, admin.Filter{}, 0); return err },
		"-1 a second":       func() error { _, err := c.EveryPage(ctx, c.Purge, some, -1); return err },
	} {
		if err := do(); !errors.Is(err, outbox.ErrInvalidOption) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want ErrInvalidOption with %q", err, want)
		}
	}
}

func errOf(_ []int64, _ string, err error) error { return err }
