package main

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Verdicts. A reader of the code writes those that begin with equivalent.
const (
	killedBy   = "killed by "
	survives   = "survives"
	unreached  = "survives: no test reaches it"
	equivalent = "equivalent: "
)

// results are the verdicts on mutants, in a file with two lines for each, sorted by the mutant.
type results struct {
	path string
	of   map[string]string
}

func readResults(path string) (*results, error) {
	r := &results{path, map[string]string{}}
	text, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	id := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		switch verdict, indented := strings.CutPrefix(line, "\t"); {
		case strings.HasPrefix(line, "#") || line == "":
		case indented && id != "":
			r.of[id], id = verdict, ""
		case !indented && id == "" && strings.Count(line, " | ") == 2:
			id = line
		default:
			return nil, fmt.Errorf("%s: line %q is out of place", path, line)
		}
	}
	return r, nil
}

// killers are the tests that kill other mutants of a function.
func (r *results) killers(function string) (out []string) {
	for id, verdict := range r.of {
		if names, killed := strings.CutPrefix(verdict, killedBy); killed && functionOf(id) == function {
			out = append(out, strings.Split(names, ", ")...)
		}
	}
	return out
}

// set notes a verdict in the file. A reason that was given for a survivor stays.
func (r *results) set(id, verdict string) error {
	if strings.HasPrefix(verdict, survives) && strings.HasPrefix(r.of[id], equivalent) {
		return nil
	}
	r.of[id] = verdict
	return r.write()
}

func (r *results) write() error {
	count := map[string]int{}
	for _, verdict := range r.of {
		first, _, _ := strings.Cut(verdict, " ")
		count[strings.Trim(first, ":")]++
	}
	var b strings.Builder
	b.WriteString("# Mutants and the tests that kill them, by go run ./internal/mutants.\n")
	fmt.Fprintf(&b, "# %d in all, %d killed, %d survive, %d equivalent.\n",
		len(r.of), count["killed"], count["survives"], count["equivalent"])
	for _, id := range slices.Sorted(maps.Keys(r.of)) {
		fmt.Fprintf(&b, "%s\n\t%s\n", id, r.of[id])
	}
	return os.WriteFile(r.path, []byte(b.String()), 0o644)
}

// stale removes the entries whose mutants are not there any more, and returns them.
func (r *results) stale(c *code) (out []string) {
	for id := range r.of {
		if c.seen[id] == 0 && !slices.ContainsFunc(c.mutants, func(m *mutant) bool { return m.id() == id }) {
			out = append(out, id)
			delete(r.of, id)
		}
	}
	slices.Sort(out)
	return out
}

// moved names tests by the packages that they are in now, and returns those that are not where they
// were. A mutant whose tests are all gone is removed: it is to be run again.
func (r *results) moved(tests map[string][]string) (out []string) {
	for id, verdict := range r.of {
		names, killed := strings.CutPrefix(verdict, killedBy)
		if !killed || strings.Contains(names, ": ") {
			continue
		}
		var now []string
		for _, was := range strings.Split(names, ", ") {
			dot := strings.LastIndex(was, ".")
			place, name := was[:dot], was[dot+1:]
			switch places := tests[name]; {
			case slices.Contains(places, place):
			case len(places) == 1:
				out, place = append(out, was), places[0]
			default:
				out = append(out, was)
				continue
			}
			now = append(now, place+"."+name)
		}
		if r.of[id] = killedBy + strings.Join(now, ", "); now == nil {
			delete(r.of, id)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

var testFunction = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example)\w*)\(`)

// testNames are the packages of each test, by its name.
func testNames(root string) (map[string][]string, error) {
	out := map[string][]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		place, err := filepath.Rel(root, filepath.Dir(path))
		for _, f := range testFunction.FindAllSubmatch(text, -1) {
			out[string(f[1])] = append(out[string(f[1])], place)
		}
		return err
	})
	return out, err
}
