package moves

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

const pages = "../../docs/coming-from"

var fenced = regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```$")

// blocks are those of a language on a page.
func blocks(t *testing.T, page, language string) (out []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(pages, page))
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range fenced.FindAllStringSubmatch(string(text), -1) {
		if block[1] == language {
			out = append(out, block[2])
		}
	}
	return out
}

// sqlOf is the one block of SQL of a page.
func sqlOf(t *testing.T, page string) string {
	t.Helper()
	found := blocks(t, page, "sql")
	if len(found) != 1 {
		t.Fatalf("%s has %d blocks of SQL, want 1: %q", page, len(found), found)
	}
	return found[0]
}

// flush takes the tabs away that indent a statement of a function.
func flush(code string) string {
	return regexp.MustCompile(`(?m)^\t+`).ReplaceAllString(code, "")
}

// The tests run the functions of moves.go, so the code of the pages is theirs, line by line.
func TestTheGoCodeOfThePagesIsThatOfThisPackage(t *testing.T) {
	source, err := os.ReadFile("moves.go")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, page := range []string{"river.md", "asynq.md", "gue.md"} {
		for _, block := range blocks(t, page, "go") {
			n++
			if !strings.Contains(flush(string(source)), flush(block)) {
				t.Errorf("%s has code that moves.go does not have:\n%s", page, block)
			}
		}
	}
	if n < 6 {
		t.Errorf("the pages have %d blocks of Go, want 6 at least", n)
	}
}
