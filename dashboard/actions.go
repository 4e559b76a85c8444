package dashboard

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// act runs an action in a transaction, with a client that writes its audit entries, and logs it. f
// returns the number of its tasks. The end of the request does not end it.
func (v *view) act(action, target string, f func(ctx context.Context, c *admin.Client) (int64, error)) (int64, error) {
	v.limit = 2 * v.site.config.StatementTimeout
	return v.acted(action, target, 4*v.site.config.StatementTimeout,
		func(ctx context.Context, c *admin.Client) (n int64, err error) {
			begun := false
			err = outbox.InTx(ctx, v.site.db, func(tx *sql.Tx) error {
				begun = true
				// At a stricter level it fails when another transaction changes the same rows.
				begin := fmt.Sprintf("SET TRANSACTION ISOLATION LEVEL READ COMMITTED; "+
					"SET LOCAL statement_timeout = %d; SET LOCAL lock_timeout = %[1]d", v.limit.Milliseconds())
				if _, err := tx.ExecContext(ctx, begin); err != nil {
					return fmt.Errorf("dashboard: begin: %w", pgerr.WithoutDSN(err))
				}
				n, err = f(ctx, c.In(tx))
				return err
			})
			if err != nil && !begun {
				err = pgerr.NoConnection(err)
			}
			if err != nil {
				return 0, err
			}
			return n, nil
		})
}

// acted calls f with a client on the pool whose actor is the viewer, and logs the action: with an
// error also what f did before it, in transactions of its own.
func (v *view) acted(action, target string, timeout time.Duration,
	f func(ctx context.Context, c *admin.Client) (int64, error)) (int64, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(v.r.Context()), timeout)
	defer cancel()
	client, err := admin.New(v.site.db, admin.Config{Schema: v.site.config.Schema, Actor: v.Actor, Tool: "dashboard"})
	if err != nil {
		return 0, err
	}
	n, err := f(ctx, client)
	v.site.snapshots.forget()
	v.changed = n > 0 || errors.Is(err, outbox.ErrCommitUnknown)
	if n > 0 {
		v.site.log.Info("outbox: dashboard: action", "actor", v.Actor, "action", action, "target", target, "count", n)
	}
	if err != nil {
		level := slog.LevelWarn
		if v.explain(err).status >= 500 {
			level = slog.LevelError
		}
		v.site.log.Log(v.r.Context(), level, "outbox: dashboard: action failed",
			"actor", v.Actor, "action", action, "target", target, "error", pgerr.WithoutDSN(err))
		v.logged = true
		return 0, err
	}
	return n, nil
}

// change is an action on the type or schedule of a name. It leads to a page with a notice.
func change(action string, do func(*admin.Client, context.Context, string) error, page,
	notice string) func(*view) error {
	return func(v *view) error {
		name := v.r.PostForm.Get("name")
		_, err := v.act(action, name, func(ctx context.Context, c *admin.Client) (int64, error) {
			return 1, do(c, ctx, name)
		})
		if errors.Is(err, admin.ErrNotFound) {
			return problem{http.StatusNotFound, "", "There is no such schedule."}
		}
		return v.done(err, page, url.Values{"name": {name}}, notice, 1)
	}
}

func (v *view) cancel() error {
	id, err := taskID(v.r.PostForm.Get("id"))
	if err != nil {
		return err
	}
	var t admin.Task
	var r admin.BulkResult
	n, err := v.act("cancel", taskName(id), func(ctx context.Context, c *admin.Client) (_ int64, err error) {
		if t, err = c.Task(ctx, id); err != nil {
			return 0, err
		}
		r, err = c.Cancel(ctx, admin.Filter{IDs: []int64{id}}, admin.Bulk{})
		return int64(len(r.IDs) + len(r.Running)), err
	})
	if len(r.Running) > 0 {
		return v.done(err, "task", ofTask(id), "requested", n)
	}
	ofType := url.Values{"name": {t.Type}} // the task's own page has gone
	return v.done(err, "type", ofType, "canceled", n)
}

func (v *view) runNow() error {
	id, err := taskID(v.r.PostForm.Get("id"))
	if err != nil {
		return err
	}
	n, err := v.act("run_now", taskName(id), func(ctx context.Context, c *admin.Client) (int64, error) {
		r, err := c.RunNow(ctx, admin.Filter{IDs: []int64{id}}, admin.Bulk{})
		return int64(len(r.IDs)), err
	})
	return v.done(err, "task", ofTask(id), "run-now", n)
}

// payloadForm is the form that changes a payload, with its text as JSON.
type payloadForm struct {
	ID   int64
	Text string
	Was  string // a digest of the payload that the viewer saw
}

func digestOf(payload json.RawMessage) string {
	sum := sha256.Sum256(payload)
	return hex.EncodeToString(sum[:])
}

