package main

import (
	"context"
	"database/sql"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
)

const (
	typeShape  = "dead:number failed:number finished:number leased:number next_run_at:time oldest_ready_seconds:number ready:number scheduled:number type:string waiting:number"
	infoShape  = "dead:number failed:number finished:number leased:number max_running:number next_run_at:time oldest_ready_seconds:number paused:bool rate:number rate_per_seconds:number ready:number relays:number"
	dead       = "attempt:number attempted_at:time created_at:time died_at:time error:string"
	deadMore   = "max_attempts:number"
	deadRest   = "priority:number reason:string run_at:time task_id:number type:string"
	taskFirst  = "attempt:number attempted_at:null created_at:time ended_at:null"
	taskMiddle = "iterations:number last_error:string leased_until:null max_attempts:number"
	taskRest   = "priority:number reason:string relay_id:string run_at:time"
	taskEnd    = "state:string task_id:number timeout_seconds:number type:string"
	relayShape = "{alive:bool alive_until:time connections:number host:string pid:number relay_id:string runs:[] started_at:time types:[string] workers:number}"
	kept       = "attempt:number attempted_at:time created_at:time error:string finished_at:time"
	keptRest   = "keep_until:time"
	keptEnd    = "priority:number run_at:time task_id:number type:string"
	scheduled  = "{catch_up:string created_at:time last_at:null name:string next_at:time paused:bool spec:string type:string}"
)

// The shapes of JSON are promised: names may be added, and none changes or goes.
func TestTheShapesOfJSON(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.relay(t, func(r *handlers.Registry) {
		handlers.Tx(r, outbox.NewTaskType[any]("KEPT"), func(context.Context, *sql.Tx, *outbox.Task[any]) error { return nil }, handlers.Keep(time.Hour))
	})
	db.Do(t, `INSERT INTO outbox.schedule (name, task_type, payload, timing, definition, next_at) VALUES ('nightly', 'REPORT', '{}', 'x', 'x', now() + interval '1 day'), ('old', 'REPORT', '{}', 'x', 'x', now() + interval '1 day')`)
	db.ok(t, "enqueue", "KEPT", "{}", "-header", "a=b")
	eventually(t, "it is done", func() bool { return db.Text(t, `SELECT count(*) FROM outbox.done_task`) == "1" })
	db.ok(t, "enqueue", "MAIL", "{}", "-after", "2h")
	db.ok(t, "enqueue", "MAIL", "{}", "-after", "1h")
	db.bury(t, "MAIL", "no such mailbox", 1001, 20)
	relayID := db.Text(t, `SELECT relay_id FROM outbox.relay`)

	documented, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	jsonName := regexp.MustCompile(`(?m)^ *"(\w+)": `)
	for _, tt := range []struct{ args, want string }{
		{"stats", "{types:[{" + typeShape + "}]}"},
		{"types", "{types:[{" + infoShape + " scheduled:number type:string waiting:number}]}"},
		{"top", "{at:time relays:[" + relayShape + "] types:[{" + infoShape + " running:number scheduled:number type:string waiting:number}]}"},
		{"relays", "{relays:[" + relayShape + "]}"},
		{"tasks list -type MAIL -state scheduled -limit 1", "{next:string tasks:[{" + taskFirst + " " + taskMiddle + " " + taskRest + " " + taskEnd + "}]}"},
		{"tasks list -type NONE", "{next:null tasks:[]}"},
		{"tasks show 2", "{" + taskFirst + " " + taskMiddle + " " + taskRest + " runs:[] " + taskEnd + "}"},
		{"tasks show 2 -payload", "{" + taskFirst + " headers:null " + taskMiddle + " ordering_key:string payload:{} " + taskRest + " runs:[] " + taskEnd + " unique_key:string}"},
		{"dead list -limit 1", "{letters:[{" + dead + " " + deadMore + " " + deadRest + "}] next:string}"},
		{"dead list -type NONE", "{letters:[] next:null}"},
		{"dead show 1001", "{" + dead + " " + deadMore + " " + deadRest + "}"},
		{"dead show 1001 -payload", "{" + dead + " headers:{trace:string} " + deadMore + " ordering_key:string payload:{n:number secret:string} " + deadRest + " unique_key:string}"},
		{"history list", "{next:null tasks:[{" + kept + " " + keptRest + " " + keptEnd + "}]}"},
		{"history show 1", "{" + kept + " " + keptRest + " " + keptEnd + "}"},
		{"history show 1 -payload", "{" + kept + " headers:{a:string} " + keptRest + " ordering_key:string payload:{} " + keptEnd + " unique_key:string}"},
		{"schedules", "{schedules:[" + scheduled + "]}"},
		{"schedules pause nightly", "{name:string paused:bool}"},
		{"schedules resume nightly", "{name:string paused:bool}"},
		{"schedules remove old -yes", "{name:string removed:bool}"},
		{"pause MAIL", "{paused:bool type:string}"},
		{"resume MAIL", "{paused:bool type:string}"},
		{"enqueue MAIL {}", "{outcome:string task_id:number}"},
		{"tasks run-now 3", "{due:[number] not_found:[]}"},
		{"tasks cancel 2 -yes", "{canceled:[number] not_found:[] requested:[]}"},
		{"dead redrive 1001", "{matched:number not_found:[] redriven:number}"},
		{"dead redrive -error mailbox -yes -rate 1000", "{matched:number not_found:[] redriven:number}"},
		{"dead purge -all -yes", ""}, // nothing is left
		{"relays hand-back " + relayID + " -yes", "{relay_id:string tasks:number}"},
		{"reindex", "{indexes:[{after_bytes:number before_bytes:number index:string table:string}]}"},
		{"migrate status", "{migrations:[{applied_at:time name:string version:number}] newest:number schema:string version:number}"},
		{"migrate up", "{from:number schema:string to:number}"},
		{"migrate print", "{sql:string}"},
		{"roles print", "{sql:string}"},
		{"roles apply -yes", "{applied:bool schema:string}"},
		{"version", "{go:string schema_version:number version:string}"},
		{"doctor", "{findings:[{check:string do:string severity:string subject:string what:string}] worst:string}"},
		{"audit -limit 3", "{entries:[{action:string actor:string at:time count:number entry_id:number target:string tool:string}] next:string}"},
	} {
		r := db.run(t, append(strings.Fields(tt.args), "-json")...)
		if tt.want == "" {
			if r.code != exitNotFound || shape(t, r.out) != "{matched:number not_found:[] purged:number}" {
				t.Errorf("%s: got %+v", tt.args, r)
			}
			continue
		}
		if r.code != exitOK && tt.args != "doctor" {
			t.Errorf("%s: exit code %d: %s", tt.args, r.code, r.err)
			continue
		}
		for _, name := range jsonName.FindAllStringSubmatch(r.out, -1) {
			if !strings.Contains(string(documented), "`"+name[1]+"`") && name[1] != "n" && name[1] != "secret" && name[1] != "trace" && name[1] != "a" { // of payloads and headers
				t.Errorf("%s: %s does not name %s", tt.args, docs, name[1])
			}
		}
		got := shape(t, r.out)
		if strings.HasPrefix(tt.args, "stats") || strings.HasPrefix(tt.args, "types") || strings.HasPrefix(tt.args, "top") {
			got = strings.ReplaceAll(got, "next_run_at:null", "next_run_at:time")
		}
		if got != tt.want {
			t.Errorf("%s:\n got %s\nwant %s", tt.args, got, tt.want)
		}
	}
}
