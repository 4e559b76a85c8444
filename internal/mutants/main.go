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
const mutated = "internal/apptx internal/call internal/decide internal/leaserun internal/plan internal/report " +
	"internal/schedule internal/store internal/txrun internal/upkeep relay"

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
	only := flag.String("only", "", "mutants with this text in their line")
	again := flag.Bool("again", false, "also those that the file has")
	show := flag.Bool("list", false, "print all mutants and run nothing")
	check := flag.Bool("check", false, "print the entries whose mutants or tests are gone; exit with 1 if some are")
	flag.Parse()

	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	root := strings.TrimSpace(string(out))
	if err == nil {
		err = os.Chdir(root)
	}
	if err != nil {
		return fmt.Errorf("run it in the repository: %w", err)
	}
	c, err := load(root, strings.Fields(mutated))
	if err != nil {
		return err
	}
	res, err := readResults(filepath.Join(root, "internal/mutants/results.txt"))
	if err != nil {
		return err
	}
	if *check {
		return checkResults(c, res)
	}
	var chosen []*mutant
	for _, m := range c.mutants {
		if _, known := res.of[m.id()]; (*again || !known) && strings.Contains(m.id(), *only) {
			chosen = append(chosen, m)
		}
	}
	if *show {
		for _, m := range chosen {
			fmt.Println(m.id())
		}
		return nil
	}
	random := rand.New(rand.NewPCG(*seed, 0))
	random.Shuffle(len(chosen), func(i, j int) { chosen[i], chosen[j] = chosen[j], chosen[i] })
	return c.attack(ctx, chosen[:min(*n, len(chosen))], res)
}

func checkResults(c *code, res *results) error {
	tests, err := testNames(c.root)
	if err != nil {
		return err
	}
	stale := res.stale(c, tests)
	for _, id := range stale {
		fmt.Println(id)
	}
	if len(stale) > 0 {
		return errors.New("the mutants or the tests of these entries are gone: delete them")
	}
	return nil
}
