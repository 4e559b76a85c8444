package admin_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/schema"
)

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	_, err := admin.New(nil, admin.Config{Schema: "A b", Actor: strings.Repeat("x", 257)})
	for _, want := range []string{"*sql.DB is nil", "Config.Schema", "Config.Actor", "Config.Tool"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error %v does not name %s", err, want)
		}
	}
	db := sql.OpenDB(nil)
	defer db.Close()
	for _, good := range []admin.Config{{}, {Schema: "app_outbox"}, {Actor: "ada", Tool: "backoffice"}} {
		if _, err := admin.New(db, good); err != nil {
			t.Errorf("%+v: %v", good, err)
		}
	}
}

// changes are all that change something.
var changes = map[string]func(context.Context, *admin.Client) error{
	"Redrive": func(ctx context.Context, c *admin.Client) error {
		return second(c.Redrive(ctx, admin.Filter{All: true}, admin.Bulk{}))
	},
	"Purge": func(ctx context.Context, c *admin.Client) error {
		return second(c.Purge(ctx, admin.Filter{All: true}, admin.Bulk{}))
	},
	"PurgeFinished": func(ctx context.Context, c *admin.Client) error {
		return second(c.PurgeFinished(ctx, admin.Filter{All: true}, admin.Bulk{}))
	},
	"Cancel": func(ctx context.Context, c *admin.Client) error {
		return second(c.Cancel(ctx, admin.Filter{IDs: []int64{100}}, admin.Bulk{}))
	},
	"RunNow": func(ctx context.Context, c *admin.Client) error {
		return second(c.RunNow(ctx, admin.Filter{IDs: []int64{100}}, admin.Bulk{}))
	},
	"Reschedule": func(ctx context.Context, c *admin.Client) error {
		return second(c.Reschedule(ctx, admin.Filter{IDs: []int64{101}}, time.Now().Add(time.Hour), admin.Bulk{}))
	},
	"SetPriority": func(ctx context.Context, c *admin.Client) error {
		return second(c.SetPriority(ctx, admin.Filter{IDs: []int64{101}}, 7, admin.Bulk{}))
	},
	"Retype": func(ctx context.Context, c *admin.Client) error {
		return second(c.Retype(ctx, admin.Filter{IDs: []int64{101}}, "B", admin.Bulk{}))
	},
	"SetPayload":     func(ctx context.Context, c *admin.Client) error { return c.SetPayload(ctx, 101, 1) },
	"PauseType":      func(ctx context.Context, c *admin.Client) error { return c.PauseType(ctx, "A") },
	"ResumeType":     func(ctx context.Context, c *admin.Client) error { return c.ResumeType(ctx, "A") },
	"PauseSchedule":  func(ctx context.Context, c *admin.Client) error { return c.PauseSchedule(ctx, "s") },
	"ResumeSchedule": func(ctx context.Context, c *admin.Client) error { return c.ResumeSchedule(ctx, "s") },
	"RemoveSchedule": func(ctx context.Context, c *admin.Client) error { return c.RemoveSchedule(ctx, "s") },
	"WriteAudit": func(ctx context.Context, c *admin.Client) error {
		return second(c.WriteAudit(ctx, admin.AuditEntry{Actor: "a", Tool: "t", Action: "a"}))
	},
}

