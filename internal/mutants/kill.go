package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/txoutbox/outbox/internal/devpg"
	"github.com/txoutbox/outbox/internal/mutants/live"
)

const (
	killers     = 3               // recorded at most
	grace       = 3 * time.Second // after the first one, for others
	firstTests  = 12              // run at once; then five times as many
	serverKills = 25              // mutants for one server, as tests that are killed leave their databases
)

// kill returns the tests that fail with the mutant, the fastest ones first; none if it survives
// as many tests as allowed.
func (o *overlay) kill(ctx context.Context, m *mutant, r *reach, first []string, most int) (
	by []string, ran int, err error) {
	tests := r.reaching(m, first)
	tests = tests[:min(len(tests), most)]
	for size := firstTests; len(tests) > 0 && len(by) == 0; size *= 5 {
		batch := tests[:min(size, len(tests))]
		tests = tests[len(batch):]
		var places []string
		for _, t := range batch {
			if !slices.Contains(places, t.Package) {
				places = append(places, t.Package)
			}
		}
		for _, place := range places {
			var names []string
			expected := 0.0
			for _, t := range batch {
				if t.Package == place {
					names = append(names, t.Name)
					expected += r.Took[place][t.Name]
				}
			}
			more, err := o.attack(ctx, m, place, names, expected, r)
			if err != nil {
				return nil, 0, err
			}
			ran += len(names)
			by = append(by, more...)
			if len(by) > 0 {
				break
			}
		}
	}
	return by[:min(len(by), killers)], ran, nil
}

// attack runs tests of one package with the mutant, and returns those that fail.
func (o *overlay) attack(ctx context.Context, m *mutant, place string, names []string, expected float64, r *reach) (
	by []string, err error) {
	c := live.Config{Statement: m.statement}
	if m.sql != "" {
		c.Files = map[string]string{m.sqlFile: m.sql}
	} else if m.name == "" {
		c.Go = m.number
	}
	run := testRun{place: place, names: names, config: c, parallel: 4, server: o.server,
		timeout: time.Duration(3*expected*float64(time.Second)) + time.Minute}
	out, err := o.run(ctx, run, func(line string) bool {
		return strings.HasPrefix(line, "--- FAIL: ") || strings.HasPrefix(line, "panic: ")
	})
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	for _, f := range failedTest.FindAllStringSubmatch(out, -1) {
		took, _ := strconv.ParseFloat(f[2], 64)
		if len(by) == killers || !o.passes(ctx, run, f[1]) {
			continue
		}
		if took < 2*r.Took[place][f[1]]+1 || o.again(ctx, run, f[1]) {
			by = append(by, test{place, f[1]}.String())
		}
	}
	switch began, panicked, _ := strings.Cut(out, "\npanic: "); {
	case len(by) > 0:
	case panicked != "" || strings.Contains(out, "\nfatal error: "):
		by = []string{place + ": panic in " + current(began)}
	case err != nil && len(failedTest.FindString(out)) == 0:
		by = []string{place + ": no end of " + strings.Join(unfinished(out), ", ")}
	}
	return by, nil
}

// passes reports whether a test passes without a mutant: another change may have broken it since the
// tests were recorded.
func (o *overlay) passes(ctx context.Context, run testRun, name string) bool {
	of := test{run.place, name}
	if _, known := o.passing[of]; !known {
		run.config = live.Config{}
		o.passing[of] = !o.again(ctx, run, name)
	}
	return o.passing[of]
}

// again reports whether a test fails by itself, too: a slow failure may be that of a busy machine.
func (o *overlay) again(ctx context.Context, run testRun, name string) bool {
	run.names = []string{name}
	out, err := o.run(ctx, run, nil)
	return ctx.Err() == nil && (err != nil || !strings.Contains(out, "\n--- PASS: "+name))
}

// current is the last test that the output names before it ends.
func current(out string) string {
	for _, line := range slices.Backward(strings.Split(out, "\n")) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "===" {
			name, _, _ := strings.Cut(f[2], "/")
			return name
		}
	}
	return "a test"
}

// unfinished are some tests that began and did not end.
func unfinished(out string) (names []string) {
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) != 3 || f[1] != "RUN" || strings.Contains(f[2], "/") || len(names) == killers {
			continue
		}
		if !strings.Contains(out, "\n--- PASS: "+f[2]+" (") && !strings.Contains(out, "\n--- SKIP: "+f[2]+" (") {
			names = append(names, f[2])
		}
	}
	return names
}

// attackAll runs the mutants and adds the results to the file as they come.
func (o *overlay) attackAll(ctx context.Context, chosen []*mutant, r *reach, res *results, most int) error {
	var server *devpg.Server
	stop := func() {
		if server != nil {
			server.Close()
		}
	}
	defer func() { stop() }()
	for i, m := range chosen {
		if i%serverKills == 0 {
			stop()
			var err error
			if server, err = newServer(ctx); err != nil {
				return err
			}
			o.server = server.URL()
		}
		began := time.Now()
		by, ran, err := o.kill(ctx, m, r, res.killers(functionOf(m.id())), most)
		if err != nil {
			return err
		}
		verdict := killedBy + strings.Join(by, ", ")
		switch {
		case ran == 0:
			verdict = unreached
		case len(by) == 0:
			verdict = fmt.Sprintf("%s %d tests", survives, ran)
		}
		fmt.Printf("%d of %d, %v: %s\n\t%s\n", i+1, len(chosen), time.Since(began).Round(time.Second), m.id(), verdict)
		if err := res.set(m.id(), verdict); err != nil {
			return err
		}
	}
	return nil
}
