//go:build unix

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// edit replaces a text that is in a file of the module once, or once in a function of the schema,
// such as outbox.claim_task: then in the last migration that defines it.
type edit struct{ in, old, new string }

// chaosRun is a run of this program that fails in one of the expected ways.
type chaosRun struct {
	faults string
	length time.Duration
	every  time.Duration
	expect []string // what is wrong then: any of these
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

// chosenMutants are those that -mutation names: all, runs, tests, or names with commas.
func chosenMutants(list string) (chosen []mutant, err error) {
	all := slices.Concat(runMutants, testMutants)
	switch list {
	case "all":
		return all, nil
	case "runs":
		return runMutants, nil
	case "tests":
		return testMutants, nil
	}
	for name := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(all, func(m mutant) bool { return m.name == name })
		if i < 0 {
			return nil, fmt.Errorf("-mutation: there is no %q; there are all, runs, tests and\n%s",
				name, mutantHelp())
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

func mutantHelp() string {
	var b strings.Builder
	for _, m := range slices.Concat(runMutants, testMutants) {
		fmt.Fprintf(&b, "%s (%s)\n", m.name, m.help)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// mutated returns the files that the mutant changes, with their texts. An edit that does not apply
// is an error.
func (m mutant) mutated(root string) (texts map[string]string, err error) {
	texts = map[string]string{}
	for _, e := range m.edits {
		path, function := filepath.Join(root, e.in), ""
		if strings.HasPrefix(e.in, "outbox.") {
			function = "CREATE OR REPLACE FUNCTION " + e.in + "("
			if path, err = lastMigration(root, function); err != nil {
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
			from = strings.LastIndex(text, function)
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

// lastMigration is the newest one that has the text.
func lastMigration(root, text string) (path string, err error) {
	all, err := filepath.Glob(filepath.Join(root, "schema", "0*.sql"))
	if err != nil {
		return "", err
	}
	for _, path := range slices.Backward(all) {
		sql, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		if strings.Contains(string(sql), text) {
			return path, nil
		}
	}
	return "", fmt.Errorf("no migration has %q", text)
}