func TestWhatIsNoTransactionIsRefused(t *testing.T) {
	t.Parallel()
	db := sql.OpenDB(nil)
	defer db.Close()
	c := client(t, db)
	for name, do := range changes {
		for _, q := range []outbox.Querier{nil, (*sql.Tx)(nil), sqlx.NewDb(db, "postgres")} {
			if err := do(t.Context(), c.In(q)); !errors.Is(err, outbox.ErrNoTransaction) {
				t.Errorf("%s in %T: got %v, want ErrNoTransaction", name, q, err)
			}
		}
	}
	if err := changes["WriteAudit"](t.Context(), c); !errors.Is(err, outbox.ErrNoTransaction) {
		t.Errorf("an entry without a transaction: got %v, want ErrNoTransaction", err)
	}
	if _, err := c.In(nil).Types(t.Context()); !errors.Is(err, outbox.ErrNoTransaction) {
		t.Errorf("a read in nil: got %v, want ErrNoTransaction", err)
	}
	in := c.In(&sql.Tx{})
	for call, err := range map[string]error{
		"HandBack": second(in.HandBack(t.Context(), deadRelay)), "Reindex": second(in.Reindex(t.Context())),
		"Repair": second(in.Repair(t.Context(), admin.RepairOptions{})),
	} {
		if !errors.Is(err, outbox.ErrNoTransaction) {
			t.Errorf("%s, which needs the pool: got %v, want ErrNoTransaction", call, err)
		}
	}
}

// reads are all that only read.
var reads = map[string]func(context.Context, *admin.Client) error{
	"Task":      func(ctx context.Context, c *admin.Client) error { return second(c.Task(ctx, 101)) },
	"Payload":   func(ctx context.Context, c *admin.Client) error { return second(c.Payload(ctx, 101)) },
	"Relays":    func(ctx context.Context, c *admin.Client) error { return second(c.Relays(ctx)) },
	"Types":     func(ctx context.Context, c *admin.Client) error { return second(c.Types(ctx)) },
	"Schedules": func(ctx context.Context, c *admin.Client) error { return second(c.Schedules(ctx)) },
	"Origin":    func(ctx context.Context, c *admin.Client) error { return second(c.Origin(ctx)) },
	"Samples": func(ctx context.Context, c *admin.Client) error {
		return second(c.Samples(ctx, admin.SampleQuery{Type: "A"}))
	},
	"Audit": func(ctx context.Context, c *admin.Client) error { return second(c.Audit(ctx, admin.AuditQuery{})) },
	"TaskAudit": func(ctx context.Context, c *admin.Client) error {
		return second(c.Audit(ctx, admin.AuditQuery{TaskID: 101}))
	},
	"Why": func(ctx context.Context, c *admin.Client) error { return second(c.Why(ctx, 1)) },
	"ErrorGroups": func(ctx context.Context, c *admin.Client) error {
		return second(c.ErrorGroups(ctx, admin.TaskQuery{Filter: admin.Filter{State: admin.StateRetrying}}))
	},
	"Defects": func(ctx context.Context, c *admin.Client) error {
		return second(c.Defects(ctx, admin.RepairOptions{}))
	},
	"Count": func(ctx context.Context, c *admin.Client) error { return second(c.Count(ctx, admin.TaskQuery{})) },
	"Search": func(ctx context.Context, c *admin.Client) error {
		return second(c.Tasks(ctx, admin.TaskQuery{Filter: admin.Filter{Error: "boom"}}))
	},
	"Tasks": func(ctx context.Context, c *admin.Client) error {
		return second(c.Tasks(ctx, admin.TaskQuery{Filter: admin.Filter{Type: "A", State: admin.StateReady}}))
	},
}

