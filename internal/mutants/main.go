package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
)

// mutated are the packages whose code has mutants, besides the functions of the schema.
const mutated = "internal/call internal/decide internal/leaserun internal/plan internal/schedule " +
	"internal/store " +
	"internal/txrun internal/upkeep relay internal/apptx internal/report"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	n := flag.Int("n", 20, "how many mutants to run, of those that the file does not have")
	seed := flag.Uint64("seed", 1, "of the choice")
	packages := flag.String("packages", mutated, "patterns of the packages to change")
	only := flag.String("only", "", "mutants with this text in their line")
	again := flag.Bool("again", false, "also those that the file has")
	survivors := flag.Bool("survivors", false, "those that survive, by all tests that reach them")
	check := flag.Bool("check", false, "print the entries whose mutants or tests are gone; exit with 1 if some are")
	prune := flag.Bool("prune", false, "remove these mutants, and name the tests where they are now")
	show := flag.Bool("list", false, "print all mutants and run nothing")
	record := flag.String("record", "", "run all tests of these packages, or of all, to see which mutants they reach")
	most := flag.Int("tests", 150, "the most tests for one mutant, the fastest")
	flag.Parse()

	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	root := strings.TrimSpace(string(out))
	if err == nil {
		err = os.Chdir(root)
	}
	if err != nil {
		return fmt.Errorf("run it in the repository: %w", err)
	}
	c, err := load(root, strings.Fields(*packages))
	if err != nil {
		return err
	}
	res, err := readResults(filepath.Join(root, "internal/mutants/results.txt"))
	if err != nil {
		return err
	}
	switch {
	case *show:
		for _, m := range c.mutants {
			fmt.Println(m.id())
		}
		return nil
	case *check, *prune:
		return checkResults(c, res, *prune)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	cache = filepath.Join(cache, "outbox-mutants")
	o, err := newOverlay(c, cache)
	if err != nil {
		return err
	}
	r, err := loadReach(cache)
	if err != nil {
		return err
	}
	if *record != "" || len(r.Took) == 0 {
		places := strings.Fields(*record)
		if *record == "all" || *record == "" {
			if places, err = c.testPackages(); err != nil {
				return err
			}
		}
		if err := o.record(ctx, r, places); err != nil {
			return err
		}
	}
	if *survivors {
		*most = 1 << 20
	}
	return o.attackAll(ctx, choose(c, res, *n, *seed, *only, *again, *survivors), r, res, *most)
}

// choose is a sample of the mutants.
func choose(c *code, res *results, n int, seed uint64, only string, again, surviving bool) (out []*mutant) {
	for _, m := range c.mutants {
		verdict, known := res.of[m.id()]
		wanted := again || !known
		if surviving {
			wanted = strings.HasPrefix(verdict, survives)
		}
		if wanted && strings.Contains(m.id(), only) {
			out = append(out, m)
		}
	}
	random := rand.New(rand.NewPCG(seed, 0))
	random.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out[:min(n, len(out))]
}

func checkResults(c *code, res *results, prune bool) error {
	tests, err := testNames(c.root)
	if err != nil {
		return err
	}
	stale := append(res.stale(c), res.moved(tests)...)
	for _, line := range stale {
		fmt.Println(line)
	}
	switch {
	case len(stale) == 0:
		return nil
	case prune:
		return res.write()
	}
	return errors.New("these do not exist any more: -prune")
}
