package outboxtest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/outboxtest"
)

type addressV1 struct {
	ZIP string `json:"zip"`
}

type welcomeV1 struct {
	Email   string    `json:"email" outbox:"required"`
	Age     int       `json:"age"`
	Address addressV1 `json:"address"`
}

const goldenWelcome = `{
  "task_type": "users/SEND WELCOME",
  "payload": {
    "kind": "object",
    "fields": {
      "address": {
        "kind": "object",
        "fields": {
          "zip": {
            "kind": "string"
          }
        }
      },
      "age": {
        "kind": "int64"
      },
      "email": {
        "kind": "string",
        "required": true
      }
    }
  }
}
`

// inEmptyDir has the test run in a directory without files of Golden, and not in CI.
func inEmptyDir(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("CI", "")
}

// goldenFiles are the names of the files that are there.
func goldenFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "outbox", "*"))
	relaytest.Must(err)
	return files
}

// goldenFile is the only file, with its text.
func goldenFile(t *testing.T) (name, text string) {
	t.Helper()
	files := goldenFiles(t)
	if len(files) != 1 {
		t.Fatalf("the files are %q, want one", files)
	}
	b, err := os.ReadFile(files[0])
	relaytest.Must(err)
	return files[0], string(b)
}

// Golden writes the shape of payloads, lets optional fields come, and fails where stored tasks would
// lose what they say.
func TestGoldenFailsWhereADeployBreaksStoredTasks(t *testing.T) {
	inEmptyDir(t)
	const name = "users/SEND WELCOME"
	compare := func(t testing.TB) { outboxtest.Golden(t, outbox.NewTaskType[welcomeV1](name)) }
	first := failing(t, compare)
	file, got := goldenFile(t)
	if got != goldenWelcome {
		t.Errorf("it wrote\n%s\nwant\n%s", got, goldenWelcome)
	}
	if log := strings.Join(first.logs, ""); first.failed || !strings.Contains(log, "wrote "+file) || !strings.Contains(log, "commit") {
		t.Errorf("it logged %q and failed: %v", log, first.failed)
	}
	if again := failing(t, compare); again.failed || len(again.logs) > 0 {
		t.Errorf("it logged %q and failed: %v", again.logs, again.failed)
	}

	type grown struct {
		welcomeV1
		Name string `json:"name,omitempty"`
	}
	outboxtest.Golden(t, outbox.NewTaskType[grown](name))
	_, grownFile := goldenFile(t)
	if !strings.Contains(grownFile, `"name": {`) {
		t.Errorf("it wrote\n%s\nwant a field name", grownFile)
	}

	type renamed struct {
		EmailAddress string `json:"email_address" outbox:"required"`
		Age          string `json:"age"`
		Address      struct {
			Zipcode string `json:"zipcode"`
		} `json:"address"`
	}
	broken := outbox.NewTaskType[renamed](name)
	text := failing(t, func(t testing.TB) { outboxtest.Golden(t, broken) })
	for _, want := range []string{
		"users/SEND WELCOME: email (string) is gone", "age was int64 and is string", "address.zip (string) is gone", "name (string) is gone",
		"email_address is new and required", "two deploys", "OUTBOX_UPDATE_GOLDEN=1",
	} {
		wantFatal(t, text, want)
	}
	if _, now := goldenFile(t); now != grownFile {
		t.Error("the file has changed, though the test failed")
	}
	t.Setenv("OUTBOX_UPDATE_GOLDEN", "1")
	outboxtest.Golden(t, broken)
	t.Setenv("OUTBOX_UPDATE_GOLDEN", "")
	outboxtest.Golden(t, broken)
	if _, now := goldenFile(t); !strings.Contains(now, "zipcode") {
		t.Errorf("it was not updated: %s", now)
	}
}

func TestGoldenNamesWhatItCannotRead(t *testing.T) {
	inEmptyDir(t)
	type typo struct {
		A int `outbox:"requierd"`
	}
	wantFatal(t, failing(t, func(t testing.TB) {
		outboxtest.Golden(t, outbox.NewTaskType[typo]("TYPO"))
	}), `has the tag outbox:"requierd"`)
	one := outbox.NewTaskType[welcomeV1]("A")
	outboxtest.Golden(t, one)
	file, _ := goldenFile(t)
	for _, text := range []string{"<<<<<<< HEAD\n", "# Payloads of A\n.\tobject\n", `{"task_type": "A", "shape": {}}`} {
		relaytest.Must(os.WriteFile(file, []byte(text), 0o600))
		for _, types := range [][]outboxtest.TaskType{{one}, {}} {
			got := failing(t, func(t testing.TB) { outboxtest.Golden(t, types...) })
			wantFatal(t, got, file)
			wantFatal(t, got, "no file as Golden writes it")
		}
	}
}