// Every call works on each kind of connection, in an outbox of another name, and commits with its
// transaction.
func TestEveryCallOnEachConnectionAndInAnotherSchema(t *testing.T) {
	t.Parallel()
	for _, driver := range drivers() {
		db := relaytest.Open(t, relaytest.Migrated(t, schema.Schema("select")), driver)
		c := client(t, db.DB, admin.Config{Schema: "select", Actor: "ada", Tool: "test"})
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.ExecContext(t.Context(), "BEGIN"); err != nil {
			t.Fatal(err)
		}
		commit := func() error { _, err := conn.ExecContext(t.Context(), "COMMIT"); return err }
		tx := begin(t, db)
		xtx, err := sqlx.NewDb(db.DB, driver).Beginx()
		if err != nil {
			t.Fatal(err)
		}
		state := func() string {
			return db.Text(t, `SELECT concat_ws(' ', (SELECT count(*) FROM "select".dead_task),
				(SELECT count(*) FROM "select".task WHERE task_id = 100), (SELECT count(*) > 0 FROM "select".audit))`)
		}
		for _, on := range []struct {
			name string
			c    *admin.Client
			end  func() error
		}{{"DB", c, nil}, {"Conn", c.In(conn), commit}, {"Tx", c.In(tx), tx.Commit}, {"sqlx.Tx", c.In(xtx), xtx.Commit}} {
			db.Do(t, `TRUNCATE "select".task, "select".dead_task, "select".audit, "select".schedule, "select".task_type;
				INSERT INTO "select".dead_task
					(task_id, run_at, created_at, priority, attempt, max_attempts, reason, task_type, payload)
					VALUES (1000, now(), now(), 0, 1, 1, 'attempts', 'X', '1');
				INSERT INTO "select".task (task_id, task_type, run_at) OVERRIDING SYSTEM VALUE
					SELECT n, 'A', now() + interval '1 hour' FROM generate_series(100, 101) n;
				INSERT INTO "select".schedule (name, task_type, payload, spec, timing, definition)
					VALUES ('s', 'A', '{}', '', '', '')`)
			for _, calls := range []map[string]func(context.Context, *admin.Client) error{reads, changes} {
				for name, do := range calls {
					err := do(t.Context(), on.c)
					gone := errors.Is(err, admin.ErrNotFound) && strings.HasSuffix(name, "Schedule") // removed before
					if onPool := name == "WriteAudit" && on.name == "DB"; err != nil && !gone && !onPool {
						t.Errorf("%s: %s: %v", on.name, name, err)
					}
				}
			}
			if on.end != nil {
				if got := state(); got != "1 1 f" {
					t.Errorf("%s: before the commit: %s", on.name, got)
				}
				if err := on.end(); err != nil {
					t.Error(err)
				}
			}
			if got := state(); got != "0 0 t" {
				t.Errorf("%s: %s, want no dead letter, no task 100 and entries", on.name, got)
			}
		}
	}
}

// An action whose entry cannot be written is not done.
func TestAnActionAndItsEntryAreOne(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c := client(t, db.DB, admin.Config{Actor: "ada", Tool: "test"})
	bury(t, db, "X", "attempts", "boom", 1000, 2, 60)
	db.Do(t, `INSERT INTO outbox.task (task_id, task_type, run_at) OVERRIDING SYSTEM VALUE
		VALUES (100, 'A', now() + interval '1 hour'), (101, 'A', now() + interval '1 hour')`)
	db.Do(t, `INSERT INTO outbox.task (task_type, state, attempt) VALUES ('A', 'scheduled', 1)`)
	finish(t, db, "X", 2000, 2)
	db.Do(t, `INSERT INTO outbox.schedule (name, task_type, payload, spec, timing, definition)
		VALUES ('s', 'A', '{}', '', '', '')`)
	lease(t, db, liveRelay, 1)
	db.Do(t, `ALTER TABLE outbox.audit ADD CONSTRAINT closed CHECK (entry_id < 0)`)
	before := db.Dump(t)
	all := map[string]func(context.Context, *admin.Client) error{
		"HandBack": func(ctx context.Context, c *admin.Client) error { return second(c.HandBack(ctx, liveRelay)) },
		"Reindex":  func(ctx context.Context, c *admin.Client) error { return second(c.Reindex(ctx)) },
	}
	maps.Copy(all, changes)
	delete(all, "WriteAudit")
	for name, do := range all {
		if err := do(t.Context(), c); err == nil || !strings.Contains(err.Error(), "closed") {
			t.Errorf("%s: got %v, want the error of its entry", name, err)
		}
	}
	if after := db.Dump(t); after != before {
		t.Errorf("got\n%s\nwant, as before,\n%s", after, before)
	}
	db.Do(t, `ALTER TABLE outbox.audit DROP CONSTRAINT closed; DELETE FROM outbox.task`)
}

