package dashboard

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/audit"
	"github.com/txoutbox/outbox/deadletter"
	"github.com/txoutbox/outbox/inspect"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/relay"
)

const beginActionSQL = `/* outbox: dashboard: bound the statements of an action */
SELECT set_config('statement_timeout', $1, true), set_config('lock_timeout', $2, true)`

// act does something in a transaction with its entry in the audit log, and writes a line to the log. f returns how many tasks it was about;
// for none there is no entry. It goes on when the viewer leaves.
func (v *view) act(e audit.Entry, f func(ctx context.Context, tx *sql.Tx) (int64, error)) (n int64, err error) {
	return v.acts(e, func(ctx context.Context, tx *sql.Tx) ([]audit.Entry, error) {
		n, err := f(ctx, tx)
		if err != nil || n == 0 {
			return nil, err
		}
		e.Count = n
		return []audit.Entry{e}, nil
	})
}

// acts is as act, for what f has the entries of. asked is what the log says was asked for after an error.
func (v *view) acts(asked audit.Entry, f func(ctx context.Context, tx *sql.Tx) ([]audit.Entry, error)) (n int64, err error) {
	h := v.h
	v.limit = 2 * h.config.StatementTimeout
	ctx, cancel := context.WithTimeout(context.WithoutCancel(v.r.Context()), 4*h.config.StatementTimeout)
	defer cancel()
	timeout := strconv.FormatInt(v.limit.Milliseconds(), 10)
	var entries []audit.Entry
	err = outbox.InTx(ctx, h.db, func(tx *sql.Tx) error {
		// Else it fails where the default is stricter and another transaction takes the same rows.
		if _, err := tx.ExecContext(ctx, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"); err != nil {
			return fmt.Errorf("dashboard: begin: %w", pgerr.WithoutDSN(err))
		}
		var ignored [2]string
		if err := tx.QueryRowContext(ctx, beginActionSQL, timeout, timeout).Scan(&ignored[0], &ignored[1]); err != nil {
			return fmt.Errorf("dashboard: begin: %w", pgerr.WithoutDSN(err))
		}
		if entries, err = f(ctx, tx); err != nil {
			return err
		}
		for i := range entries {
			entries[i].Actor, entries[i].Tool = v.Actor, "dashboard"
			if _, err := audit.Write(ctx, tx, entries[i], audit.Schema(h.config.Schema)); err != nil {
				return err
			}
		}
		return nil
	})
	h.shared.stale()
	if err != nil {
		h.log.Warn("outbox: dashboard: action failed", "actor", v.Actor, "action", asked.Action, "target", asked.Target, "error", pgerr.WithoutDSN(err))
		return 0, err
	}
	for _, e := range entries {
		n += e.Count
		h.log.Info("outbox: dashboard: action", "actor", e.Actor, "action", e.Action, "target", e.Target, "count", e.Count)
	}
	return n, nil
}

// note writes an entry of something that takes no transaction.
func (v *view) note(e audit.Entry) error {
	_, err := v.acts(e, func(context.Context, *sql.Tx) ([]audit.Entry, error) { return []audit.Entry{e}, nil })
	return err
}

// maxTarget is how many bytes the target of an entry has at most.
const maxTarget = 1024

// entriesOf are the entries of an action on tasks: as many as it takes to name all of them.
func entriesOf(action string, ids []int64) (out []audit.Entry) {
	for len(ids) > 0 {
		text, n := "task "+strconv.FormatInt(ids[0], 10), 1
		for ; n < len(ids); n++ {
			longer := text + ", " + strconv.FormatInt(ids[n], 10)
			if n == 1 {
				longer = "tasks " + strings.TrimPrefix(longer, "task ")
			}
			if len(longer) > maxTarget {
				break
			}
			text = longer
		}
		out = append(out, audit.Entry{Action: action, Target: text, Count: int64(n)})
		ids = ids[n:]
	}
	return out
}

// stale has the next page read anew, so that who did something sees it.
func (s *snapshots) stale() {
	s.mu.Lock()
	s.at = time.Time{}
	s.mu.Unlock()
}

// cut is at most n bytes of a text.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n-3], "") + "…"
}

func (h *Handler) pause(v *view) error {
	name, what, done, do := v.r.PostForm.Get("name"), "pause", "paused", outbox.Pause
	if strings.HasSuffix(v.r.URL.Path, "/resume") {
		what, done, do = "resume", "resumed", outbox.Resume
	}
	_, err := v.act(audit.Entry{Action: what, Target: name}, func(ctx context.Context, tx *sql.Tx) (int64, error) {
		return 1, do(ctx, tx, name, outbox.Schema(h.config.Schema))
	})
	if err != nil {
		return err
	}
	return v.redirect("type", told(url.Values{"name": {name}}, done, 1))
}

