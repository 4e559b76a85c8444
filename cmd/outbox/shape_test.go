package main

import (
	"context"
	"database/sql"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
)

const (
	typeShape = "dead:number failed:number finished:number leased:number next_run_at:time oldest_ready_seconds:number ready:number " +
		"scheduled:number type:string waiting:number"
	infoShape   = typeShape + " max_running:number paused:bool rate:number rate_per_seconds:number relays:number"
	commonShape = "attempt:number created_at:time iterations:number key:string leased_until:null max_attempts:number priority:number " +
		"reason:string relay_id:string run_at:time state:string task_id:number timeout_seconds:number type:string"
	taskShape     = commonShape + " attempted_at:null ended_at:null keep_until:null last_error:string"
	deadShape     = commonShape + " attempted_at:time died_at:time error:string keep_until:null"
	finishedShape = commonShape + " attempted_at:time error:string finished_at:time keep_until:time"
	hiddenShape   = " ordering_key:string unique_key:string"
	relayShape    = "{alive:bool alive_until:time connections:number host:string last_seen:time missing:bool pid:number relay_id:string runs:[] started_at:time types:[string] workers:number}"
	scheduled     = "{catch_up:string created_at:time last_at:null name:string next_at:time paused:bool spec:string type:string}"
)

// failedShape is of a timeline with events.
const failedShape = " runs:[] timeline:[{actor:string,at:time,attempt:number,duration_seconds:number,error:string,event:string,last_at:null,reason:string,relay_id:string,times:number}]"

// of is the shape of an object with members in any order.
func of(members string) string {
	sorted := strings.Fields(members)
	slices.Sort(sorted)
	return "{" + strings.ReplaceAll(strings.Join(sorted, " "), ",", " ") + "}"
}

// The shapes of JSON are promised: names may be added, and none changes or goes.
func TestTheShapesOfJSON(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.relay(t, func(r *handlers.Registry) {
		handlers.Tx(r, outbox.NewTaskType[any]("KEPT"), func(context.Context, *sql.Tx, *outbox.Task[any]) error { return nil }, handlers.Keep(time.Hour))
	})
	db.schedule(t, "nightly")
	db.schedule(t, "old")
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
	promises := []struct{ args, want string }{
		{"stats", "{types:[" + of(typeShape) + "]}"},
		{"types", "{types:[" + of(infoShape) + "]}"},
		{"top", "{at:time relays:[" + relayShape + "] types:[" + of(infoShape+" running:number") + "]}"},
		{"relays", "{relays:[" + relayShape + "]}"},
		{"tasks list -type MAIL -state scheduled -limit 1", "{next:string tasks:[" + of(taskShape) + "]}"},
		{"tasks list -type NONE", "{next:null tasks:[]}"},
		{"tasks show 2", of(taskShape + " runs:[] timeline:[]")},
		{"tasks show 2 -payload", of(taskShape + " runs:[] timeline:[] headers:null payload:{}" + hiddenShape)},
		{"dead list -limit 1", "{letters:[" + of(deadShape) + "] next:string}"},
		{"dead list -type NONE", "{letters:[] next:null}"},
		{"dead show 1001", of(deadShape + failedShape)},
		{"dead show 1001 -payload", of(deadShape + failedShape + " headers:{trace:string} payload:{secret:string}" + hiddenShape)},
		{"history list", "{next:null tasks:[" + of(finishedShape) + "]}"},
		{"history show 1", of(finishedShape + failedShape)},
		{"history show 1 -payload", of(finishedShape + failedShape + " headers:{a:string} payload:{}" + hiddenShape)},
		{"schedules", "{schedules:[" + scheduled + "]}"},
		{"schedules pause nightly", "{name:string paused:bool}"},
		{"schedules resume nightly", "{name:string paused:bool}"},
		{"schedules remove old -yes", "{name:string removed:bool}"},
		{"pause MAIL", "{paused:bool type:string}"},
		{"resume MAIL", "{paused:bool type:string}"},
		{"enqueue MAIL {}", "{outcome:string task_id:number}"},
		{"tasks run-now 3", "{due:[number] not_found:[]}"},
		{"tasks cancel 2 -yes", "{canceled:[number] not_found:[] requested:[]}"},
		{"dead redrive 1001", "{matched:number not_found:[] redriven:number skipped:[]}"},
		{"dead redrive -error mailbox -yes -rate 1000", "{matched:number not_found:[] redriven:number skipped:[]}"},
		{"dead purge -all -yes", ""}, // nothing is left
		{"relays hand-back " + relayID + " -yes", "{relay_id:string tasks:number}"},
		{"reindex", "{indexes:[{after_bytes:number before_bytes:number index:string table:string}]}"},
		{"repair", "{defects:[{conflict:string is:number kind:string should_be:number subject:string}] repaired:bool}"},
		{"adopt -environment staging -keep-id -yes", "{database_id:string dead_letters:number leases:number schedules:number tasks:number}"},
		{"migrate status", "{migrations:[{applied_at:time name:string version:number}] newest:number schema:string version:number}"},
		{"migrate up", "{from:number schema:string to:number}"},
		{"migrate print", "{sql:string}"},
		{"roles print", "{sql:string}"},
		{"roles apply -yes", "{applied:bool schema:string}"},
		{"version", "{go:string schema_version:number version:string}"},
		{"doctor", "{findings:[{check:string do:string severity:string subject:string what:string}] worst:string}"},
		{"audit -limit 3", "{entries:[{action:string actor:string at:time count:number entry_id:number target:string tool:string}] next:string}"},
	}
	promised := map[string]bool{}
	for _, p := range promises {
		for _, name := range regexp.MustCompile(`(\w+):`).FindAllStringSubmatch(p.want, -1) {
			promised[name[1]] = true
		}
	}
	for _, tt := range promises {
		r := db.run(t, append(strings.Fields(tt.args), "-json")...)
		if tt.want == "" {
			if r.code != exitNotFound || shape(t, r.out, nil) != "{matched:number not_found:[] purged:number}" {
				t.Errorf("%s: got %+v", tt.args, r)
			}
			continue
		}
		if r.code != exitOK && tt.args != "doctor" {
			t.Errorf("%s: exit code %d: %s", tt.args, r.code, r.err)
			continue
		}
		for _, name := range jsonName.FindAllStringSubmatch(r.out, -1) {
			if !strings.Contains(string(documented), "`"+name[1]+"`") && name[1] != "secret" && name[1] != "trace" && name[1] != "a" { // of payloads and headers
				t.Errorf("%s: %s does not name %s", tt.args, docs, name[1])
			}
		}
		got := shape(t, r.out, promised)
		if strings.HasPrefix(tt.args, "stats") || strings.HasPrefix(tt.args, "types") || strings.HasPrefix(tt.args, "top") {
			got = strings.ReplaceAll(got, "next_run_at:null", "next_run_at:time")
		}
		if got != tt.want {
			t.Errorf("%s:\n got %s\nwant %s", tt.args, got, tt.want)
		}
	}
}
