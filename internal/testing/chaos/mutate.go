//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

const module = "github.com/txoutbox/outbox"

const tries = 3 // how many seeds a mutant may survive

// mutate compiles each of the bugs into the library in turn, by a source overlay. So neither a bug
// nor a switch for one is in the sources. It reports whether all are caught.
func mutate(ctx context.Context, o options) (bool, error) {
	chosen, err := chosenMutants(o.mutation)
	if err != nil {
		return false, err
	}
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	root := strings.TrimSpace(string(out))
	if err != nil || root == "" {
		return false, errors.New("-mutation builds from the module's sources: use it in its directory")
	}
	if o.group > 0 {
		if err := os.Setenv("OUTBOX_TEST_GROUP", fmt.Sprint(o.group)); err != nil {
			return false, err
		}
	}
	if err := passWithout(ctx, chosen); err != nil {
		return false, err
	}
	caught := 0
	for _, m := range chosen {
		if ctx.Err() != nil {
			break
		}
		began := time.Now()
		how, err := catch(ctx, m, root, o)
		took := time.Since(began).Round(time.Second)
		switch {
		case err != nil:
			fmt.Printf("%s: %v\n", m.name, err)
		case how == "":
			fmt.Printf("%s: NOT CAUGHT in %v: %s\n", m.name, took, m.help)
		default:
			caught++
			fmt.Printf("%s: caught in %v: %s\n", m.name, took, how)
		}
	}
	fmt.Printf("%d of %d caught\n", caught, len(chosen))
	return caught == len(chosen), nil
}

// catch returns what noticed the mutant, or "".
func catch(ctx context.Context, m mutant, root string, o options) (string, error) {
	dir, err := os.MkdirTemp("", "outbox-mutant-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	overlay, err := m.overlay(root, dir)
	if err != nil {
		return "", err
	}
	if m.tests.pattern != "" {
		return failure(ctx, m.tests, overlay)
	}
	binary := filepath.Join(dir, "chaos")
	args := []string{"build", "-overlay", overlay, "-o", binary, module + "/internal/testing/chaos"}
	if out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	if err := os.Chmod(dir, 0o755); err != nil { // the server may be another user
		return "", err
	}
	for try := range uint64(tries) {
		how, err := violations(ctx, m.run, binary, o, o.seed+try)
		if how != "" || err != nil {
			return how, err
		}
	}
	return "", nil
}

// violations are those of a run of the binary, if one of them is expected, else "". The run's files
// are in the binary's directory.
func violations(ctx context.Context, c chaosRun, binary string, o options, seed uint64) (string, error) {
	cmd := exec.CommandContext(ctx, binary, "-for", c.length.String(), "-every", c.every.String(), "-faults", c.faults,
		"-driver", o.driver, "-group", fmt.Sprint(o.group), "-seed", fmt.Sprint(seed), "-patience", "45s")
	cmd.Env = append(os.Environ(), "TMPDIR="+filepath.Dir(binary))
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		return "", fmt.Errorf("the run: %w", err)
	}
	var found []string
	expected := false
	for line := range strings.Lines(string(out)) {
		if kind, is := strings.CutPrefix(line, wrongPrefix); is {
			expected = expected || slices.ContainsFunc(c.expect, func(want string) bool { return strings.HasPrefix(kind, want) })
			found = append(found, fmt.Sprintf("%.60s", strings.TrimSpace(kind)))
		}
	}
	if !expected {
		return "", nil
	}
	return fmt.Sprintf("%s (seed %d)", strings.Join(found, "; "), seed), nil
}

// failure is the first test that fails with the bug, and why; "" if all pass.
func failure(ctx context.Context, t testRun, overlay string) (string, error) {
	out, err := goTest(ctx, t, overlay, "-overlay", overlay)
	if err == nil {
		return "", nil
	}
	_, failed, found := strings.Cut("\n"+out, "\n--- FAIL: ")
	if !found {
		return "", fmt.Errorf("go test: %w, and no test has failed\n%s", err, out)
	}
	test, rest, _ := strings.Cut(failed, "\n")
	for line := range strings.Lines(rest) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "--- ") {
			return "--- FAIL: " + test + ": " + line, nil
		}
	}
	return "--- FAIL: " + test, nil
}

// goTest runs the tests, of which some read statements from the sources: with the overlay, unless it
// is "". It is an error if there are none.
func goTest(ctx context.Context, t testRun, overlay string, flags ...string) (out string, err error) {
	args := slices.Concat([]string{"test", "-count=1", "-vet=off", "-timeout=8m", "-run", t.pattern}, flags,
		[]string{path.Join(module, t.dir)})
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "OUTBOX_TEST_LONG=1", "OUTBOX_TEST_OVERLAY="+overlay)
	bytes, err := cmd.CombinedOutput()
	out = string(bytes)
	if err == nil && strings.Contains(out, "no tests to run") {
		err = fmt.Errorf("no test of %s is called %s", t.dir, t.pattern)
	}
	return out, err
}

// passWithout reports an error if the tests of some mutant fail without it as well, or are skipped.
func passWithout(ctx context.Context, chosen []mutant) error {
	patterns := map[string][]string{}
	for _, m := range chosen {
		if m.tests.pattern != "" && !slices.Contains(patterns[m.tests.dir], m.tests.pattern) {
			patterns[m.tests.dir] = append(patterns[m.tests.dir], m.tests.pattern)
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(patterns)) {
		out, err := goTest(ctx, testRun{dir, strings.Join(patterns[dir], "|")}, "", "-v")
		if err != nil {
			return fmt.Errorf("tests of mutants fail without them: %w\n%s", err, out)
		}
		if _, skipped, found := strings.Cut(out, "\n--- SKIP: "); found {
			return fmt.Errorf("a skipped test notices no mutant: %s", skipped)
		}
		fmt.Printf("%d tests of %s pass without a bug\n", len(patterns[dir]), path.Join(module, dir))
	}
	return nil
}

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