func (h *Handler) cancel(v *view) error {
	id, err := taskID(v.r.PostForm.Get("id"))
	if err != nil {
		return err
	}
	var taskType, found string
	_, err = v.act(audit.Entry{Action: "cancel", Target: "task " + strconv.FormatInt(id, 10)}, func(ctx context.Context, tx *sql.Tx) (int64, error) {
		t, err := inspect.Get(ctx, tx, id, inspect.Schema(h.config.Schema))
		if err != nil {
			return 0, err
		}
		taskType = t.Type
		r, err := outbox.Cancel(ctx, tx, id, outbox.Schema(h.config.Schema))
		if found = r.String(); r == outbox.NotFound {
			return 0, err
		}
		return 1, err
	})
	switch {
	case err != nil:
		return err
	case found == outbox.NotFound.String():
		return v.redirect("type", told(url.Values{"name": {taskType}}, "gone", 0))
	case found == outbox.Canceled.String(): // its page is no more
		return v.redirect("type", told(url.Values{"name": {taskType}}, found, 1))
	}
	return v.redirect("task", told(url.Values{"id": {strconv.FormatInt(id, 10)}}, found, 1))
}

func (h *Handler) runNow(v *view) error {
	id, err := taskID(v.r.PostForm.Get("id"))
	if err != nil {
		return err
	}
	n, err := v.act(audit.Entry{Action: "run_now", Target: "task " + strconv.FormatInt(id, 10)}, func(ctx context.Context, tx *sql.Tx) (int64, error) {
		if found, err := outbox.RunNow(ctx, tx, id, outbox.Schema(h.config.Schema)); err != nil || !found {
			return 0, err
		}
		return 1, nil
	})
	if err != nil {
		return err
	}
	return v.redirect("task", told(url.Values{"id": {strconv.FormatInt(id, 10)}}, "run-now", n))
}

// redrive is of one dead letter (the button of its row or page), or of those that are chosen in the list.
func (h *Handler) redrive(v *view) error {
	form := v.r.PostForm
	chosen := form["id"]
	one := form.Get("one")
	if one != "" {
		chosen = []string{one}
	}
	var ids []int64
	for _, s := range chosen {
		id, err := taskID(s)
		if err != nil {
			return err
		}
		ids = append(ids, id)
	}
	back, page := deadFilterOf(form).query(), "dead"
	if form.Get("back") == "task" && one != "" {
		back, page = url.Values{"id": {one}}, "task"
	}
	if len(ids) == 0 {
		return v.redirect(page, told(back, "none", 0))
	}
	if len(ids) > 1000 {
		return badRequest("These are more than 1,000 at once.")
	}
	n, err := v.acts(entriesOf("redrive", ids)[0], func(ctx context.Context, tx *sql.Tx) ([]audit.Entry, error) {
		moved, err := deadletter.Redrive(ctx, tx, ids, deadletter.Schema(h.config.Schema))
		slices.Sort(moved)
		return entriesOf("redrive", moved), err
	})
	if err != nil {
		return err
	}
	return v.redirect(page, told(back, "redriven", n))
}

func (h *Handler) schedule(v *view) error {
	name := v.r.PostForm.Get("name")
	what, done, do := "pause_schedule", "schedule-paused", relay.PauseSchedule
	switch v.r.PostForm.Get("do") {
	case "pause":
	case "resume":
		what, done, do = "resume_schedule", "schedule-resumed", relay.ResumeSchedule
	default:
		return badRequest("A schedule can be paused or resumed.")
	}
	_, err := v.act(audit.Entry{Action: what, Target: cut(name, maxTarget)}, func(ctx context.Context, tx *sql.Tx) (int64, error) {
		return 1, do(ctx, tx, name, h.config.Schema)
	})
	if err != nil {
		return err
	}
	return v.redirect("schedules", told(nil, done, 1))
}

// handBack takes the leases of a dead relay. That is done in transactions of 1,000 tasks, so an entry in the audit log is committed before it, and
// another after it says what came of it.
func (h *Handler) handBack(v *view) error {
	id := v.r.PostForm.Get("relay")
	e := audit.Entry{Action: "hand_back", Target: "relay " + cut(id, 64)}
	_, err := v.acts(e, func(ctx context.Context, tx *sql.Tx) ([]audit.Entry, error) {
		relays, err := inspect.Relays(ctx, tx, inspect.Schema(h.config.Schema))
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(relays, func(r inspect.Relay) bool { return r.RelayID == id })
		if i < 0 {
			return nil, errNotFound
		}
		if relays[i].Alive {
			return nil, errAlive
		}
		return []audit.Entry{e}, nil
	})
	if err != nil {
		return err
	}
	limit := 6 * h.config.StatementTimeout
	ctx, cancel := context.WithTimeout(context.WithoutCancel(v.r.Context()), limit)
	defer cancel()
	n, err := relay.HandBack(ctx, h.db, id, h.config.Schema)
	if e.Action, e.Count = "hand_back: done", int64(n); err != nil {
		e.Action = "hand_back: failed"
	}
	_ = v.note(e) // the log has its error, and the tasks are handed back whether it can be written or not
	v.limit = limit
	if err != nil {
		return err
	}
	return v.redirect("relays", told(nil, "handed-back", int64(n)))
}
