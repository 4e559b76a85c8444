package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/taskview"
)

// taskData is the page of a task.
type taskData struct {
	admin.Task
	Facts    []fact
	Timeline []taskview.Event
	Why      admin.Why
	Audit    admin.AuditPage
	KeyHeld  bool // a redrive was skipped
	Asked    bool // for the payload
	Hidden   admin.Payload
	Payload  string
	Cut      bool
	Form     *payloadForm // changes the payload
	Codec    string       // of an encoded payload
	Encoded  string       // why it is shown as it is stored
	Headers  string
	Result   string
}

// Waits reports whether the page says why the task waits.
func (d taskData) Waits() bool {
	return d.CanCancel() && len(d.Why.Causes) > 0 && d.Why.Causes[0].Kind != admin.CauseRunning
}

func (d taskData) CanCancel() bool {
	return d.State != admin.StateDead && d.State != admin.StateFinished
}
func (d taskData) CanRunNow(now time.Time) bool {
	return (d.State == admin.StateScheduled || d.State == admin.StateRetrying) && d.RunAt.After(now)
}
func (d taskData) CanRevive() bool { return d.State == admin.StateDead }

// LastFailure is the event of the last error; zero where that is not known.
func (d taskData) LastFailure() admin.Event {
	for _, e := range slices.Backward(d.Task.Timeline) {
		if e.Error != "" {
			return e
		}
	}
	return admin.Event{}
}

// fact is a fact of a task as its page shows it: a time or a text.
type fact struct {
	Name, Text string
	Time       time.Time
	Mono       bool
}

func factsOf(t admin.Task) (out []fact) {
	for _, f := range taskview.Facts(t) {
		shown := fact{Name: title(f.Name), Mono: f.Name == "key" || f.Name == "relay"}
		switch value := f.Value.(type) {
		case time.Time:
			shown.Time = value
		case time.Duration:
			shown.Text = duration(value)
		default:
			shown.Text = fmt.Sprint(value)
		}
		out = append(out, shown)
	}
	return out
}

func taskID(s string) (int64, error) {
	id, err := strconv.ParseInt(s, 10, 64)
	if err != nil || id < 1 {
		return 0, badRequest("The id of a task is a positive number.")
	}
	return id, nil
}

func taskName(id int64) string { return "task " + strconv.FormatInt(id, 10) }

func (v *view) task() error {
	q := v.r.URL.Query()
	if key := q.Get("id"); strings.Contains(key, "-") {
		return v.taskByKey(key)
	}
	id, err := taskID(q.Get("id"))
	if err != nil {
		return err
	}
	file := q.Get("payload") == "file"
	d := taskData{KeyHeld: q.Get("ok") == "key-held", Asked: (file || q.Get("payload") == "show") && v.MayPayload()}
	err = v.read(func(ctx context.Context, c *admin.Client) (err error) {
		if d.Task, err = c.Task(ctx, id); err != nil {
			return err
		}
		if d.Audit, err = c.Audit(ctx, admin.AuditQuery{TaskID: id, Limit: 20}); err != nil {
			return err
		}
		if d.Asked {
			if d.Hidden, err = c.Payload(ctx, id); err != nil {
				return err
			}
		}
		d.Why, err = c.Why(ctx, id) // the last, as it may end the transaction
		return err
	})
	if errors.Is(err, admin.ErrNotFound) && v.Notice != "" { // an action has just made it ready, and it has finished
		return v.show(http.StatusOK, "ended.html", "Task "+strconv.FormatInt(id, 10), nil)
	}
	if err != nil {
		return err
	}
	if d.Asked {
		v.site.log.Info("outbox: dashboard: payload shown", "actor", v.Actor, "task", id, "type", d.Type)
		if d.Codec = d.Hidden.Codec(); d.Codec != "" {
			if plain, err := v.site.codecs.Decode(d.Codec, d.Hidden.Payload); !v.site.codecs.Has(d.Codec) {
				d.Encoded = fmt.Sprintf("The codec %q has encoded it, which the dashboard does not have.", d.Codec)
			} else if err != nil {
				d.Encoded = err.Error()
			} else {
				d.Hidden.Payload = plain
			}
		}
		if file {
			return v.download(id, d.Hidden.Payload)
		}
		d.Payload, d.Cut = pretty(d.Hidden.Payload)
		d.Headers, _ = pretty(d.Hidden.Headers)
		d.Result, _ = pretty(d.Hidden.Result)
		if v.MayOperate() && !d.Cut && d.Codec == "" && d.State != admin.StateLeased && d.State != admin.StateFinished {
			text := editable(indented(d.Hidden.Payload))
			d.Form = &payloadForm{ID: id, Text: text, Was: digestOf(d.Hidden.Payload)}
		}
	}
	d.Facts, d.Timeline = factsOf(d.Task), taskview.Timeline(d.Task)
	// With the payload it does not update itself: each look at a payload is asked for, and logged.
	v.Live = !d.Asked && !d.KeyHeld
	return v.show(http.StatusOK, "task.html", "Task "+strconv.FormatInt(id, 10), d)
}

// download answers with the whole payload as a file.
func (v *view) download(id int64, payload []byte) error {
	v.w.Header().Set("Content-Type", "application/octet-stream")
	v.w.Header().Set("Content-Disposition", fmt.Sprintf(`attachment; filename="task-%d.json"`, id))
	v.w.WriteHeader(http.StatusOK)
	_, _ = v.w.Write(payload) // the viewer may have gone
	return nil
}

// taskByKey leads to the page of the task that has the key.
func (v *view) taskByKey(key string) error {
	t, err := get(v, func(c *admin.Client, ctx context.Context) (admin.Task, error) { return c.TaskByKey(ctx, key) })
	if err != nil {
		return err
	}
	return v.redirect("./task?id=" + strconv.FormatInt(t.ID, 10))
}

// askCancel asks for confirmation, with the effect on the task in its present state.
func (v *view) askCancel() error {
	id, err := taskID(v.r.URL.Query().Get("id"))
	if err != nil {
		return err
	}
	t, err := get(v, func(c *admin.Client, ctx context.Context) (admin.Task, error) { return c.Task(ctx, id) })
	if err != nil {
		return err
	}
	return v.show(http.StatusOK, "cancel.html", "Cancel "+taskName(id), taskData{Task: t})
}

// A payload is shown up to this size, and indented unless that makes it four times as long: where
// arrays nest deep, most of the text would be blanks.
const shownPayload = 64 << 10

// pretty is JSON for the page, and whether it was cut.
func pretty(text json.RawMessage) (string, bool) {
	if len(text) > shownPayload {
		return visible(string(bytes.ToValidUTF8(text[:shownPayload], nil))), true
	}
	return visible(indented(text)), false
}

func indented(text json.RawMessage) string {
	var out bytes.Buffer
	if json.Indent(&out, text, "", "  ") == nil && out.Len() <= 4*shownPayload {
		return out.String()
	}
	return string(text)
}

// editable is JSON with escapes for the characters that cannot be seen.
func editable(text string) string {
	var out strings.Builder
	for _, r := range text {
		switch {
		case strconv.IsGraphic(r), strings.ContainsRune("\n\r\t", r):
			out.WriteRune(r)
		default:
			for _, unit := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&out, `\u%04x`, unit)
			}
		}
	}
	return out.String()
}
