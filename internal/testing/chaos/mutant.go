//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// edit replaces a text that is once, by any white space, in the Go files of a folder or those below
// it, of the whole library where in is "", or once in a function of the schema, such as
// outbox.claim_tasks.
type edit struct{ in, old, new string }

// find returns the places of the text, whatever white space is between its words.
func (e edit) find(text string) [][]int {
	words := strings.Fields(e.old)
	for i, w := range words {
		words[i] = regexp.QuoteMeta(w)
	}
	return regexp.MustCompile(strings.Join(words, `\s+`)).FindAllStringIndex(text, -1)
}

// chaosRun is a run of this program that fails with one of the expected kinds of violation.
type chaosRun struct {
	faults string
	length time.Duration
	every  time.Duration
	expect []string // how the kinds begin
}

// testRun is tests of a package, as go test -run takes them, of which one fails.
type testRun struct{ dir, pattern string }

// mutant is a bug that a queue on PostgreSQL has had, and what must notice it: a run or tests.
type mutant struct {
	name  string
	help  string
	edits []edit
	run   chaosRun
	tests testRun
}

// mutated returns the files that the mutant changes, with their texts. An edit that does not apply
// is an error.
func (m mutant) mutated(root string) (texts map[string]string, err error) {
	texts = map[string]string{}
	for _, e := range m.edits {
		in, ext, function := filepath.Join(root, e.in), ".go", ""
		if strings.HasPrefix(e.in, "outbox.") {
			in, ext, function = filepath.Join(root, "schema"), ".sql", "CREATE OR REPLACE FUNCTION "+e.in+"("
		}
		files, err := sources(in, ext)
		if err != nil {
			return nil, err
		}
		found := 0
		for _, path := range files {
			text, changed := texts[path]
			if !changed {
				all, err := os.ReadFile(path)
				if err != nil {
					return nil, err
				}
				text = string(all)
			}
			from, to := 0, len(text)
			if function != "" {
				if from = strings.Index(text, function); from < 0 {
					continue
				}
				body, _, _ := strings.Cut(text[from:], "\n$$;")
				to = from + len(body)
			}
			for _, at := range e.find(text[from:to]) {
				found++
				texts[path] = text[:from+at[0]] + e.new + text[from+at[1]:]
			}
		}
		if found != 1 {
			return nil, fmt.Errorf("%q: the text to change is there %d times, want once: %q", e.in, found, e.old)
		}
	}
	return texts, nil
}

// others are the folders with Go code that is not the library's.
var others = []string{".git", "chaos", "mutants", "bench", "examples"}

// sources are the library's files in a folder and those below it.
func sources(dir, ext string) (files []string, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains(others, d.Name()):
			return fs.SkipDir
		case strings.HasSuffix(path, ext) && !strings.HasSuffix(path, "_test.go"):
			files = append(files, path)
		}
		return nil
	})
	return files, err
}

// overlay writes the changed sources to dir, and returns the file that go build -overlay takes.
func (m mutant) overlay(root, dir string) (string, error) {
	texts, err := m.mutated(root)
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for path, text := range texts {
		replace[path] = filepath.Join(dir, fmt.Sprint(len(replace), filepath.Base(path)))
		if err := os.WriteFile(replace[path], []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, list, 0o600)
}
