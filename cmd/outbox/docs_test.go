package main

import (
	"context"
	"errors"
	"flag"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

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
