package schema

import (
	"regexp"
	"strings"
	"testing"
)

// code is a script without its comments.
func code(script string) string { return regexp.MustCompile(`--.*`).ReplaceAllString(script, "") }

func TestAnotherNameReplacesEveryUseOfTheFirst(t *testing.T) {
	for _, name := range []string{"select", "x", "_", "my_outbox", "outbox2", strings.Repeat("x", 63)} {
		script, err := SQL(name)
		if err != nil {
			t.Fatal(err)
		}
		for text, script := range map[string]string{"SQL": script, "the table of versions": rename(createMigrationTable, name)} {
			uses := strings.Count(code(script), `"`+name+`"`)
			if left := strings.ReplaceAll(code(script), `"`+name+`"`, ""); strings.Contains(left, "outbox") {
				t.Errorf("%s for %s: outbox is left in\n%s", text, name, left)
			}
			if uses < 3 {
				t.Errorf("%s for %s: the name is in it %d times", text, name, uses)
			}
		}
	}
}

func TestSQLForTheDefaultNameIsTheFiles(t *testing.T) {
	got, err := SQL("outbox")
	if err != nil {
		t.Fatal(err)
	}
	const up = "-- +goose Up\n"
	if want := up + strings.ReplaceAll(strings.Join(migrations(), ""), up, ""); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for _, name := range badNames {
		if got, err := SQL(name); err == nil || got != "" {
			t.Errorf("SQL(%q) = %q, %v, want an error", name, got, err)
		}
	}
}

// Only a version's own INSERT may follow what goose and psql would run outside of their transaction.
func TestFilesLeaveTransactionsToTheCaller(t *testing.T) {
	for i, text := range migrations() {
		for _, word := range []string{"BEGIN;", "COMMIT", "ROLLBACK", "CONCURRENTLY", "VACUUM", "\n\\"} {
			if strings.Contains(code(text), word) {
				t.Errorf("file %d: %s", i+1, word)
			}
		}
		if !strings.HasPrefix(text, "-- +goose Up\n") || strings.Contains(text, "+goose Down") {
			t.Errorf("file %d: want goose's Up, and no Down", i+1)
		}
	}
}
