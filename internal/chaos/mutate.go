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
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const module = "github.com/txoutbox/outbox"

// tries is how many seeds a mutant may survive.
const tries = 3

// mutate builds this program with each of the bugs in turn, by a source overlay, so that neither a bug nor a switch for one is in the library, and
// runs it: it must fail. The result is the exit status.
func mutate(ctx context.Context, o options) int {
	caught, all := 0, 0
	for _, m := range mutants {
		if o.Mutation != "all" && o.Mutation != m.name {
			continue
		}
		all++
		began := time.Now()
		how, err := m.catch(ctx, o)
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
	if all == 0 {
		fmt.Fprintf(os.Stderr, "chaos: -mutation: there is no %q; there are\n%s\n", o.Mutation, mutantHelp())
		return 2
	}
	fmt.Printf("%d of %d caught\n", caught, all)
	if caught < all {
		return 1
	}
	return 0
}

// catch returns what was wrong in a run of the mutant, or "".
func (m mutant) catch(ctx context.Context, o options) (string, error) {
	dir, err := os.MkdirTemp("", "outbox-mutant-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	binary, err := m.build(ctx, dir)
	if err != nil {
		return "", err
	}
	for try := range tries {
		cmd := exec.CommandContext(ctx, binary, "-json", "-for", m.length.String(), "-every", m.every.String(), "-faults", m.faults, "-driver", o.Driver,
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
		if m.caughtBy(r) {
			var found []string
			for _, kind := range slices.Sorted(maps.Keys(r.Violations)) {
				found = append(found, fmt.Sprintf("%s: %d", kind, len(r.Violations[kind])))
			}
			return fmt.Sprintf("%s (seed %d)", strings.Join(found, "; "), r.Seed), nil
		}
	}
	return "", nil
}

// caughtBy reports whether the run found what the bug does, and not only something else.
func (m mutant) caughtBy(r report) bool {
	for kind := range r.Violations {
		for _, want := range m.expect {
			if strings.HasPrefix(kind, want) {
				return true
			}
		}
	}
	return false
}

// build returns the program with the bug.
func (m mutant) build(ctx context.Context, dir string) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	root := strings.TrimSpace(string(out))
	if err != nil || root == "" {
		return "", errors.New("-mutation is to be used in the module's directory: it builds from its sources")
	}
	texts := map[string]string{}
	for _, e := range m.edits {
		path := filepath.Join(root, e.file)
		if _, ok := texts[path]; !ok {
			text, err := os.ReadFile(path)
			if err != nil {
				return "", err
			}
			texts[path] = string(text)
		}
		if n := strings.Count(texts[path], e.old); n != 1 {
			return "", fmt.Errorf("%s: the text to change is there %d times, want once: %q", e.file, n, e.old)
		}
		texts[path] = strings.Replace(texts[path], e.old, e.new, 1)
	}
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for path, text := range texts {
		changed := filepath.Join(dir, fmt.Sprint(len(overlay.Replace), filepath.Base(path)))
		if err := os.WriteFile(changed, []byte(text), 0o600); err != nil {
			return "", err
		}
		overlay.Replace[path] = changed
	}
	list, err := json.Marshal(overlay)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), list, 0o600); err != nil {
		return "", err
	}
	binary := filepath.Join(dir, "chaos")
	build := exec.CommandContext(ctx, "go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", binary, module+"/internal/chaos")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return binary, nil
}