func TestBadArgumentsAreRefusedBeforeAnySQL(t *testing.T) {
	t.Parallel()
	c, ctx := unreachable(t), t.Context()
	refused := func(call string, err error, want string) {
		t.Helper()
		if !errors.Is(err, outbox.ErrInvalidOption) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want ErrInvalidOption with %q", call, err, want)
		}
	}
	tasks := func(taskType string, state admin.State, after, want string) {
		t.Helper()
		q := admin.TaskQuery{Filter: admin.Filter{Type: taskType, State: state}, After: after}
		refused(fmt.Sprintf("Tasks, %+v", q), second(c.Tasks(ctx, q)), want)
	}
	tasks("A", "late", "", "Filter.State")
	tasks("A\x00", admin.StateReady, "", "Filter.Type")
	tasks("\xff", admin.StateDead, "", "Filter.Type")
	tasks("A", admin.StateScheduled, "scheduled.9223372036854775807.1", "After")
	for _, after := range []string{
		"x", "ready.1.2", "ready.1.2.3.4", "waiting.1", "ready.1.2.x", "ready.40000.0.1", "ready.0.0.-1",
		"ready.0.0.9223372036854775808", "ready.0.0.1; DROP TABLE x",
	} {
		tasks("A", admin.StateReady, after, "After")
	}
	for _, bad := range []admin.SampleQuery{{Last: -1}, {Type: "\xff"}} {
		refused("Samples", second(c.Samples(ctx, bad)), "")
	}
	some := admin.Filter{Type: "X"}
	for want, f := range map[string]admin.Filter{
		"Filter.Type":              {Type: "a\x00"},
		"Filter.Error: \"a\\xff\"": {Error: "a\xff"},
		"Filter.Reason":            {Reason: "old age"},
		"Filter.OlderThan":         {OlderThan: -1},
		"Filter.Since":             {Since: time.Unix(1<<50, 0)},
		"Filter.Before":            {Before: time.Unix(-1<<50, 0)},
		"Filter.IDs":               {IDs: make([]int64, 1001)},
		"Filter.UniqueKey":         {UniqueKey: "a\x00"},
		"Filter.OrderingKey":       {OrderingKey: "a\x00"},
		"Filter.GroupKey":          {GroupKey: "a\x00"},
		"Filter.Payload":           {Payload: json.RawMessage(`{"a"`)},
		"Filter.Payload: {}":       {Payload: json.RawMessage(` {} `)},
		"Filter.Payload: []":       {Payload: json.RawMessage(`[]`)},
	} {
		f.All = true // actions refuse it for no other reason
		refused("Tasks", second(c.Tasks(ctx, admin.TaskQuery{Filter: f})), want)
		refused("Count", second(c.Count(ctx, admin.TaskQuery{Filter: f})), want)
		for name, take := range takers {
			refused(name, second(take(c, ctx, f, admin.Bulk{})), want)
		}
		f.State = admin.StateDead
		refused("ErrorGroups", second(c.ErrorGroups(ctx, admin.TaskQuery{Filter: f})), want)
	}
	for want, q := range map[string]admin.TaskQuery{
		"Limit: -1": {Limit: -1}, "Limit: 1001": {Limit: 1001}, "MaxScan: -1": {MaxScan: -1},
		"MaxScan: 100001": {MaxScan: 100_001}, `After: "scheduled.1"`: {After: "scheduled.1"},
		`After: "dead.`: {After: "dead.9223372036854775807.1"},
	} {
		q.Filter = admin.Filter{State: admin.StateDead, Error: "boom"}
		refused("Tasks", second(c.Tasks(ctx, q)), want)
		refused("Count", second(c.Count(ctx, q)), want)
		refused("ErrorGroups", second(c.ErrorGroups(ctx, q)), want)
		if q.MaxScan == 0 {
			refused("Audit", second(c.Audit(ctx, admin.AuditQuery{After: q.After, Limit: q.Limit})), want)
			ready := admin.TaskQuery{Filter: admin.Filter{Type: "A", State: admin.StateReady}, After: q.After, Limit: q.Limit}
			refused("Tasks", second(c.Tasks(ctx, ready)), want)
		}
	}
	for name, take := range takers {
		refused(name, second(take(c, ctx, admin.Filter{}, admin.Bulk{})), " all tasks: set Filter.All")
		refused(name, second(take(c, ctx, admin.Filter{State: admin.StateFinished}, admin.Bulk{})), "Filter.State")
		other := admin.StateDead
		if name == "redrive" || name == "purge" {
			other = admin.StateReady
		} else {
			refused(name, second(take(c, ctx, admin.Filter{Reason: outbox.ReasonHandler}, admin.Bulk{})), "Filter.State")
		}
		refused(name, second(take(c, ctx, admin.Filter{State: other}, admin.Bulk{})), "Filter.State")
		if name != "redrive" {
			refused(name, second(take(c, ctx, some, admin.Bulk{WithoutKey: true})), "Bulk.WithoutKey")
		}
	}
	refused("ErrorGroups", second(c.ErrorGroups(ctx, admin.TaskQuery{})), "Filter.State")
	refused("Tasks", second(c.Tasks(ctx, admin.TaskQuery{MaxScan: -1})), "MaxScan")
	_, err := c.Count(ctx, admin.TaskQuery{Filter: admin.Filter{UniqueKey: "secret\x00"}})
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("a key that is not valid: %v", err)
	}
	refused("a reason", second(c.Tasks(ctx, admin.TaskQuery{Filter: admin.Filter{
		State: admin.StateReady, Reason: outbox.ReasonHandler}})), "Filter.Reason")
	refused("Reschedule", second(c.Reschedule(ctx, some, time.Time{}, admin.Bulk{})), "the time is zero")
	refused("Reschedule", second(c.Reschedule(ctx, some, time.Unix(1<<50, 0), admin.Bulk{})), "")
	refused("SetPriority", second(c.SetPriority(ctx, some, 1<<15, admin.Bulk{})), "")
	if err := second(c.Retype(ctx, some, "", admin.Bulk{})); !errors.Is(err, outbox.ErrInvalidType) {
		t.Errorf("Retype to no type: %v", err)
	}
	if err := c.SetPayload(ctx, 1, json.RawMessage(`{`)); !errors.Is(err, outbox.ErrInvalidPayload) {
		t.Errorf("SetPayload of no JSON: %v", err)
	}
	for want, bad := range map[string]admin.Bulk{
		"Bulk.Limit: -1": {Limit: -1}, "Bulk.PerSecond: -1": {PerSecond: -1}, "Bulk.Timeout: -1ns": {Timeout: -1},
		`After: "x"`: {After: "x"},
	} {
		refused("Redrive", second(c.Redrive(ctx, some, bad)), want)
	}
	refused("HandBack", second(c.HandBack(ctx, "'; --")), "which is a UUID")
	refused("PauseSchedule", c.PauseSchedule(ctx, "\x00"), "")
	for _, name := range []string{"", "a\nb", "\xff", strings.Repeat("x", 129)} {
		for _, err := range []error{c.PauseType(ctx, name), c.ResumeType(ctx, name)} {
			if !errors.Is(err, outbox.ErrInvalidType) {
				t.Errorf("%q: got %v, want ErrInvalidType", name, err)
			}
		}
	}
}

