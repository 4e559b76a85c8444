package dashboard

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/pgerr"
)

const beginActionSQL = `/* outbox: dashboard: bound the statements of an action */
SELECT set_config('statement_timeout', $1, true), set_config('lock_timeout', $2, true)`

// act calls f with a client that notes its actions in the audit log, in a transaction, and writes a
// line to the log. f returns how many tasks it was about. It goes on when the viewer leaves.
func (v *view) act(action, target string, f func(ctx context.Context, c *admin.Client) (int64, error)) (n int64, err error) {
	v.limit = 2 * v.config.StatementTimeout
	ctx, cancel := context.WithTimeout(context.WithoutCancel(v.r.Context()), 4*v.config.StatementTimeout)
	defer cancel()
	client, err := v.operator()
	if err != nil {
		return 0, err
	}
	timeout := strconv.FormatInt(v.limit.Milliseconds(), 10)
	err = outbox.InTx(ctx, v.db, func(tx *sql.Tx) error {
		// Else it fails where the default is stricter and another transaction takes the same rows.
		if _, err := tx.ExecContext(ctx, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"); err != nil {
			return fmt.Errorf("dashboard: begin: %w", pgerr.WithoutDSN(err))
		}
		var ignored [2]string
		if err := tx.QueryRowContext(ctx, beginActionSQL, timeout, timeout).Scan(&ignored[0], &ignored[1]); err != nil {
			return fmt.Errorf("dashboard: begin: %w", pgerr.WithoutDSN(err))
		}
		n, err = f(ctx, client.In(tx))
		return err
	})
	return v.acted(action, target, n, err)
}

// operator is a client that acts in the viewer's name.
func (v *view) operator() (*admin.Client, error) {
	return admin.New(v.db, admin.Options{Schema: v.config.Schema, Actor: v.Actor, Tool: "dashboard"})
}

// acted logs an action.
func (v *view) acted(action, target string, n int64, err error) (int64, error) {
	v.snapshots.forget()
	if err != nil {
		v.log.Warn("outbox: dashboard: action failed", "actor", v.Actor, "action", action, "target", target, "error", pgerr.WithoutDSN(err))
		return 0, err
	}
	if n > 0 {
		v.log.Info("outbox: dashboard: action", "actor", v.Actor, "action", action, "target", target, "count", n)
	}
	return n, nil
}

func (v *view) pause() error {
	name, action, done, do := v.r.PostForm.Get("name"), "pause", "paused", (*admin.Client).PauseType
	if strings.HasSuffix(v.r.URL.Path, "/resume") {
		action, done, do = "resume", "resumed", (*admin.Client).ResumeType
	}
	_, err := v.act(action, name, func(ctx context.Context, c *admin.Client) (int64, error) { return 1, do(c, ctx, name) })
	if err != nil {
		return err
	}
	return v.redirect("type", told(url.Values{"name": {name}}, done, 1))
}

func (v *view) cancel() error {
	id, err := taskID(v.r.PostForm.Get("id"))
	if err != nil {
		return err
	}
	var t admin.Task
	var canceled, requested []int64
	_, err = v.act("cancel", "task "+strconv.FormatInt(id, 10), func(ctx context.Context, c *admin.Client) (_ int64, err error) {
		if t, err = c.Task(ctx, id); err != nil {
			return 0, err
		}
		canceled, requested, err = c.Cancel(ctx, id)
		return int64(len(canceled) + len(requested)), err
	})
	switch {
	case err != nil:
		return err
	case len(requested) > 0:
		return v.redirect("task", told(url.Values{"id": {strconv.FormatInt(id, 10)}}, "requested", 1))
	case len(canceled) > 0: // its page is no more
		return v.redirect("type", told(url.Values{"name": {t.Type}}, "canceled", 1))
	}
	return v.redirect("type", told(url.Values{"name": {t.Type}}, "gone", 0))
}

func (v *view) runNow() error {
	id, err := taskID(v.r.PostForm.Get("id"))
	if err != nil {
		return err
	}
	n, err := v.act("run_now", "task "+strconv.FormatInt(id, 10), func(ctx context.Context, c *admin.Client) (int64, error) {
		due, err := c.RunNow(ctx, id)
		return int64(len(due)), err
	})
	if err != nil {
		return err
	}
	return v.redirect("task", told(url.Values{"id": {strconv.FormatInt(id, 10)}}, "run-now", n))
}

// redrive is of one dead letter (the button of its row or page), or of those that are chosen in the
// list.
func (v *view) redrive() error {
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
	filter, err := deadFilterOf(form)
	if err != nil {
		return err
	}
	back, page := filter.query(), "dead"
	if form.Get("back") == "task" && one != "" {
		back, page = url.Values{"id": {one}}, "task"
	}
	if len(ids) == 0 {
		return v.redirect(page, told(back, "none", 0))
	}
	target := "task " + strconv.FormatInt(ids[0], 10)
	if len(ids) > 1 {
		target = strconv.Itoa(len(ids)) + " chosen tasks"
	}
	n, err := v.act("redrive", target, func(ctx context.Context, c *admin.Client) (int64, error) {
		moved, _, err := c.Redrive(ctx, admin.Filter{IDs: ids}, admin.Page{})
		return int64(len(moved)), err
	})
	if err != nil {
		return err
	}
	return v.redirect(page, told(back, "redriven", n))
}

func (v *view) schedule() error {
	name := v.r.PostForm.Get("name")
	action, done, do := "pause_schedule", "schedule-paused", (*admin.Client).PauseSchedule
	switch v.r.PostForm.Get("do") {
	case "pause":
	case "resume":
		action, done, do = "resume_schedule", "schedule-resumed", (*admin.Client).ResumeSchedule
	default:
		return badRequest("A schedule can be paused or resumed.")
	}
	_, err := v.act(action, name, func(ctx context.Context, c *admin.Client) (int64, error) { return 1, do(c, ctx, name) })
	if errors.Is(err, admin.ErrNotFound) {
		return problem{http.StatusNotFound, "There is no such schedule."}
	}
	if err != nil {
		return err
	}
	return v.redirect("schedules", told(nil, done, 1))
}

// handBack takes the leases of a dead relay, in transactions of their own.
func (v *view) handBack() error {
	id := v.r.PostForm.Get("relay")
	err := v.read(func(ctx context.Context, c *admin.Client) error {
		relays, err := c.Relays(ctx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(relays, func(r admin.Relay) bool { return r.RelayID == id })
		if i < 0 {
			return errNotFound
		}
		if relays[i].Alive {
			return problem{http.StatusConflict, "This relay is alive. Only the leases of a dead one can be handed back."}
		}
		return nil
	})
	if err != nil {
		return err
	}
	client, err := v.operator()
	if err != nil {
		return err
	}
	v.limit = 6 * v.config.StatementTimeout
	ctx, cancel := context.WithTimeout(context.WithoutCancel(v.r.Context()), v.limit)
	defer cancel()
	n, err := client.HandBack(ctx, id)
	if n, err = v.acted("hand_back", "relay "+id, n, err); err != nil {
		return err
	}
	return v.redirect("relays", told(nil, "handed-back", n))
}
