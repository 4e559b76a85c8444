// Package examples_test checks the blocks of code in the documentation: Go compiles and SQL runs.
//
// A Go block is a whole file, declarations, or statements of a function that returns an error. It
// may use the blocks of declarations above it on its page, and what testdata/context.go imports and
// declares. A SQL block runs after testdata/context.sql; one with parameters ($1) is prepared. A
// line that is only … is left out, and RETURNING … returns all columns.
package examples_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/relaytest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

const root = ".." // of the repository

// block is a fenced block of a page.
type block struct {
	page string // its path from the root
	line int    // of the first line of text
	lang string // what follows the fence; may be ""
	text string
}

func TestTheCodeOfTheDocumentationWorks(t *testing.T) {
	blocks := map[string][]block{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		pages, err := filepath.Glob(filepath.Join(root, pattern))
		relaytest.Must(err)
		for _, path := range pages {
			text, err := os.ReadFile(path)
			relaytest.Must(err)
			page, err := filepath.Rel(root, path)
			relaytest.Must(err)
			for _, b := range parse(filepath.ToSlash(page), string(text)) {
				blocks[b.lang] = append(blocks[b.lang], b)
			}
		}
	}
	for lang, check := range map[string]func(*testing.T, []block) []string{"go": compile, "sql": runSQL} {
		t.Logf("%d blocks of %q", len(blocks[lang]), lang)
		for _, problem := range check(t, blocks[lang]) {
			t.Error(problem)
		}
		if len(blocks[lang]) == 0 {
			t.Errorf("no block of %s is found", lang)
		}
	}
}

// parse returns the blocks of one page.
func parse(page, text string) (out []block) {
	inside := false
	n := 0
	for line := range strings.Lines(text) {
		n++
		lang, fence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case fence && !inside:
			out = append(out, block{page: page, line: n + 1, lang: lang})
		case !fence && inside:
			out[len(out)-1].text += leaveOut(line)
		}
		inside = inside != fence
	}
	return out
}

var onlyDots = regexp.MustCompile(`^[ \t]*…[ \t]*\n`)

func leaveOut(line string) string {
	return strings.ReplaceAll(onlyDots.ReplaceAllString(line, "\n"), "RETURNING …", "RETURNING *")
}
