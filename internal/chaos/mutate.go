//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

const module = "github.com/txoutbox/outbox"

const (
	tries       = 3 // how many seeds a mutant may survive
	testsAtOnce = 2 // how many mutants' tests are built and run at once: a build alone leaves a core idle
)

// mutate compiles each of the bugs into the library in turn, by a source overlay, so that neither a
// bug nor a switch for one is in its sources. This program's run or the named tests must fail then.
// The result is the exit status.
func mutate(ctx context.Context, o options) int {
	mutants, err := chosenMutants(o.Mutation)
	if err == nil {
		err = passWithout(ctx, mutants)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		return 2
	}
	var mu sync.Mutex
	caught := 0
	try := func(m mutant) {
		began := time.Now()
		how, err := m.catch(ctx, o)
		took := time.Since(began).Round(time.Second)
		mu.Lock()
		defer mu.Unlock()
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
	var tests sync.WaitGroup
	slots := make(chan struct{}, testsAtOnce)
	for _, m := range mutants {
		if ctx.Err() != nil {
			break // interrupted
		}
		if m.tests.pattern == "" { // a run has the machine to itself
			tests.Wait()
			try(m)
			continue
		}
		slots <- struct{}{}
		tests.Go(func() {
			try(m)
			<-slots
		})
	}
	tests.Wait()
	fmt.Printf("%d of %d caught\n", caught, len(mutants))
	if caught < len(mutants) {
		return 1
	}
	return 0
}

// catch returns what noticed the mutant, or "".
func (m mutant) catch(ctx context.Context, o options) (string, error) {
	dir, err := os.MkdirTemp("", "outbox-mutant-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	overlay, err := m.overlay(ctx, dir)
	if err != nil {
		return "", err
	}
	if m.tests.pattern != "" {
		return m.tests.failure(ctx, overlay)
	}
	binary := filepath.Join(dir, "chaos")
	args := []string{"build", "-overlay", overlay, "-o", binary, module + "/internal/chaos"}
	if out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return m.run.violations(ctx, binary, o)
}

// violations are what was wrong in a run of the program with the bug, or "".
func (c chaosRun) violations(ctx context.Context, binary string, o options) (string, error) {
	for try := range tries {
		cmd := exec.CommandContext(ctx, binary, "-json", "-for", c.length.String(), "-every", c.every.String(), "-faults", c.faults, "-driver", o.Driver,
			"-seed", fmt.Sprint(o.Seed+uint64(try)), "-patience", "45s")
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		cmd.WaitDelay = time.Minute
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		var exit *exec.ExitError
		if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
			return "", fmt.Errorf("the run: %w", err)
		}
		var r report
		if err := json.Unmarshal(out, &r); err != nil {
			return "", fmt.Errorf("the run's report: %w", err)
		}
		if r.Files != "" {
			_ = os.RemoveAll(r.Files)
		}
		if c.expected(r) {
			var found []string
			for _, kind := range slices.Sorted(maps.Keys(r.Violations)) {
				found = append(found, fmt.Sprintf("%s: %d", kind, len(r.Violations[kind])))
			}
			return fmt.Sprintf("%s (seed %d)", strings.Join(found, "; "), r.Seed), nil
		}
	}
	return "", nil
}

// expected reports whether the run found what the bug does, and not only something else.
func (c chaosRun) expected(r report) bool {
	for kind := range r.Violations {
		for _, want := range c.expect {
			if strings.HasPrefix(kind, want) {
				return true
			}
		}
	}
	return false
}

// failure is the first test that fails with the bug, and why; "" if all pass.
func (t testRun) failure(ctx context.Context, overlay string) (string, error) {
	out, err := t.goTest(ctx, "-overlay", overlay)
	if err == nil {
		return "", nil
	}
	_, failed, found := strings.Cut("\n"+out, "\n--- FAIL: ")
	if !found {
		return "", fmt.Errorf("go test: %w, and no test has failed\n%s", err, out)
	}
	lines := strings.Split(failed, "\n")
	for _, line := range lines[1:] {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "--- ") {
			return "--- FAIL: " + lines[0] + ": " + line, nil
		}
	}
	return "--- FAIL: " + lines[0], nil
}

// goTest runs the tests. It is an error if there are none.
func (t testRun) goTest(ctx context.Context, flags ...string) (out string, err error) {
	args := []string{"test", "-count=1", "-vet=off", "-timeout=8m", "-run", t.pattern} // what never comes is waited for three minutes
	args = append(append(args, flags...), path.Join(module, t.dir))
	bytes, err := exec.CommandContext(ctx, "go", args...).CombinedOutput()
	out = string(bytes)
	if err == nil && strings.Contains(out, "no tests to run") {
		err = fmt.Errorf("no test of %s is called %s", t.dir, t.pattern)
	}
	return out, err
}

// passWithout reports an error if the tests of some mutant fail without it as well.
func passWithout(ctx context.Context, mutants []mutant) error {
	patterns := map[string][]string{}
	for _, m := range mutants {
		if m.tests.pattern != "" && !slices.Contains(patterns[m.tests.dir], m.tests.pattern) {
			patterns[m.tests.dir] = append(patterns[m.tests.dir], m.tests.pattern)
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(patterns)) {
		began := time.Now()
		if out, err := (testRun{dir, strings.Join(patterns[dir], "|")}).goTest(ctx); err != nil {
			return fmt.Errorf("tests of mutants fail without them: %w\n%s", err, out)
		}
		took := time.Since(began).Round(time.Second)
		fmt.Printf("%d tests of %s pass without a bug, in %v\n", len(patterns[dir]), path.Join(module, dir), took)
	}
	return nil
}

// overlay writes the changed sources to dir, and returns the file that go build -overlay takes.
func (m mutant) overlay(ctx context.Context, dir string) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	root := strings.TrimSpace(string(out))
	if err != nil || root == "" {
		return "", errors.New("-mutation builds from the module's sources: use it in its directory")
	}
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
