package admin

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/txoutbox/outbox"
)

// Action is an action in the audit log. An app may write actions of its own.
type Action string

// The actions of this package, and those of the command outbox. HandBack, Reindex, Repair and
// grant_roles have an entry before them and one after them, whose action ends in ": done" or
// ": failed".
const (
	ActionCancel         Action = "cancel"
	ActionRunNow         Action = "run_now"
	ActionReschedule     Action = "reschedule"
	ActionSetPriority    Action = "set_priority"
	ActionSetPayload     Action = "set_payload"
	ActionRetype         Action = "retype"
	ActionRedrive        Action = "redrive"
	ActionPurge          Action = "purge"
	ActionPurgeFinished  Action = "purge_finished"
	ActionPause          Action = "pause" // of a type
	ActionResume         Action = "resume"
	ActionPauseSchedule  Action = "pause_schedule"
	ActionResumeSchedule Action = "resume_schedule"
	ActionRemoveSchedule Action = "remove_schedule"
	ActionPutSchedule    Action = "put_schedule"
	ActionRunSchedule    Action = "run_schedule"
	ActionHandBack       Action = "hand_back"
	ActionReindex        Action = "reindex"
	ActionRepair         Action = "repair"
	ActionAdopt          Action = "adopt"
	ActionAdoptDiscard   Action = "adopt_discard" // Adopt with Discard
	ActionEnqueue        Action = "enqueue"       // of the command
	ActionMigrate        Action = "migrate"       // of the command
	ActionGrantRoles     Action = "grant_roles"   // of the command
)

// States are those of the tasks that the action of a Client takes by a [Filter]; nil of other actions.
// A task that a Tx or Batch handler runs keeps its old state until the claim commits.
func (a Action) States() []State {
	switch a {
	case ActionRedrive, ActionPurge:
		return []State{StateDead}
	case ActionPurgeFinished:
		return []State{StateFinished}
	case ActionRunNow:
		return []State{StateScheduled, StateRetrying}
	case ActionCancel:
		return []State{StateReady, StateScheduled, StateRetrying, StateWaiting, StateLeased}
	case ActionReschedule, ActionSetPriority, ActionRetype:
		return []State{StateReady, StateScheduled, StateRetrying, StateWaiting}
	}
	return nil
}

// AuditEntry is one action in the audit log. Its texts must be valid UTF-8 without NUL.
//
// Nothing deletes entries. With the roles of
// https://github.com/txoutbox/outbox/blob/main/docs/security.md workers and operators add entries,
// viewers read them, and only the owner can change them.
type AuditEntry struct {
	ID     int64     // set by WriteAudit and Audit; ascending, with gaps
	At     time.Time // when its transaction began, by PostgreSQL's clock; set by WriteAudit and Audit
	Actor  string    // "": that of the Client's Config; 1 to 256 bytes
	Tool   string    // "": that of the Client's Config; 1 to 64 bytes
	Action Action    // 1 to 64 bytes
	Target string    // a task type, a task id, a filter in words; may be empty; at most 1 kB; never a payload
	Count  int64     // the number of tasks; not negative
}

// maxTarget is the most bytes of an entry's target.
const maxTarget = 1024

func (e AuditEntry) check() error {
	if e.Count < 0 {
		return invalid("AuditEntry.Count: %d: must not be negative", e.Count)
	}
	return errors.Join(checkLength("AuditEntry.Actor", e.Actor, 1, 256), checkLength("AuditEntry.Tool", e.Tool, 1, 64),
		checkLength("AuditEntry.Action", string(e.Action), 1, 64), checkLength("AuditEntry.Target", e.Target, 0, maxTarget))
}

const writeAuditSQL = `/* outbox: write an audit entry */
INSERT INTO outbox.audit (actor, tool, action, target, count) VALUES ($1, $2, $3, $4, $5) RETURNING entry_id, at`

// WriteAudit adds an entry for an action of the app, and returns it with its id and time. The entry
// belongs to the transaction of the action, so call it on a Client that In returned: on a pool the
// error is outbox.ErrNoTransaction.
func (c *Client) WriteAudit(ctx context.Context, e AuditEntry) (AuditEntry, error) {
	if db, ok := c.q.(*sql.DB); ok {
		return AuditEntry{}, fmt.Errorf("admin: write an audit entry: %w: a %T is not one", outbox.ErrNoTransaction, db)
	}
	if e.Actor == "" {
		e.Actor = c.config.Actor
	}
	if e.Tool == "" {
		e.Tool = c.config.Tool
	}
	if err := e.check(); err != nil {
		return AuditEntry{}, err
	}
	err := c.inTx(ctx, func(q outbox.Querier) error {
		return q.QueryRowContext(ctx, c.schema.SQL(writeAuditSQL), e.Actor, e.Tool, e.Action, e.Target, e.Count).
			Scan(&e.ID, &e.At)
	})
	if err != nil {
		return AuditEntry{}, failed("write an audit entry", err)
	}
	return e, nil
}

