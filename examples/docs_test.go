package examples_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/examples/internal/docblocks"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/schema"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

const root = ".." // of the repository

func TestTheCodeOfTheDocumentationWorks(t *testing.T) {
	blocks, err := docblocks.Read(root)
	if err != nil {
		t.Fatal(err)
	}
	db, err := pgtest.Open("postgres", pgtest.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := schema.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	compiled, problems, err := docblocks.Compile(root, blocks)
	if err != nil {
		t.Fatal(err)
	}
	ran, inSQL, err := docblocks.RunSQL(t.Context(), db, blocks)
	if err != nil {
		t.Fatal(err)
	}
	looked, inShell := docblocks.CheckShell(root, blocks)
	for _, p := range append(append(problems, inSQL...), inShell...) {
		t.Error(p)
	}
	t.Logf("%d blocks of Go, %d of SQL, %d for a shell", compiled, ran, looked)
	fences := fencesOfThePages(t)
	for what, n := range map[string][2]int{
		"blocks":                      {len(blocks), fences["all"]},
		"Go":                          {compiled, fences["go"]},
		"SQL":                         {ran, fences["sql"]},
		"shell, with what is printed": {looked, fences["sh"] + fences["console"]},
	} {
		if n[0] != n[1] || n[1] == 0 {
			t.Errorf("%s: %d were checked, the pages have %d", what, n[0], n[1])
		}
	}
	for _, b := range blocks {
		switch b.Lang {
		case "go", "sql", "sh", "console", "mermaid", "": // the last two are shown, not run
		default:
			t.Errorf("%s:%d: nothing checks blocks of %q", b.Page, b.Line, b.Lang)
		}
	}
}

// fencesOfThePages counts the blocks by their first lines, as a reader sees them: indented ones too, in all languages and, as "all", together.
func fencesOfThePages(t *testing.T) map[string]int {
	t.Helper()
	pages, err := filepath.Glob(filepath.Join(root, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	if err := filepath.WalkDir(filepath.Join(root, "docs"), func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".md") {
			pages = append(pages, path)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	out := map[string]int{}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		open := false
		for line := range strings.Lines(string(text)) {
			lang, fence := strings.CutPrefix(strings.TrimSpace(line), "```")
			if fence && !open {
				out[lang]++
				out["all"]++
			}
			open = open != fence
		}
		if open {
			t.Errorf("%s: its last block has no end", page)
		}
	}
	return out
}
