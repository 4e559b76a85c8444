// Sizes prints how large the project is: lines of Go by part, lines of SQL, words of documentation,
// exported names, and the files that are too long.
//
//	go run .ci/sizes.go
package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// parts are folders; the first part that has a file's folder counts it.
var parts = []struct {
	name    string
	folders []string
}{
	{"harness", []string{"internal/testing", "bench", ".ci"}},
	{"operators", []string{"admin", "doctor", "dashboard", "cmd", "telemetry"}},
	{"delivery", []string{"forward", "inbox", "publish", "internal/publisher"}},
	{"examples and outboxtest", []string{"examples", "outboxtest"}},
	{"relay and its internals", []string{"relay", "internal"}},
	{"root, handlers, schema", []string{"."}},
}

// imported are the packages that an app imports.
var imported = []string{".", "handlers", "relay", "schema"}

const longest = 600 // lines of a file

func main() {
	lines, long := map[string]int{}, []string{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && path != "." && (d.Name() == ".git" || d.Name() == "node_modules") {
			if err == nil {
				err = fs.SkipDir
			}
			return err
		}
		ext := filepath.Ext(path)
		if ext != ".go" && ext != ".sql" && ext != ".md" || strings.Contains(path, "testdata") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		n := bytes.Count(text, []byte("\n"))
		if ext != ".md" && n > longest {
			long = append(long, fmt.Sprintf("%s %d", path, n))
		}
		lines[kind(path)] += n
		if ext == ".go" {
			lines["all Go"] += n
			lines["files"]++
		}
		if ext == ".md" {
			lines["words: "+strings.Split(path, "/")[0]] += len(bytes.Fields(text))
		}
		return nil
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, p := range parts {
		fmt.Printf("%-24s %7d lines\n", p.name, lines[p.name])
	}
	for _, name := range []string{"SQL", "tests", "all Go"} {
		fmt.Printf("%-24s %7d lines\n", name, lines[name])
	}
	fmt.Printf("%-24s %7d of Go\n", "files", lines["files"])
	for _, name := range []string{"docs", "README.md", "CHANGELOG.md"} {
		fmt.Printf("%-24s %7d words\n", name, lines["words: "+name])
	}
	names := 0
	for _, folder := range imported {
		names += exported(folder)
	}
	fmt.Printf("%-24s %7d names in outbox, handlers, relay and schema\n", "exported", names)
	fmt.Printf("%-24s %7d %s\n", fmt.Sprintf("files over %d lines", longest), len(long), strings.Join(long, ", "))
}

// kind is the part that a file counts for.
func kind(path string) string {
	switch {
	case strings.HasSuffix(path, "_test.go"):
		return "tests"
	case strings.HasSuffix(path, ".md"):
		return "texts"
	case strings.HasSuffix(path, ".sql") && strings.HasPrefix(path, "schema/"):
		return "SQL"
	}
	for _, p := range parts {
		for _, folder := range p.folders {
			if folder == "." || strings.HasPrefix(path, folder+"/") {
				return p.name
			}
		}
	}
	return ""
}

// exported counts the exported names of a package, with its methods.
func exported(folder string) (names int) {
	parsed, err := parser.ParseDir(token.NewFileSet(), folder, func(f fs.FileInfo) bool {
		return !strings.HasSuffix(f.Name(), "_test.go")
	}, 0)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	count := func(all ...string) {
		for _, n := range all {
			if ast.IsExported(n) {
				names++
			}
		}
	}
	for _, p := range parsed {
		d := doc.New(p, folder, 0)
		for _, v := range slices.Concat(d.Consts, d.Vars) {
			count(v.Names...)
		}
		for _, f := range d.Funcs {
			count(f.Name)
		}
		for _, t := range d.Types {
			count(t.Name)
			for _, v := range slices.Concat(t.Consts, t.Vars) {
				count(v.Names...)
			}
			for _, f := range slices.Concat(t.Funcs, t.Methods) {
				count(f.Name)
			}
		}
	}
	return names
}
