package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/admin"
)

func TestTailPrintsALineForEachEvent(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	relayID := db.relay(t)
	db.bury(t, "MAIL", "no such "+hostile, 1001, 1)
	text := db.terminal(t, "tail")
	asJSON := command(t, environment(db.URL), "tail", "-json", "-type", "MAIL", "-event", "done,dead")
	out, err := asJSON.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := asJSON.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	next := func() map[string]any {
		t.Helper()
		if !lines.Scan() {
			t.Fatalf("there is no further line: %v", lines.Err())
		}
		of := map[string]any{}
		if err := json.Unmarshal(lines.Bytes(), &of); err != nil {
			t.Fatalf("%v: %s", err, lines.Text())
		}
		return of
	}
	if of := next(); of["event"] != "listening" || of["relays"] != 1.0 || of["silent"] != 0.0 || len(of) != 4 {
		t.Errorf("it begins with %v", of)
	}
	text.shows(t, "1 relay alive, waiting for the next heartbeat: at most 3 s")
	text.shows(t, "TIME          EVENT           TYPE")

	// A relay is heard, and then one that is made up.
	eventually(t, "a task is told", func() bool {
		db.ok(t, "enqueue", "MAIL", "{}")
		return strings.Contains(text.text(), " done ")
	})
	const made = `{"r":"%s","o":1234,"e":[{"t":1,"n":"begun","y":"MAIL","i":1001,"a":1},
		{"t":1700000000123456,"n":"dead","y":"MAIL","k":"leased","i":1001,"a":9,"d":46900,"r":"handler"}]}`
	db.Do(t, `SELECT pg_notify('outbox.tail', $1)`, fmt.Sprintf(made, relayID))
	documented, done, leftOut := documentedNames(t)["tail"], 0, false
	for of := next(); of["event"] != "dead"; of = next() {
		switch of["event"] {
		case "done":
			done++
		case "left_out":
			leftOut = of["left_out"] == 1234.0 && of["relay_id"] == relayID
		default:
			t.Errorf("a line is %v", of)
		}
		for name := range of {
			if !documented[name] {
				t.Errorf("%s lacks %s of tail", docs, name)
			}
		}
	}
	if last := lines.Text(); done == 0 || !leftOut || !strings.HasPrefix(last, `{"at":"2023-11-14T22:13:20.123456Z",`+
		`"event":"dead","type":"MAIL","kind":"leased","task_id":1001,"attempt":9,"duration_seconds":0.0469,`+
		`"reason":"handler","relay_id":"`+relayID+`","error":"no such x`) || strings.Contains(last, "\x1b") {
		t.Errorf("%d lines are of tasks that are done, left out is told: %v, the last line is %q", done, leftOut, last)
	}
	line := regexp.MustCompile(`22:13:20\.123  dead            MAIL +1001        9    46\.9ms  ` + relayID[:8] +
		`  handler: no such x\\x1b\[2J`)
	eventually(t, "the text has the line", func() bool { return line.MatchString(text.text()) })
	text.shows(t, "left out 1,234 events: more happens than it sends")
	if strings.Contains(text.text(), "\x1b") {
		t.Errorf("an escape reached the terminal: %q", text.text())
	}

	text.types(t, "\x03")
	if code := text.end(t); code != exitOK {
		t.Errorf("ctrl-C ends it with exit code %d", code)
	}
	if err := asJSON.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() {
	}
	if err := asJSON.Wait(); err != nil {
		t.Errorf("ctrl-C ends it with %v", err)
	}
}

func TestTailSaysWhatItNeeds(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.steps(t,
		step{"tail -event died", exitUsage, "use begun, done"},
		step{"tail now", exitUsage, `unknown command`})
	if got := listening(admin.TailEvent{Relays: 3, Silent: 1}); !strings.Contains(got, "3 relays alive") ||
		!strings.Contains(got, "1 of an older version cannot tell") {
		t.Error(got)
	}
	if got := listening(admin.TailEvent{}); !strings.Contains(got, "no relay is alive") {
		t.Error(got)
	}
}
