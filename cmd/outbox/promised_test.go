package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// A scheduled task is made due, and its payload looked at; the audit log says that it was.
func Example() {
	url, drop := pgtest.ExampleDatabase()
	defer drop()
	for _, line := range []string{
		"migrate up | cut -d: -f1",
		`enqueue SEND_MAIL '{"to": "ada@example.com"}' -after 2h`,
		"tasks run-now 1",
		"tasks show 1 -payload | grep -E '^(state|payload)'",
		"audit -json | grep -c entry_id",
	} {
		fmt.Println("$ outbox " + line)
		c := exec.Command("bash", "-c", `"$outbox" `+line+" 2>&1")
		c.Env = environment(url, "outbox="+binary)
		out, _ := c.CombinedOutput()
		fmt.Printf("%s", out)
	}
	// Output:
	// $ outbox migrate up | cut -d: -f1
	// schema outbox
	// $ outbox enqueue SEND_MAIL '{"to": "ada@example.com"}' -after 2h
	// task 1: created
	// $ outbox tasks run-now 1
	// task 1: due
	// $ outbox tasks show 1 -payload | grep -E '^(state|payload)'
	// state     ready
	// payload   {"to": "ada@example.com"}
	// $ outbox audit -json | grep -c entry_id
	// 3
}

const docs = "../../docs/tools/command-line.md"

var update = flag.Bool("update", false, "write what the commands print into "+docs)

var (
	console = regexp.MustCompile("(?s)```console\n(.*?)```")
	// What differs from run to run, and how it is shown where only it differs.
	varying = regexp.MustCompile(strings.Join([]string{
		`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+Z)?`, `[0-9a-f]{8}-[0-9a-f-]{27}`, `[0-9a-f]{8} `, `\d\d:\d\d:\d\d`,
		`\b(\d+\.\d+|\d+)(s|ms|µs)\b`, `"duration_seconds": [0-9.e-]+`, `\b\d+m\d\ds`, `\b\d+[hd]\d\d[mh]`, `-+`,
	}, "|"))
)

// same is a text without what varies, and without how wide that is.
func same(text, login, host, pid string) string {
	text = varying.ReplaceAllString(text, "?")
	login, host = varying.ReplaceAllString(login, "?"), varying.ReplaceAllString(host, "?")
	text = strings.NewReplacer(login+"@", "ops@", host, "HOST", "db1", "HOST", pid, "PID", "4711", "PID").Replace(text)
	return strings.Join(strings.Fields(text), " ")
}

