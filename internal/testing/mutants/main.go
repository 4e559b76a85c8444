package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"slices"
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
