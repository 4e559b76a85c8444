//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// edit replaces a text that is in a file of the module once, or once in a function of the schema,
// such as outbox.claim_task: then in the file that defines it.
type edit struct{ in, old, new string }

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
		path, function := filepath.Join(root, e.in), ""
		if strings.HasPrefix(e.in, "outbox.") {
			function = "CREATE OR REPLACE FUNCTION " + e.in + "("
			if path, err = fileOf(root, function); err != nil {
				return nil, err
			}
		}
		if _, read := texts[path]; !read {
			text, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			texts[path] = string(text)
		}
		text := texts[path]
		from, to := 0, len(text)
		if function != "" {
			from = strings.Index(text, function)
			body, _, _ := strings.Cut(text[from:], "\n$$;")
			to = from + len(body)
		}
		if n := strings.Count(text[from:to], e.old); n != 1 {
			return nil, fmt.Errorf("%s: the text to change is there %d times, want once: %q", e.in, n, e.old)
		}
		texts[path] = text[:from] + strings.Replace(text[from:to], e.old, e.new, 1) + text[to:]
	}
	return texts, nil
}

// fileOf is the file of the schema's functions that has the text.
func fileOf(root, text string) (path string, err error) {
	all, err := filepath.Glob(filepath.Join(root, "schema", "functions", "*.sql"))
	if err != nil {
		return "", err
	}
	for _, path := range all {
		sql, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		if strings.Contains(string(sql), text) {
			return path, nil
		}
	}
	return "", fmt.Errorf("no file of functions has %q", text)
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
