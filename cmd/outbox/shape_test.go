package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

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

// The shapes of JSON are promised: names may be added, and none changes or goes.
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
	db.bury(t, "MAIL", "no such mailbox", 1001, 20)
	text, err := os.ReadFile(shapes)
	if err != nil {
		t.Fatal(err)
	}
	documented, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range regexp.MustCompile(`(\w+):`).FindAllStringSubmatch(string(text), -1) {
		ofPayload := name[1] == "secret" || name[1] == "trace"
		if !ofPayload && !strings.Contains(string(documented), "`"+name[1]+"`") {
			t.Errorf("%s does not name %s", docs, name[1])
		}
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	for i := 0; i < len(lines); i += 2 {
		args := strings.ReplaceAll(lines[i], "RELAY", relayID)
		r := db.run(t, append(strings.Fields(args), "-json")...)
		var v any
		if err := json.Unmarshal([]byte(r.out), &v); err != nil {
			t.Errorf("%s: %v: %+v", args, err, r)
			continue
		}
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
}