// AuditQuery selects a page of the audit log. The zero value is its first page.
type AuditQuery struct {
	// TaskID selects the entries about this task alone: their targets are "task 17", or begin with
	// "task 17 ". Entries about several tasks and about filters are left out. 0 selects all entries.
	TaskID int64
	After  string // AuditPage.Next of the page before; "": the first page
	Limit  int    // at most 1,000; 0: 100
}

// AuditPage is a page of the audit log.
type AuditPage struct {
	Entries []AuditEntry
	Next    string // After of the next page; "": this is the last page
}

const auditSQL = `/* outbox: list audit entries */
SELECT entry_id, at, actor, tool, action, target, count FROM outbox.audit
 WHERE entry_id < $1 ORDER BY entry_id DESC LIMIT $2`

// Audit returns a page of the audit log, the latest entry first. An entry is seen once its
// transaction has committed: the ids of transactions that are open are gaps.
func (c *Client) Audit(ctx context.Context, q AuditQuery) (page AuditPage, err error) {
	if err := checkLimit(&q.Limit, defaultLimit); err != nil {
		return page, err
	}
	args, err := parsePlace("audit", q.After)
	if err != nil {
		return page, err
	}
	query, args := auditSQL, append(args, q.Limit+1)
	if q.TaskID != 0 {
		query, args = taskAuditSQL, append(args, fmt.Sprint("task ", q.TaskID))
	}
	found, err := list(ctx, c, "list audit entries", query, args, scanEntry)
	page.Entries, page.Next = cut(found, q.Limit, func(e AuditEntry) string { return formatPlace("audit", e.ID) })
	return page, err
}

// The entries of a task are few: they are found by their target, and then sorted.
const taskAuditSQL = `/* outbox: list audit entries of a task */
WITH e AS MATERIALIZED (
  SELECT entry_id, at, actor, tool, action, target, count FROM outbox.audit
   WHERE target COLLATE "C" = $3 OR target COLLATE "C" > $3 || ' ' AND target COLLATE "C" < $3 || '!')
SELECT * FROM e WHERE entry_id < $1 ORDER BY entry_id DESC LIMIT $2`

func scanEntry(row scanner, e *AuditEntry) error {
	return row.Scan(&e.ID, &e.At, &e.Actor, &e.Tool, &e.Action, &e.Target, &e.Count)
}

// act runs an action and writes its audit entries, in one transaction. An entry with the count 0 is
// not written: nothing changed.
func (c *Client) act(ctx context.Context, action func(q outbox.Querier) ([]AuditEntry, error)) error {
	return c.inTx(ctx, func(q outbox.Querier) error {
		entries, err := action(q)
		if err != nil || c.config.Actor == "" {
			return err
		}
		for _, e := range entries {
			e.Target = cutTarget(e.Target)
			if e.Count == 0 {
				continue
			}
			if _, err := c.In(q).WriteAudit(ctx, e); err != nil {
				return err
			}
		}
		return nil
	})
}

// audited calls f, an action in transactions of its own. The audit log gets an entry with the count 0
// before it, and an entry with the result after it: the action with ": done" and f's count, or with
// ": failed". Without an Actor it only calls f.
func (c *Client) audited(ctx context.Context, e AuditEntry, f func() (int64, error)) error {
	note := func(ctx context.Context) error {
		if c.config.Actor == "" {
			return nil
		}
		return c.inTx(ctx, func(q outbox.Querier) error {
			_, err := c.In(q).WriteAudit(ctx, e)
			return err
		})
	}
	if err := note(ctx); err != nil {
		return err
	}
	n, err := f()
	action := e.Action
	if e.Action, e.Count = action+": done", n; err != nil {
		e.Action = action + ": failed"
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second) // ctx may have ended f
	defer cancel()
	return errors.Join(err, note(ctx))
}

// entriesOf are the entries of an action that name all its tasks, and what they were changed to.
func entriesOf(action Action, ids []int64, to string) (out []AuditEntry) {
	most := (maxTarget - len(to)) / 21 // an id has 19 digits at most
	for some := range slices.Chunk(slices.Sorted(slices.Values(ids)), most) {
		names := strings.Trim(strings.ReplaceAll(fmt.Sprint(some), " ", ", "), "[]")
		noun := "tasks "
		if len(some) == 1 {
			noun = "task "
		}
		out = append(out, AuditEntry{Action: action, Target: noun + names + to, Count: int64(len(some))})
	}
	return out
}

// cutTarget shortens a target that is too long, with … at its end.
func cutTarget(s string) string {
	if len(s) > maxTarget {
		s = strings.ToValidUTF8(s[:maxTarget-len("…")], "") + "…"
	}
	return s
}