func TestTheDocumentationShowsWhatIsPrinted(t *testing.T) {
	db := newDB(t)
	type welcome struct{ Email string }
	var mended atomic.Bool
	db.Do(t, `INSERT INTO outbox.task (task_type, payload) SELECT 'SEND_WELCOME', jsonb_build_object('email',
		CASE n WHEN 3 THEN 'ada@broken.example' ELSE 'user' || n || '@example.com' END) FROM generate_series(1, 3) n`)
	db.ok(t, "enqueue", "REPORT", `{"month": "2026-04"}`, "-after", "2h")
	db.ok(t, "enqueue", "ENCODE_VIDEO", `{}`)
	db.ok(t, "enqueue", "OLD_IMPORT", `{}`, "-attempts", "3")
	r := handlers.New()
	mail := outbox.NewTaskType[welcome]("SEND_WELCOME")
	handlers.Leased(r, mail, func(_ context.Context, task *outbox.Task[welcome]) error {
		if strings.HasSuffix(task.Payload.Email, "@broken.example") && !mended.Load() {
			return handlers.Dead(errors.New("550 no such mailbox"))
		}
		return nil
	})
	handlers.Leased(r, outbox.NewTaskType[any]("ENCODE_VIDEO"), func(ctx context.Context, _ *outbox.Task[any]) error {
		<-ctx.Done()
		return nil
	}, handlers.MaxRunning(4))
	report := outbox.NewTaskType[map[string]string]("REPORT")
	done := func(context.Context, *outbox.Task[map[string]string]) error { return nil }
	handlers.Leased(r, report, done, handlers.Rate(10, time.Minute))
	parse := func(string) (relay.Timing, error) { return relay.Every(24 * time.Hour), nil }
	nightly := relay.Schedule{
		Name: "nightly-report", Timing: relay.Cron(parse, "@daily"),
		Task: report.New(map[string]string{"month": "2026-05"}),
	}
	config := relay.Config{Workers: 10, DrainTimeout: time.Millisecond, Schedules: []relay.Schedule{nightly}}
	relaytest.Run(t, db.DB, r, config)
	eventually(t, "one is dead, one runs, and two are done", func() bool {
		return db.Text(t, `SELECT concat_ws(' ', (SELECT count(*) FROM outbox.dead_task),
			(SELECT count(*) FROM outbox.schedule), (SELECT string_agg(task_id || state, ' ' ORDER BY task_id) FROM outbox.task))`) == "1 1 4scheduled 5leased 6ready"
	})
	text, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	host, _ := os.Hostname()
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	login := me.Username
	pid := db.Text(t, `SELECT pid FROM outbox.relay`)
	shown := 0
	written := console.ReplaceAllStringFunc(string(text), func(block string) string {
		var b strings.Builder
		b.WriteString("```console\n")
		for _, line := range strings.Split(block, "\n") {
			line, isCommand := strings.CutPrefix(line, "$ ")
			if !isCommand {
				continue
			}
			shown++
			mended.Store(mended.Load() || strings.Contains(line, "redrive"))
			c := command(t, environment(db.URL), "")
			c.Path, c.Args = "/bin/bash", []string{"bash", "-c", line + " 2>&1"}
			c.Env = append(c.Env, "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"))
			b.WriteString("$ " + line + "\n" + finish(t, c).out)
			if strings.Contains(line, "redrive") { // for what comes after it
				eventually(t, "what was redriven is done", func() bool {
					return db.Text(t, `SELECT count(*) FROM outbox.task WHERE task_type = 'SEND_WELCOME'`) == "0"
				})
			}
		}
		if *update {
			return strings.NewReplacer(login+"@", "ops@", host, "db1", " "+pid+" ", " 4711 ").Replace(b.String()) + "```"
		}
		return b.String() + "```"
	})
	if shown < 20 {
		t.Errorf("%d commands are shown", shown)
	}
	if *update {
		if err := os.WriteFile(docs, []byte(written), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, got := console.FindAllString(string(text), -1), console.FindAllString(written, -1)
	for i := range want {
		if same(got[i], login, host, pid) != same(want[i], login, host, pid) {
			t.Errorf("%s shows\n%s\nIt should show\n%s\nTo write that: go test . -run Documentation -update",
				docs, want[i], got[i])
		}
	}
}

// shapes has command lines, each with the shape of its JSON in the next line.
const shapes = "testdata/shapes.txt"

// shape has the names and types of a JSON value, like {a:number b:[string]}, of a list those of its
// first element.
func shape(v any) string {
	switch v := v.(type) {
	case map[string]any:
		var parts []string
		for _, name := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, name+":"+shape(v[name]))
		}
		return "{" + strings.Join(parts, " ") + "}"
	case []any:
		if len(v) == 0 {
			return "[]"
		}
		return "[" + shape(v[0]) + "]"
	case string:
		if _, err := time.Parse(time.RFC3339, v); err == nil {
			return "time"
		}
	case float64:
		return "number"
	}
	return strings.NewReplacer("<nil>", "null").Replace(fmt.Sprintf("%T", v))
}

// later matches a shape, also with more names of texts, numbers and times.
func later(shape string) *regexp.Regexp {
	added := strings.NewReplacer(`\{`, `\{(\w+:\w+ )*`, ` `, ` (\w+:\w+ )*`, `\}`, `( \w+:\w+)*\}`)
	return regexp.MustCompile("^" + added.Replace(regexp.QuoteMeta(shape)) + "$")
}

// names are those of JSON objects, by the command that prints them or, as "in tasks", by the list
// that they are in.
type names map[string]map[string]bool

func (n names) add(of string, v any) {
	object, _ := v.(map[string]any)
	for name, value := range object {
		if n[of] == nil {
			n[of] = map[string]bool{}
		}
		n[of][name] = true
		list, _ := value.([]any)
		for _, element := range list {
			n.add("in "+name, element)
		}
	}
}

var quoted = regexp.MustCompile("(in )?`([^`]+)`")

// documentedNames are those of the tables in docs: a row's first cell says of which objects.
func documentedNames(t *testing.T) names {
	t.Helper()
	text, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	n := names{}
	for _, row := range regexp.MustCompile(`(?m)^\|([^|]*)\|([^|]*)\|$`).FindAllStringSubmatch(string(text), -1) {
		for _, of := range quoted.FindAllStringSubmatch(row[1], -1) {
			for _, name := range quoted.FindAllStringSubmatch(row[2], -1) {
				n.add(of[1]+of[2], map[string]any{name[2]: nil})
			}
		}
	}
	return n
}

