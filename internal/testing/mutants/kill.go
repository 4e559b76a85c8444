package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// tests are the compiled tests of one package.
type tests struct {
	place  string // from the root
	dir    string
	binary string
	names  []string
	took   map[string]time.Duration // of each test by itself, without a mutant
	reach  map[int][]string         // tests by the numbers of the mutants that they reach
}

// compile builds the tests of a package with changed texts of some files.
func compile(ctx context.Context, root, place string, replaced map[string]string) (t *tests, err error) {
	tmp, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(tmp)
		}
	}()
	overlay := map[string]map[string]string{"Replace": {}}
	for path, text := range replaced {
		changed := filepath.Join(tmp, strings.ReplaceAll(path, "/", "_"))
		if err = os.WriteFile(changed, []byte(text), 0o600); err != nil {
			return nil, err
		}
		overlay["Replace"][filepath.Join(root, path)] = changed
	}
	text, err := json.Marshal(overlay)
	if err != nil {
		return nil, err
	}
	t = &tests{place: place, dir: filepath.Join(root, place), binary: filepath.Join(tmp, "tests"),
		took: map[string]time.Duration{}, reach: map[int][]string{}}
	if err = os.WriteFile(filepath.Join(tmp, "overlay.json"), text, 0o600); err != nil {
		return nil, err
	}
	build := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay="+filepath.Join(tmp, "overlay.json"),
		"-o", t.binary, "./"+place)
	out, err := build.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("building the tests of %s: %w\n%s", place, err, out)
	}
	list := exec.CommandContext(ctx, t.binary, "-test.list", "^Test")
	list.Dir = t.dir
	out, err = list.Output()
	t.names = strings.Fields(string(out))
	return t, err
}

func (t *tests) remove() { _ = os.RemoveAll(filepath.Dir(t.binary)) }

// trace runs each test by itself, and notes which mutants it reaches. Tests that fail are left out.
func (t *tests) trace(ctx context.Context) error {
	var passing []string
	for _, name := range t.names {
		file := filepath.Join(filepath.Dir(t.binary), "reached")
		_ = os.Remove(file)
		began := time.Now()
		failed, err := t.run(ctx, []string{"OUTBOX_MUTANTS_REACHED=" + file}, longest, name)
		if err != nil {
			return err
		}
		if len(failed) > 0 {
			fmt.Printf("%s.%s fails without a mutant, and is left out\n", t.place, name)
			continue
		}
		passing = append(passing, name)
		t.took[name] = time.Since(began)
		text, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		for _, number := range strings.Fields(string(text)) {
			n, err := strconv.Atoi(number)
			if err != nil {
				return err
			}
			t.reach[n] = append(t.reach[n], name)
		}
	}
	t.names = passing
	return nil
}

const longest = 5 * time.Minute

// killers are the tests that fail with a mutant, or the first of them.
func (t *tests) killers(ctx context.Context, m *mutant, first bool) (by []string, err error) {
	names := t.names
	if m.number > 0 {
		names = t.reach[m.number]
	}
	if len(names) == 0 {
		return nil, nil
	}
	limit := 2 * time.Second
	for _, name := range names {
		limit += 3 * t.took[name]
	}
	if m.number == 0 {
		limit = longest
	}
	env := []string{"OUTBOX_MUTANT=" + strconv.Itoa(m.number)}
	if first {
		env = append(env, failFast)
	}
	return t.run(ctx, env, min(limit, longest), names...)
}

const failFast = "OUTBOX_MUTANTS_FIRST=1" // of this program itself

var outcome = regexp.MustCompile(`(?m)^--- (PASS|FAIL|SKIP): (\w+)`)

// run runs tests, and returns those that fail. Where a panic or the limit ends them all, each that had no
// end runs again by itself.
func (t *tests) run(ctx context.Context, env []string, limit time.Duration,
	names ...string) (failed []string, err error) {
	args := []string{"-test.v", "-test.timeout=" + limit.String(), "-test.run=^(" + strings.Join(names, "|") + ")$"}
	if slices.Contains(env, failFast) {
		args = append(args, "-test.failfast")
	}
	cmd := exec.CommandContext(ctx, t.binary, args...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = t.dir, append(os.Environ(), env...), time.Second
	out, err := cmd.CombinedOutput()
	if err == nil || ctx.Err() != nil {
		return nil, ctx.Err()
	}
	ended := map[string]bool{}
	for _, o := range outcome.FindAllSubmatch(out, -1) {
		name := string(o[2])
		ended[name] = true
		if string(o[1]) == "FAIL" && !slices.Contains(failed, name) {
			failed = append(failed, name)
		}
	}
	if !bytes.Contains(out, []byte("\npanic: ")) && !bytes.Contains(out, []byte("\nfatal error: ")) && len(failed) > 0 {
		return failed, nil
	}
	if len(names) == 1 {
		return names, nil
	}
	if slices.Contains(env, failFast) && len(failed) > 0 {
		return failed, nil
	}
	for _, name := range names {
		if ended[name] {
			continue
		}
		alone := limit
		if took, known := t.took[name]; known {
			alone = min(2*time.Second+3*took, longest)
		}
		again, err := t.run(ctx, env, alone, name)
		if err != nil {
			return nil, err
		}
		if failed = append(failed, again...); slices.Contains(env, failFast) && len(failed) > 0 {
			break
		}
	}
	return failed, nil
}