func TestWhatIsNotThereIsNotFound(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c, ctx := client(t, db.DB), t.Context()
	for _, err := range []error{c.PauseSchedule(ctx, "none"), c.ResumeSchedule(ctx, "none"), c.RemoveSchedule(ctx, "")} {
		if !errors.Is(err, admin.ErrNotFound) {
			t.Errorf("got %v, want ErrNotFound", err)
		}
	}
	err := client(t, db.DB, admin.Config{Schema: "elsewhere"}).PauseType(ctx, "TX")
	if err == nil || !strings.Contains(err.Error(), "elsewhere") {
		t.Errorf("a pause in a schema that does not exist: got %v", err)
	}
}

// An entry is seen once its transaction has committed. Go and PostgreSQL have the same limits.
func TestEntriesHaveTheirLimits(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	tx := begin(t, db)
	c := client(t, db.DB).In(tx)
	long := func(n int) string { return strings.Repeat("ü", n/2) }
	most := admin.AuditEntry{Actor: long(256), Tool: long(64), Action: admin.Action(long(64)), Target: long(1024), Count: 1 << 62}
	for _, good := range []admin.AuditEntry{most, {Actor: "a", Tool: "t", Action: "a"}} {
		if _, err := c.WriteAudit(t.Context(), good); err != nil {
			t.Error(err)
		}
	}
	for field, change := range map[string]func(e *admin.AuditEntry, text string){
		"Actor":  func(e *admin.AuditEntry, text string) { e.Actor = text },
		"Tool":   func(e *admin.AuditEntry, text string) { e.Tool = text },
		"Action": func(e *admin.AuditEntry, text string) { e.Action = admin.Action(text) },
		"Target": func(e *admin.AuditEntry, text string) { e.Target = text + strings.Repeat(" ", len(text)) },
		"Count":  func(e *admin.AuditEntry, _ string) { e.Count = -1 },
	} {
		for _, text := range []string{"", long(1024) + "x", "\xff", "a\x00"} {
			e := most
			change(&e, text)
			_, err := c.WriteAudit(t.Context(), e)
			refused := errors.Is(err, outbox.ErrInvalidOption) && strings.Contains(err.Error(), field)
			if allowed := text == "" && field == "Target"; refused == allowed {
				t.Errorf("%s %q: %v, want ErrInvalidOption", field, text, err)
			}
		}
	}
	for _, row := range []string{
		"'', 't', 'a', '', 0", "'a', '', 'a', '', 0", "'a', 't', '', '', 0", "repeat('x', 257), 't', 'a', '', 0",
		"'a', repeat('x', 65), 'a', '', 0", "'a', 't', repeat('x', 65), '', 0", "'a', 't', 'a', repeat('x', 1025), 0",
		"'a', 't', 'a', '', -1",
	} {
		_, err := db.Exec(`INSERT INTO outbox.audit (actor, tool, action, target, count) VALUES (` + row + `)`)
		if err == nil || !strings.Contains(err.Error(), "audit_") {
			t.Errorf("%s: %v, want a violated CHECK", row, err)
		}
	}
	for _, want := range []int{0, 3} {
		if seen, err := client(t, db.DB).Audit(t.Context(), admin.AuditQuery{}); err != nil || len(seen.Entries) != want {
			t.Errorf("%d entries, %v, want %d", len(seen.Entries), err, want)
		}
		if want == 0 {
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestATaskHasItsEntries(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	db.Do(t, `INSERT INTO outbox.audit (actor, tool, action, target)
		SELECT 'ada', 'test', 'try', unnest('{task 7,task 70,"tasks 7, 8",task 7 of type MAIL,TASK 7,task 8}'::text[])`)
	entries, next, err := entriesOf(client(t, db.DB).Audit(t.Context(), admin.AuditQuery{TaskID: 7, Limit: 2}))
	if err != nil || len(entries) != 2 || entries[0].Target != "task 7 of type MAIL" || entries[1].Target != "task 7" {
		t.Errorf("got %+v, %v, want the entries of task 7 alone, the latest first", entries, err)
	}
	older, err := client(t, db.DB).Audit(t.Context(), admin.AuditQuery{TaskID: 7, After: fmt.Sprint("audit.", entries[0].ID)})
	if err != nil || next != "" || len(older.Entries) != 1 || older.Entries[0] != entries[1] {
		t.Errorf("got %q and %+v, %v, want the older entry", next, older, err)
	}
}

// Entries name all tasks that were changed and no others; where these are too many for one, there
// are more, of one transaction. A target that is too long is cut.
func TestEntriesNameTheTasksThatWereChanged(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c := client(t, db.DB, admin.Config{Actor: "ada", Tool: "test"})
	bury(t, db, "MANY", "attempts", "x", 1_000_000, 600, 60)
	chosen := admin.Filter{}
	for i := range int64(1000) {
		chosen.IDs = append(chosen.IDs, 1_000_000+i)
	}
	for _, want := range []int{600, 0} { // an action on no task is not noted
		if moved, err := c.Redrive(t.Context(), chosen, admin.Bulk{}); err != nil || len(moved.IDs) != want {
			t.Fatalf("got %d, %v, want %d", len(moved.IDs), err, want)
		}
	}
	entries, _ := pages(t, 5, func(after string) ([]admin.AuditEntry, string, error) {
		return entriesOf(c.Audit(t.Context(), admin.AuditQuery{After: after, Limit: 5}))
	})
	var named []string
	for _, e := range entries {
		ids := strings.Split(strings.TrimPrefix(e.Target, "tasks "), ", ")
		named = append(ids, named...)
		same := e.At == entries[0].At && e.Actor == "ada" && e.Tool == "test" && e.Action == "redrive"
		if int64(len(ids)) != e.Count || len(e.Target) > 1024 || !same {
			t.Errorf("the entry is %+v", e)
		}
	}
	if want := strings.Trim(fmt.Sprint(chosen.IDs[:600]), "[]"); strings.Join(named, " ") != want || len(entries) > 13 {
		t.Errorf("%d entries name %s", len(entries), named)
	}
	long := admin.Filter{Error: strings.Repeat("ü", 1000)}
	bury(t, db, "LONG", "attempts", long.Error, 2_000_000, 1, 60)
	if purged, err := c.Purge(t.Context(), long, admin.Bulk{}); err != nil || len(purged.IDs) != 1 {
		t.Errorf("got %v, %v", purged, err)
	}
	after, err := c.Audit(t.Context(), admin.AuditQuery{})
	if got := after.Entries[0].Target; err != nil || len(got) > 1024 || !strings.HasSuffix(got, "ü…") {
		t.Errorf("the target is %s, %v", got, err)
	}
}

// An action in several transactions is noted before it and after it, with its result.
func TestHandingBackIsNotedBeforeItAndAfterIt(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c := client(t, db.DB, admin.Config{Actor: "ada", Tool: "test"})
	lease(t, db, deadRelay, 1001)
	db.Do(t, `CREATE FUNCTION outbox.boom() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'boom'; END $$;
		CREATE TRIGGER boom BEFORE UPDATE ON outbox.task FOR EACH ROW EXECUTE FUNCTION outbox.boom()`)
	if n, err := c.HandBack(t.Context(), deadRelay); n != 0 || err == nil || !strings.Contains(err.Error(), "boom") {
		t.Errorf("got %d, %v", n, err)
	}
	db.Do(t, `DROP TRIGGER boom ON outbox.task; DROP FUNCTION outbox.boom`)
	if n, err := c.HandBack(t.Context(), strings.ToUpper(deadRelay)); n != 1001 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
	if n := db.Int(t, `SELECT count(*) FROM outbox.task WHERE state = 'ready' AND relay_id IS NOT NULL`); n != 1001 {
		t.Errorf("%d tasks are ready and suspect, want 1001", n)
	}
	got := db.Text(t, `SELECT string_agg(concat_ws(' ', action, count), ', ' ORDER BY entry_id) FROM outbox.audit
		WHERE lower(target) = 'relay `+deadRelay+`'`)
	if want := "hand_back 0, hand_back: failed 0, hand_back 0, hand_back: done 1001"; got != want {
		t.Errorf("the audit log has %s, want %s", got, want)
	}
	db.Do(t, `DELETE FROM outbox.task`)
}