// The names in JSON are promised: names may be added, and none changes or goes. Docs has each, but need not
// have each fact of a task.
func TestTheShapesOfJSON(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	relayID := db.relay(t)
	db.schedule(t, "nightly")
	db.schedule(t, "old")
	db.Do(t, `INSERT INTO outbox.done_task (task_id, run_at, created_at, attempted_at, finished_at, keep_until, priority,
		attempt, task_type, payload, headers)
		VALUES (1, now(), now(), now(), now(), now() + interval '1 h', 0, 1, 'KEPT', '{}', '{}')`)
	db.Do(t, `SELECT setval('outbox.task_task_id_seq', 1)`)
	db.ok(t, "enqueue", "MAIL", "{}", "-after", "2h")
	db.ok(t, "enqueue", "MAIL", "{}", "-after", "1h")
	db.ok(t, "enqueue", slow, "{}")
	db.bury(t, "MAIL", "no such mailbox", 1001, 20)
	db.bury(t, "REPORT", "disk full", 2001, 1)
	db.Do(t, `INSERT INTO outbox.counter_log (tasks, task_type, kind) VALUES (20, 'MAIL', 'failed')`)
	eventually(t, "a task runs", func() bool {
		return strings.Contains(db.ok(t, "relays", "-json"), `"task_ids"`)
	})
	text, err := os.ReadFile(shapes)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	root, printed := (&app{}).root(), names{}
	for i := 0; i < len(lines); i += 2 {
		args := strings.Fields(strings.ReplaceAll(lines[i], "RELAY", relayID))
		r := db.run(t, append(args, "-json")...)
		var v any
		if err := json.Unmarshal([]byte(r.out), &v); err != nil {
			t.Errorf("%s: %v: %+v", args, err, r)
			continue
		}
		c, _, _ := root.Find(args)
		printed.add(pathOf(c), v)
		if got := shape(v); *update {
			lines[i+1] = got
		} else if !later(lines[i+1]).MatchString(got) {
			t.Errorf("%s:\n got %s\nwant %s", args, got, lines[i+1])
		}
	}
	if *update {
		if err := os.WriteFile(shapes, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range commands(root) {
		if path := pathOf(c); printed[path] == nil && path != "serve" && path != "tail" {
			t.Errorf("%s lacks %s", shapes, path)
		}
	}
	if got, want := db.Text(t, auditedActions), allActions(); got != want {
		t.Errorf("the commands write the actions\n%s\nthe constants are\n%s", got, want)
	}
	documented := documentedNames(t)
	for of := range printed {
		ofTask := of == "in tasks" || strings.HasSuffix(of, " show")
		for name := range documented[of] {
			if !printed[of][name] {
				t.Errorf("%s: the objects %s have no %s", docs, of, name)
			}
		}
		for name := range printed[of] {
			if !documented[of][name] && !ofTask {
				t.Errorf("%s lacks %s of the objects %s", docs, name, of)
			}
		}
	}
}

const auditedActions = `SELECT string_agg(DISTINCT split_part(action, ':', 1), ' ' ORDER BY split_part(action, ':', 1))
	FROM (SELECT action FROM outbox.audit UNION SELECT action FROM other.audit) a`

// allActions are the constants of package admin, which an entry has, or one of them with ": done".
func allActions() string {
	all := []string{}
	for _, a := range []admin.Action{
		admin.ActionCancel, admin.ActionRunNow, admin.ActionReschedule, admin.ActionSetPriority,
		admin.ActionSetPayload, admin.ActionRetype, admin.ActionRedrive, admin.ActionPurge,
		admin.ActionPurgeFinished, admin.ActionPause,
		admin.ActionResume, admin.ActionPauseSchedule, admin.ActionResumeSchedule, admin.ActionRemoveSchedule,
		admin.ActionPutSchedule, admin.ActionRunSchedule,
		admin.ActionHandBack, admin.ActionReindex, admin.ActionRepair, admin.ActionAdopt, admin.ActionAdoptDiscard,
		admin.ActionEnqueue, admin.ActionMigrate, admin.ActionGrantRoles,
	} {
		all = append(all, string(a))
	}
	return strings.Join(slices.Sorted(slices.Values(all)), " ")
}

// flags has each command with its flags and their types; without one of them scripts fail.
const flags = "testdata/flags.txt"

func TestTheFlagsOfCommands(t *testing.T) {
	root := (&app{}).root()
	has := map[string]bool{}
	var all strings.Builder
	list := func(path string, flags *pflag.FlagSet) {
		all.WriteString(path)
		flags.VisitAll(func(f *pflag.Flag) {
			flag := fmt.Sprintf(" -%s %s", f.Name, f.Value.Type())
			all.WriteString(flag)
			has[path+flag] = true
		})
		all.WriteString("\n")
	}
	list("all", root.PersistentFlags())
	for _, c := range commands(root) {
		list(pathOf(c), c.LocalNonPersistentFlags())
	}
	if *update {
		if err := os.WriteFile(flags, []byte(all.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	promised, err := os.ReadFile(flags)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(promised)) {
		parts := strings.Split(strings.TrimSpace(line), " -")
		for _, flag := range parts[1:] {
			if flag = parts[0] + " -" + flag; !has[flag] {
				t.Errorf("a flag is gone: outbox %s", flag)
			}
			delete(has, flag)
		}
	}
	for flag := range has {
		t.Errorf("%s does not promise outbox %s: go test . -run Flags -update", flags, flag)
	}
}

// pathOf is the name of a command with that of its group.
func pathOf(c *cobra.Command) string { return strings.TrimPrefix(c.CommandPath(), "outbox ") }

// commands are the commands that do something, without help and completion.
func commands(c *cobra.Command) (all []*cobra.Command) {
	for _, sub := range c.Commands() {
		if sub.Name() != "help" && sub.Name() != "completion" {
			all = append(all, commands(sub)...)
		}
	}
	if !c.HasSubCommands() {
		all = append(all, c)
	}
	return all
}