// setPayload changes the payload of a task that waits, or of a dead letter. If the payload is not
// valid or the task runs, the answer has the form again, with the text that was sent.
func (v *view) setPayload() error {
	id, err := taskID(v.r.PostForm.Get("id"))
	if err != nil {
		return err
	}
	text, was := v.r.PostForm.Get("payload"), v.r.PostForm.Get("was")
	set := func(ctx context.Context, c *admin.Client) (int64, error) {
		if was != "" {
			switch is, err := c.Payload(ctx, id); {
			case err != nil:
				return 0, err
			case digestOf(is.Payload) != was:
				return 0, problem{http.StatusConflict, "",
					"The payload has changed since you loaded the page. Load it again."}
			}
		}
		return 1, c.SetPayload(ctx, id, json.RawMessage(text))
	}
	_, err = v.act("set_payload", taskName(id), set)
	if err == nil {
		return v.done(nil, "task", ofTask(id), "payload-set", 1)
	}
	p := v.explain(err)
	if p.status != http.StatusBadRequest && p.status != http.StatusConflict {
		return err
	}
	v.Warning = p.text + " Nothing was changed."
	return v.show(p.status, "payload.html", "Change the payload of "+taskName(id),
		payloadForm{ID: id, Text: editable(text), Was: was})
}

// redrive redrives one dead letter, by the button of its row or its page. If another task holds its
// unique key, its page asks whether to redrive it without the key.
func (v *view) redrive() error {
	id, err := taskID(v.r.PostForm.Get("one"))
	if err != nil {
		return err
	}
	f, err := v.filterOf(deadLetters, v.r.PostForm)
	if err != nil {
		return err
	}
	bulk := admin.Bulk{WithoutKey: v.r.PostForm.Get("keyless") == "1"}
	held := false
	n, err := v.act("redrive", taskName(id), func(ctx context.Context, c *admin.Client) (int64, error) {
		r, err := c.Redrive(ctx, admin.Filter{IDs: []int64{id}}, bulk)
		held = len(r.Skipped) > 0
		return int64(len(r.IDs)), err
	})
	switch {
	case held:
		return v.done(err, "task", ofTask(id), "key-held", n)
	case v.r.PostForm.Get("back") == "task":
		return v.done(err, "task", ofTask(id), "redriven", n)
	}
	return v.done(err, "dead", f.query(), "redriven", n)
}

// handBack makes the leased tasks of a dead relay ready, in transactions of its own.
func (v *view) handBack() error {
	id := v.r.PostForm.Get("relay")
	s, err := v.snapshot()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(s.relays, func(r admin.Relay) bool { return r.ID == id })
	if i < 0 {
		return errNotFound
	}
	if s.relays[i].Alive {
		return problem{http.StatusConflict, "", "This relay is alive. Only the leases of a dead one can be handed back."}
	}
	v.limit = 6 * v.site.config.StatementTimeout
	n, err := v.acted("hand_back", "relay "+id, v.limit, func(ctx context.Context, c *admin.Client) (int64, error) {
		return c.HandBack(ctx, id)
	})
	return v.done(err, "relays", url.Values{}, "handed-back", n)
}

func ofTask(id int64) url.Values { return url.Values{"id": {strconv.FormatInt(id, 10)}} }

// notices are the texts that an action's redirect can ask the next page for.
var notices = map[string]struct{ none, some string }{
	"paused":           {"", "The type is paused. Its running tasks go on."},
	"resumed":          {"", "The type is resumed."},
	"canceled":         {"The task has gone meanwhile; nothing changed.", "The task is canceled."},
	"requested":        {"", "The task runs. Its relay has been asked to end it."},
	"run-now":          {"The task is no longer scheduled; nothing changed.", "The task is due now."},
	"payload-set":      {"", "The payload is changed."},
	"redriven":         {"It was redriven or purged meanwhile; nothing changed.", "The dead letter is a task again."},
	"key-held":         {"0 redriven, 1 skipped: another task holds its unique key.", ""},
	"schedule-paused":  {"", "The schedule is paused: it skips its firings."},
	"schedule-resumed": {"", "The schedule is resumed."},
	"schedule-due":     {"", "The schedule fires within 10 s."},
	"handed-back":      {"It held no leases.", "Its tasks were handed back."},
}

func notice(q url.Values) string {
	texts := notices[q.Get("ok")]
	if q.Get("n") == "0" {
		return texts.none
	}
	return texts.some
}

// done leads to a page with the notice of an action, unless the action failed.
func (v *view) done(err error, page string, q url.Values, notice string, n int64) error {
	if err != nil {
		return err
	}
	q.Set("ok", notice)
	q.Set("n", strconv.FormatInt(n, 10))
	return v.redirect("./" + page + "?" + q.Encode())
}

// updatesCookie is "off" if the viewer's pages stay as they were loaded. Without a path it is for the
// directory of the dashboard.
const updatesCookie = "outbox_updates"

// settings sets the cookie by the button in the header of a page, and leads back to the page.
func (v *view) settings() error {
	updates := v.r.PostForm.Get("updates")
	if updates != "on" && updates != "off" {
		return badRequest("There is no such setting.")
	}
	http.SetCookie(v.w, &http.Cookie{Name: updatesCookie, Value: updates, MaxAge: 365 * 24 * 3600, HttpOnly: true,
		SameSite: http.SameSiteLaxMode, Secure: v.r.TLS != nil})
	name, query, _ := strings.Cut(strings.TrimPrefix(v.r.PostForm.Get("back"), "./"), "?")
	q, err := url.ParseQuery(query)
	if v.site.routes[name].page == nil || err != nil {
		return v.redirect("./")
	}
	return v.redirect(address(name, q))
}
