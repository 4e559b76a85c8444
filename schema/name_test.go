package schema

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// code is a script without its comments.
func code(script string) string { return regexp.MustCompile(`--.*`).ReplaceAllString(script, "") }

func TestSQLForTheDefaultNameIsTheFiles(t *testing.T) {
	got, err := SQL()
	if err != nil {
		t.Fatal(err)
	}
	const up = "-- +goose Up\n"
	if want := up + strings.ReplaceAll(strings.Join(migrations(), ""), up, "") + current().annotated("outbox"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for _, name := range badNames {
		if got, err := SQL(Schema(name)); err == nil || got != "" {
			t.Errorf("SQL(%q) = %q, %v, want an error", name, got, err)
		}
	}
}

// Only a version's own INSERT may follow what goose and psql would run outside of their
// transaction. A character outside of ASCII cannot be stored, or not even be sent, where the
// database's encoding lacks it.
func TestFilesAreASCIIAndLeaveTransactionsToTheCaller(t *testing.T) {
	for i, text := range append(slices.Clone(migrations()), rolesScript, current().annotated("outbox")) {
		for _, word := range []string{"BEGIN;", "COMMIT", "ROLLBACK", "CONCURRENTLY", "VACUUM", "\n\\"} {
			if strings.Contains(code(text), word) {
				t.Errorf("file %d: %s", i+1, word)
			}
		}
		if i < Version() && !strings.HasPrefix(text, "-- +goose Up\n") || strings.Contains(text, "+goose Down") {
			t.Errorf("file %d: want goose's Up, and no Down", i+1)
		}
		if at := strings.IndexFunc(text, func(r rune) bool { return r > '~' || r < ' ' && r != '\n' }); at >= 0 {
			t.Errorf("file %d is not ASCII at %.40q", i+1, text[at:])
		}
	}
}
