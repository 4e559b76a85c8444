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

// killers are the packages whose tests kill other mutants of a function.
func (r *results) killers(function string) (out []string) {
	for id, verdict := range r.of {
		names, killed := strings.CutPrefix(verdict, killedBy)
		if killed && functionOf(id) == function {
			first, _, _ := strings.Cut(names, ", ")
			place, _, _ := strings.Cut(first, ".Test")
			place, _, _ = strings.Cut(place, ": ")
			out = append(out, place)
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

// stale are the entries whose mutants are not there any more, and those whose tests are all gone.
func (r *results) stale(c *code, tests map[string]bool) (out []string) {
	for id, verdict := range r.of {
		names, killed := strings.CutPrefix(verdict, killedBy)
		none := killed && !slices.ContainsFunc(strings.Split(names, ", "), func(name string) bool {
			return tests[name] || strings.Contains(name, ": ")
		})
		if c.seen[id] == 0 || none {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

var testFunction = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example)\w*)\(`)

// testNames are all tests, with their packages.
func testNames(root string) (map[string]bool, error) {
	out := map[string]bool{}
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
			out[place+"."+string(f[1])] = true
		}
		return err
	})
	return out, err
}
