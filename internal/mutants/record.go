package main

import (
	"bufio"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	_ "github.com/lib/pq"

	"github.com/txoutbox/outbox/internal/devpg"
	"github.com/txoutbox/outbox/internal/mutants/live"
)

// reach is which tests reach which code, and how long they take. It is kept in the cache: keys stay
// when lines move, and a mutant that has none is as its function.
type reach struct {
	Took map[string]map[string]float64  // seconds by package and test
	By   map[string]map[string][]string // tests by key and package
}

// reaching are the tests that reach a mutant: the given ones first, then those of its package, then
// the fastest ones. Nothing says which ones reach a
// view, or a function in SQL, so all tests of the schema may.
func (r *reach) reaching(m *mutant, first []string) (out []test) {
	keys := []string{m.id(), functionOf(m.id())}
	if m.name != "" {
		keys = []string{m.name}
	}
	for _, key := range keys {
		for place, names := range r.By[key] {
			for _, name := range names {
				out = append(out, test{place, name})
			}
		}
		if out != nil {
			break
		}
	}
	if out == nil && m.sql != "" {
		for _, place := range []string{".", "schema", "relay", "admin"} {
			for name := range r.Took[place] {
				out = append(out, test{place, name})
			}
		}
	}
	out = slices.DeleteFunc(out, func(t test) bool { _, passed := r.Took[t.Package][t.Name]; return !passed })
	rank := func(t test) int {
		switch {
		case slices.Contains(first, t.String()):
			return 0
		case t.Package == strings.TrimSuffix(m.file, "/"+filepath.Base(m.file)):
			return 1
		}
		return 2
	}
	slices.SortFunc(out, func(a, b test) int {
		took := r.Took[a.Package][a.Name] - r.Took[b.Package][b.Name]
		return cmp.Or(rank(a)-rank(b), int(1000*took), strings.Compare(a.String(), b.String()))
	})
	return out
}

func cacheFile(dir string) string { return filepath.Join(dir, "reach.json") }

func loadReach(dir string) (*reach, error) {
	r := &reach{Took: map[string]map[string]float64{}, By: map[string]map[string][]string{}}
	text, err := os.ReadFile(cacheFile(dir))
	if os.IsNotExist(err) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(text, r)
	}
	return r, err
}

func (r *reach) save(dir string) error {
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(cacheFile(dir), text, 0o644)
}

// testPackages are those whose tests reach the code of the mutants.
func (c *code) testPackages() (out []string, err error) {
	mutated := map[string]bool{module + "/schema": true}
	for _, f := range c.goFiles {
		mutated[f.ImportPath] = true
	}
	all, err := list("-deps", "-test", "./...")
	for _, p := range all {
		of, isTest := strings.CutSuffix(p.ImportPath, ".test")
		reaches := mutated[of] || slices.ContainsFunc(p.Deps, func(d string) bool {
			d, _, _ = strings.Cut(d, " ")
			return mutated[d]
		})
		place := strings.TrimPrefix(strings.TrimPrefix(of, module), "/")
		if place == "" {
			place = "."
		}
		if isTest && reaches && place != "internal/cost" && place != "internal/mutants" {
			out = append(out, place)
		}
	}
	return out, err
}

const reachedFunction = "mutants: reached "

var loggedAt = regexp.MustCompile(`^(\d+\.\d+) .*` + reachedFunction + `(.*)`)

// record runs all tests of the packages, one at a time.
func (o *overlay) record(ctx context.Context, r *reach, places []string) error {
	server, err := newServer(ctx)
	if err != nil {
		return err
	}
	defer server.Close()
	log, err := logOf(ctx, server)
	if err != nil {
		return err
	}
	files := map[string]string{}
	for _, b := range slices.Backward(o.bodies) { // from the end, so that places stay
		text, ok := files[b.file]
		if !ok {
			text = o.schema[b.file]
		}
		if at := strings.Index(text[b.from:b.to], "\nBEGIN\n"); at >= 0 {
			at += b.from + len("\nBEGIN")
			files[b.file] = text[:at] + " RAISE LOG '" + reachedFunction + b.name + "';" + text[at:]
		}
	}
	for _, place := range places {
		began := time.Now()
		name := filepath.Join(o.dir, "record")
		os.Remove(name)
		run := testRun{place: place, config: live.Config{Record: name, Files: files}, parallel: 1, timeout: 30 * time.Minute,
			server: server.URL()}
		out, err := o.run(ctx, run, nil)
		if err != nil {
			return err
		}
		failed := failedTest.FindAllString(out, -1)
		r.Took[place] = map[string]float64{}
		for _, m := range passedTest.FindAllStringSubmatch(out, -1) {
			r.Took[place][m[1]], _ = strconv.ParseFloat(m[2], 64)
		}
		for _, by := range r.By {
			delete(by, place)
		}
		if err := r.read(place, name, log, o); err != nil {
			return err
		}
		took := time.Since(began).Round(time.Second)
		fmt.Printf("recorded %s: %d tests, %d failed, in %v\n", place, len(r.Took[place]), len(failed), took)
		for _, f := range failed {
			fmt.Println("  ", f)
		}
		if len(r.Took[place]) == 0 {
			fmt.Println(out)
		}
		if err := r.save(o.cache); err != nil {
			return err
		}
	}
	return nil
}

// logOf is the file of the server's log, which is beside its data.
func logOf(ctx context.Context, server *devpg.Server) (string, error) {
	db, err := sql.Open("postgres", server.URL())
	if err != nil {
		return "", err
	}
	defer db.Close()
	var data string
	err = db.QueryRowContext(ctx, "SHOW data_directory").Scan(&data)
	return filepath.Join(filepath.Dir(data), "log"), err
}

// read adds what the tests of a package reached: code by the record, whose lines without a mutant
// are the beginnings of tests, and functions by the server's log, by the time.
func (r *reach) read(place, record, log string, o *overlay) error {
	type entry struct {
		at   float64
		test string
	}
	var entries []entry
	sets := map[string]map[string]bool{}
	add := func(key, test string) {
		if sets[key] == nil {
			sets[key] = map[string]bool{}
		}
		sets[key][test] = true
	}
	text, err := os.ReadFile(record)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	for line := range strings.Lines(string(text)) {
		name, key, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if at, err := strconv.ParseFloat(key, 64); err == nil {
			entries = append(entries, entry{at, name})
			continue
		}
		add(key, name)
		if strings.Contains(key, " | ") {
			add(functionOf(key), name)
		}
	}
	if len(entries) > 0 {
		f, err := os.Open(log)
		if err != nil {
			return err
		}
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			m := loggedAt.FindStringSubmatch(lines.Text())
			if m == nil {
				continue
			}
			at, _ := strconv.ParseFloat(m[1], 64)
			i, _ := slices.BinarySearchFunc(entries, at, func(e entry, at float64) int {
				if e.at <= at {
					return -1
				}
				return 1
			})
			if i > 0 && at >= entries[0].at {
				add("schema | "+m[2], entries[i-1].test)
			}
		}
	}
	for key, names := range sets {
		if r.By[key] == nil {
			r.By[key] = map[string][]string{}
		}
		r.By[key][place] = slices.Sorted(maps.Keys(names))
	}
	return nil
}
