package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

var errCompile = errors.New("the mutant does not compile")

// attack runs the tests with each mutant, and adds the results to the file as they come.
func (c *code) attack(ctx context.Context, chosen []*mutant, res *results) error {
	for i, m := range chosen {
		began := time.Now()
		verdict, err := c.kill(ctx, m, res)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil && !errors.Is(err, errCompile) {
			return err
		}
		took := time.Since(began).Round(time.Second)
		fmt.Printf("%d of %d, %v: %s\n", i+1, len(chosen), took, m.id())
		if err != nil {
			fmt.Printf("\t%v\n", err)
			continue
		}
		fmt.Printf("\t%s\n", verdict)
		if err := res.set(m.id(), verdict); err != nil {
			return err
		}
	}
	return nil
}

// kill runs the tests of one package after the other, until one fails with the mutant.
func (c *code) kill(ctx context.Context, m *mutant, res *results) (verdict string, err error) {
	dir, err := os.MkdirTemp("", "mutant-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	changed, overlay := filepath.Join(dir, filepath.Base(m.path)), filepath.Join(dir, "overlay.json")
	replaced := map[string]map[string]string{"Replace": {filepath.Join(c.root, m.path): changed}}
	text, err := json.Marshal(replaced)
	if err != nil {
		return "", err
	}
	if err := errors.Join(os.WriteFile(changed, []byte(m.changed), 0o600),
		os.WriteFile(overlay, text, 0o600)); err != nil {
		return "", err
	}
	for _, place := range c.places(m, res.killers(functionOf(m.id()))) {
		by, err := killers(ctx, place, overlay)
		if by != nil || err != nil {
			return killedBy + strings.Join(by, ", "), err
		}
	}
	return survives, nil
}

// places are the packages whose tests may notice the mutant, those nearest to it first.
func (c *code) places(m *mutant, first []string) []string {
	own := filepath.Dir(m.path)
	if m.file == "schema" {
		own = "schema"
	}
	out := append(first, own)
	var users []*source
	for _, p := range c.packages {
		if p.uses(c, module+"/"+own) {
			users = append(users, p)
		}
	}
	slices.SortFunc(users, func(a, b *source) int { return len(a.Deps) - len(b.Deps) })
	for _, p := range users {
		out = append(out, strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/"))
	}
	var each []string
	for _, place := range out {
		if !slices.Contains(each, place) {
			each = append(each, place)
		}
	}
	return each
}

// uses reports whether the package's code or tests have another one among their imports, directly
// or not.
func (p *source) uses(c *code, path string) bool {
	imports := slices.Concat(p.TestImports, p.XTestImports)
	return slices.Contains(p.Deps, path) && len(imports) > 0 ||
		slices.ContainsFunc(c.packages, func(q *source) bool {
			return slices.Contains(imports, q.ImportPath) && (q.ImportPath == path || slices.Contains(q.Deps, path))
		})
}

const (
	mostKillers = 3 // recorded
	longest     = "5m"
)

var (
	failedTest = regexp.MustCompile(`(?m)^--- FAIL: (\w+)`)
	unfinished = regexp.MustCompile(`(?m)^\t\t(Test\w+) \(`) // running when the time was over
)

// killers are the tests of the package that fail with the mutant each time, and pass without it.
func killers(ctx context.Context, place, overlay string) (by []string, err error) {
	out, err := goTest(ctx, place, "-overlay="+overlay, "-failfast")
	if err == nil {
		return nil, nil
	}
	if strings.Contains(out, "[build failed]") || strings.Contains(out, "[setup failed]") {
		return nil, errCompile
	}
	for _, f := range failedTest.FindAllStringSubmatch(out, -1) {
		only := "-run=^" + f[1] + "$"
		_, with := goTest(ctx, place, "-overlay="+overlay, only)
		_, without := goTest(ctx, place, only)
		if with != nil && without == nil && len(by) < mostKillers {
			by = append(by, place+"."+f[1])
		}
	}
	if by != nil || ctx.Err() != nil {
		return by, ctx.Err()
	}
	if strings.Contains(out, "panic: test timed out") {
		var names []string
		for _, u := range unfinished.FindAllStringSubmatch(out, mostKillers) {
			names = append(names, u[1])
		}
		return []string{place + ": no end of " + strings.Join(names, ", ")}, nil
	}
	if strings.Contains(out, "\npanic: ") || strings.Contains(out, "\nfatal error: ") {
		return []string{place + ": panic"}, nil
	}
	return nil, nil
}

// goTest runs tests and returns their output, with an error if one fails.
func goTest(ctx context.Context, place string, args ...string) (string, error) {
	args = append([]string{"test", "-count=1", "-vet=off", "-timeout=" + longest}, args...)
	out, err := exec.CommandContext(ctx, "go", append(args, "./"+place)...).CombinedOutput()
	return string(out), err
}
