package outbox

import (
	"database/sql"
	"encoding/json"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lib/pq"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/schema"
)

// The view is the list of columns that an app may set: roles.sql makes the rights of it.
func TestOptionsSetTheColumnsOfTheViewOfKeyedTasks(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("postgres", pgtest.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := schema.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	var got []string
	err = db.QueryRow(`SELECT array_agg(k.attname::text) FROM pg_attribute k JOIN pg_attribute t USING (attname)
		WHERE k.attrelid = 'outbox.keyed_task'::regclass AND t.attrelid = 'outbox.task'::regclass`).Scan(pq.Array(&got))
	if err != nil {
		t.Fatal(err)
	}
	guide, err := os.ReadFile("docs/guide/enqueueing.md")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"task_id", "task_type", "payload", "unique_key", "unique_until_done"}
	for _, c := range optionalColumns {
		want = append(want, c.name)
		if !strings.Contains(string(guide), "`"+c.name+"`") {
			t.Errorf("docs/guide/enqueueing.md does not name %s", c.name)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the view has %v, options set %v", got, want)
	}
}

var inName = regexp.MustCompile(`([a-z])([A-Z])`)

// A copy that does nothing would have [forward.Fanout] lose the column. The field of a task has the
// column's name.
func TestACopyHasTheOptionsOfItsTask(t *testing.T) {
	t.Parallel()
	left := []string{"max_attempts", "run_at", "timeout_ms", "skip_failed", "group_key", "unique_until", "expires_at"}
	var task Task[json.RawMessage]
	values := map[string]string{} // by column
	for i, of := 0, reflect.ValueOf(&task).Elem(); i < of.NumField(); i++ {
		name, value := of.Type().Field(i).Name, ""
		switch to := of.Field(i); {
		case to.Kind() == reflect.String:
			value = "of " + name
			to.SetString(value)
		case to.CanInt():
			value = strconv.Itoa(100 + i)
			to.SetInt(int64(100 + i))
		case to.Type() == reflect.TypeFor[map[string]string]():
			value = `{"of":"` + name + `"}`
			to.Set(reflect.ValueOf(map[string]string{"of": name}))
		case to.Type() == reflect.TypeFor[time.Time]():
			at := time.Unix(int64(i), 0).UTC()
			value = at.Format("2006-01-02T15:04:05Z")
			to.Set(reflect.ValueOf(at))
		}
		values[strings.ToLower(inName.ReplaceAllString(name, "${1}_${2}"))] = value
	}
	for _, c := range optionalColumns {
		s := &settings{}
		c.copy(s, &task)
		want := values[c.name]
		if slices.Contains(left, c.name) {
			want = ""
		} else if want == "" {
			t.Errorf("no field of a task has %s", c.name)
		}
		got := ""
		if v := c.values(s)[0]; v.Valid {
			got = v.String
		}
		if got != want {
			t.Errorf("%s of a copy is %q, want %q", c.name, got, want)
		}
	}
}

var ofOptions = regexp.MustCompile(`(?m)^func ([A-Z]\w+)\(.*\) Option \{`)

// Schema and MaxPayload set no column.
func TestTheCoverageNamesEachOption(t *testing.T) {
	t.Parallel()
	named := []string{"Schema", "MaxPayload"}
	for _, file := range []string{"options.go", "unique.go"} {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		features, err := os.ReadFile("docs/coverage.md")
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range ofOptions.FindAllStringSubmatch(string(source), -1) {
			if !slices.Contains(named, m[1]) && !strings.Contains(string(features), "`outbox."+m[1]+"`") {
				t.Errorf("docs/coverage.md does not name outbox.%s", m[1])
			}
		}
	}
}

// An option is one value, which a task type keeps: the app may use its map again.
func TestTheHeadersOfAnOptionAreThoseOfItsCall(t *testing.T) {
	t.Parallel()
	h := map[string]string{"a": "1"}
	kept := NewTaskType[int]("A", Headers(h), AddHeaders(h))
	done := make(chan struct{})
	go func() { // as -race shows
		defer close(done)
		for i := range 100 {
			h[strconv.Itoa(i)], h["a"] = "2", "2"
		}
	}()
	for range 100 {
		s, err := newSettings(kept.New(1).Options)
		if err != nil || !maps.Equal(s.headers, map[string]string{"a": "1"}) {
			t.Fatalf("the headers are %v (%v)", s.headers, err)
		}
	}
	<-done
}