// The tasks of a type that has another name now wait for a handler.
func TestGoldenFailsIfATaskTypeIsGone(t *testing.T) {
	inEmptyDir(t)
	other := outbox.NewTaskType[int]("OTHER")
	outboxtest.Golden(t, other, outbox.NewTaskType[welcomeV1]("SEND WELCOME"))
	now := outbox.NewTaskType[welcomeV1]("SEND MAIL")
	got := failing(t, func(t testing.TB) { outboxtest.Golden(t, other, now) })
	for _, want := range []string{"SEND WELCOME (testdata", "have no handler", "until none of its tasks waits, in outbox.task or outbox.dead_task",
		"OUTBOX_UPDATE_GOLDEN=1", "in one call of Golden"} {
		wantFatal(t, got, want)
	}
	if strings.Contains(got.fatal, "OTHER") {
		t.Errorf("it names a type that is not gone: %s", got.fatal)
	}
	t.Setenv("OUTBOX_UPDATE_GOLDEN", "1")
	update := failing(t, func(t testing.TB) { outboxtest.Golden(t, other, now) })
	if len(goldenFiles(t)) != 2 || !strings.Contains(strings.Join(update.logs, ""), "removed testdata") {
		t.Errorf("the files are %q; it logged %q", goldenFiles(t), update.logs)
	}
	t.Setenv("OUTBOX_UPDATE_GOLDEN", "")
	outboxtest.Golden(t, other, now)
}

// A file that nobody commits guards nothing.
func TestGoldenWritesNothingInCI(t *testing.T) {
	inEmptyDir(t)
	one := outbox.NewTaskType[struct{ A int }]("A")
	t.Setenv("CI", "true")
	wantFatal(t, failing(t, func(t testing.TB) { outboxtest.Golden(t, one) }), "commit the files")
	if files := goldenFiles(t); len(files) > 0 {
		t.Errorf("it wrote %q", files)
	}
	t.Setenv("CI", "false")
	outboxtest.Golden(t, one)
	t.Setenv("CI", "1")
	outboxtest.Golden(t, one)
	grown := outbox.NewTaskType[struct{ A, B int }]("A")
	wantFatal(t, failing(t, func(t testing.TB) { outboxtest.Golden(t, grown) }), "of task type A")
}

// Each type has a file of its own on each file system: none is longer than 143 bytes, and the names
// differ in more than case.
func TestEachTaskTypeHasAFileOnAnyFileSystem(t *testing.T) {
	inEmptyDir(t)
	names := []string{"send", "Send", "SEND", "con", "a/b", "a:b", "a b", "a-b", "a.b", ".", "..", strings.Repeat("x", 127), strings.Repeat("x", 128),
		strings.Repeat("ä", 64), "é", "é", strings.Repeat("日", 42), strings.Repeat("📨", 32)}
	var types []outboxtest.TaskType
	for _, name := range names {
		types = append(types, outbox.NewTaskType[int](name))
	}
	outboxtest.Golden(t, types...)
	folded := map[string]bool{}
	for _, file := range goldenFiles(t) {
		base := filepath.Base(file)
		folded[strings.ToLower(base)] = true
		if len(base) > 143 || strings.ContainsFunc(base, func(r rune) bool { return r > 126 || strings.ContainsRune(`<>:"/\|?* `, r) }) {
			t.Errorf("the file %q is no name everywhere", base)
		}
	}
	if len(folded) != len(names) {
		t.Errorf("%d types have %d files", len(names), len(folded))
	}
	outboxtest.Golden(t, types...)
}

// A checkout may have other ends of lines.
func TestGoldenWorksWithCheckoutsOfWindows(t *testing.T) {
	inEmptyDir(t)
	one := outbox.NewTaskType[welcomeV1]("email:welcome")
	outboxtest.Golden(t, one)
	file, written := goldenFile(t)
	crlf := strings.ReplaceAll(written, "\n", "\r\n")
	relaytest.Must(os.WriteFile(file, []byte(crlf), 0o600))
	outboxtest.Golden(t, one)
	if _, now := goldenFile(t); now != crlf {
		t.Errorf("it wrote a file that had changed in nothing but ends of lines: %q", now)
	}
}
