package outbox_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Each invariant of docs/design.md names tests, whose comments cite it.
func TestEachInvariantIsCitedByItsTests(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("docs/design.md")
	if err != nil {
		t.Fatal(err)
	}
	comments := commentsOfTests(t)
	rows := regexp.MustCompile(`(?m)^\| (I\d+) \|.*\| (.*) \|$`).FindAllStringSubmatch(string(text), -1)
	for i, row := range rows {
		if want := fmt.Sprintf("I%d", i+1); row[1] != want {
			t.Fatalf("row %d of the invariants is %s, want %s", i+1, row[1], want)
		}
		cites := regexp.MustCompile(`\b` + row[1] + `\b`)
		tests := aTest.FindAllStringSubmatch(row[2], -1)
		if len(tests) == 0 {
			t.Errorf("%s names no test", row[1])
		}
		for _, m := range tests {
			if pkg := strings.TrimSuffix(m[1], ".") + "."; !cites.MatchString(comments[pkg+m[2]]) {
				t.Errorf("the comment of %s%s does not cite %s", pkg, m[2], row[1])
			}
		}
	}
	if len(rows) != 12 {
		t.Errorf("docs/design.md has %d invariants, want 12", len(rows))
	}
}

// commentsOfTests returns the comment above each test, by package and name: "relay.TestX"; ".TestX" in package outbox.
func commentsOfTests(t *testing.T) map[string]string {
	comments := map[string]string{}
	err := filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		pkg := strings.TrimSuffix(file.Name.Name, "_test")
		if pkg == "outbox" {
			pkg = ""
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && testName.MatchString(f.Name.Name) {
				comments[pkg+"."+f.Name.Name] = f.Doc.Text()
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return comments
}
