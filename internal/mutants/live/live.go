// Package live switches one mutant on in a test binary that has them all. The program mutants puts
// calls of it into the sources that it compiles; nothing in the repository calls it.
package live

import (
	"embed"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Env names the file that has the Config of a test run.
const Env = "OUTBOX_MUTANT"

// Config is which mutant is on, and where to record the mutants that tests reach.
type Config struct {
	Go        int               // the number of a mutant of Go code; 0: none
	Statement [2]string         // a part of a statement, and its mutant
	Files     map[string]string // texts instead of the embedded ones
	Record    string            // a file for the lines "test mutant" and "test time"; "": nothing is recorded
}

var config, log = load()

func load() (c Config, log *os.File) {
	name := os.Getenv(Env)
	if name == "" {
		return c, nil
	}
	text, err := os.ReadFile(name)
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err == nil && c.Record != "" {
		log, err = os.OpenFile(c.Record, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	}
	if err != nil {
		panic(err)
	}
	return c, log
}

// reached are the mutants that the current test has reached. Tests run one at a time then.
var reached struct {
	mu   sync.Mutex
	test string
	seen map[any]bool
}

// Enter notes that a test begins or goes on, and when.
func Enter(test string) {
	if log == nil {
		return
	}
	test, _, _ = strings.Cut(test, "/")
	reached.mu.Lock()
	defer reached.mu.Unlock()
	if reached.test != test {
		reached.test, reached.seen = test, map[any]bool{}
		note(strconv.FormatFloat(float64(time.Now().UnixMicro())/1e6, 'f', 6, 64))
	}
}

func note(mutant string) { _, _ = log.WriteString(reached.test + " " + mutant + "\n") }

func reach(key any, mutant func() string) {
	reached.mu.Lock()
	defer reached.mu.Unlock()
	if !reached.seen[key] && reached.test != "" {
		reached.seen[key] = true
		note(mutant())
	}
}

// On reports whether the mutant of Go code is on.
func On(number int, mutant string) bool {
	if log != nil {
		reach(number, func() string { return mutant })
	}
	return config.Go == number
}

// Not is the condition, or its negation if the mutant is on.
func Not(number int, mutant string, condition bool) bool { return On(number, mutant) != condition }

// Statement is a statement, or its mutant.
func Statement(query string) string {
	if log != nil {
		name, _, _ := strings.Cut(strings.TrimPrefix(query, "/* "), " */")
		reach(name, func() string { return name })
	}
	if config.Statement[0] == "" {
		return query
	}
	return strings.ReplaceAll(query, config.Statement[0], config.Statement[1])
}

// FS has other texts for some of the embedded files.
type FS struct{ embed.FS }

// ReadFile implements fs.ReadFileFS.
func (f FS) ReadFile(name string) ([]byte, error) {
	if text, ok := config.Files[name]; ok {
		return []byte(text), nil
	}
	return f.FS.ReadFile(name)
}
