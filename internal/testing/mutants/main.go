// Mutants changes the code in small ways and looks which tests notice.
//
//	go run ./internal/testing/mutants internal/plan                          all mutants of a package, by its own tests
//	go run ./internal/testing/mutants -tests internal/txrun,relay -n 50 -first internal/txrun
//	go run ./internal/testing/mutants -sql -n 20 schema                      mutants of the functions and views
//	go run ./internal/testing/mutants -list internal/plan                    the mutants, without running anything
//
// It prints a line for each mutant and one with the tests that fail, then the share that was killed and the
// tests that killed nothing. A survivor is a missing test, or a change that alters no behaviour.
//
// The mutants of Go are all compiled into one test binary, and an environment variable chooses one: a
// condition is negated, a bound or the order of operands is another one, an operand or a statement is
// dropped. Each test runs by itself first, which says which mutants it reaches; with a mutant only those
// tests run. Mutants of SQL, in schema/ and in constants, are built one at a time.
//
// The files:
//
//	main.go       runs tests with a mutant
//	gocode.go     loads a package, and puts mutants of Go into its text
//	sqlcode.go    mutants of SQL: dropped clauses, other bounds and orders, dropped statements, swaps;
//	              the tokens of SQL, and the functions and views of the schema
//
// Statements that are put together at run time have no mutants.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type options struct {
	place, only      string
	tests            []string
	n                int
	seed             uint64
	sql, list, first bool
}

func read() (o options) {
	flag.BoolVar(&o.sql, "sql", false, "mutants of the package's SQL, in place of its Go")
	tests := flag.String("tests", "", "packages whose tests run, by commas; the package itself if empty")
	flag.IntVar(&o.n, "n", 0, "how many mutants, by chance; all if 0")
	flag.Uint64Var(&o.seed, "seed", 1, "of the choice")
	flag.StringVar(&o.only, "only", "", "mutants with this text in their line")
	flag.BoolVar(&o.list, "list", false, "print the mutants and run nothing")
	flag.BoolVar(&o.first, "first", false, "stop at the first test that fails")
	flag.Parse()
	o.place = strings.TrimPrefix(flag.Arg(0), "./")
	o.tests = strings.Split(*tests, ",")
	if *tests == "" {
		o.tests = []string{o.place}
	}
	return o
}

func run(ctx context.Context) error {
	o := read()
	if flag.NArg() != 1 {
		return fmt.Errorf("name one package, as internal/plan, or schema with -sql")
	}
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	root := strings.TrimSpace(string(out))
	if err == nil {
		err = os.Chdir(root)
	}
	if err != nil {
		return fmt.Errorf("run it in the repository: %w", err)
	}
	c, err := load(root, o.place, o.sql)
	if err != nil {
		return err
	}
	var chosen []*mutant
	for _, m := range c.mutants {
		if strings.Contains(m.String(), o.only) {
			chosen = append(chosen, m)
		}
	}
	if o.n > 0 {
		random := rand.New(rand.NewPCG(o.seed, 0))
		random.Shuffle(len(chosen), func(i, j int) { chosen[i], chosen[j] = chosen[j], chosen[i] })
		chosen = chosen[:min(o.n, len(chosen))]
	}
	if o.list {
		for _, m := range chosen {
			fmt.Println(m)
		}
		return nil
	}
	return c.attack(ctx, chosen, o)
}

// attack runs the tests with each mutant, and prints which of them fail.
func (c *code) attack(ctx context.Context, chosen []*mutant, o options) error {
	var suites []*tests // with all mutants of Go
	defer func() {
		for _, t := range suites {
			t.remove()
		}
	}()
	kills := map[string]int{}
	for _, place := range o.tests {
		if o.sql {
			break
		}
		t, err := compile(ctx, c.root, place, c.replaced)
		if err != nil {
			return err
		}
		suites = append(suites, t)
		if err := t.trace(ctx); err != nil {
			return err
		}
		for _, name := range t.names {
			kills[place+"."+name] = 0
		}
	}
	began := time.Now()
	killed, reached, compiled := 0, 0, 0
	for _, m := range chosen {
		by, reaches, err := c.kill(ctx, m, suites, o)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			fmt.Printf("%v\n\t%v\n", m, err) // it does not compile
			continue
		}
		compiled++
		verdict := "survives"
		switch {
		case len(by) > 0:
			killed++
			verdict = "killed by " + strings.Join(by, ", ")
		case !reaches:
			verdict = "not reached"
		}
		if reaches {
			reached++
		}
		fmt.Printf("%v\n\t%s\n", m, verdict)
		for _, name := range by {
			kills[name]++
		}
	}
	fmt.Printf("\n%d mutants, %d reached, %d killed: %d %%, in %v\n", compiled, reached, killed,
		100*killed/max(compiled, 1), time.Since(began).Round(time.Second))
	if o.first {
		return nil // tests that were not asked have no kills
	}
	for _, name := range slices.Sorted(maps.Keys(kills)) {
		if kills[name] == 0 {
			fmt.Printf("no kill: %s\n", name)
		}
	}
	return nil
}

// kill returns the tests that fail with a mutant, and whether a test reaches it.
func (c *code) kill(ctx context.Context, m *mutant, suites []*tests, o options) (by []string, reached bool, err error) {
	for i, place := range o.tests {
		var t *tests
		if o.sql {
			if t, err = compile(ctx, c.root, place, map[string]string{m.file: m.changed}); err != nil {
				return nil, false, err
			}
			defer t.remove()
		} else {
			t = suites[i]
		}
		reached = reached || o.sql || len(t.reach[m.number]) > 0
		names, err := t.killers(ctx, m, o.first)
		if err != nil {
			return nil, false, err
		}
		for _, name := range names {
			by = append(by, place+"."+name)
		}
		if o.first && len(by) > 0 {
			break
		}
	}
	return by, reached, nil
}

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
