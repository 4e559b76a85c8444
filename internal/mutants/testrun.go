package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/txoutbox/outbox/internal/devpg"
	"github.com/txoutbox/outbox/internal/mutants/live"
)

var (
	passedTest = regexp.MustCompile(`(?m)^--- PASS: (\w+) \(([\d.]+)s\)`)
	failedTest = regexp.MustCompile(`(?m)^--- FAIL: (\w+) \(([\d.]+)s\)`)
)

// testRun is a run of the tests of a package.
type testRun struct {
	place    string
	names    []string // nil: all
	config   live.Config
	parallel int
	timeout  time.Duration
	server   string // URL
}

// run runs tests and returns their output. It ends soon after failed has returned true for a line.
// A failure is no error.
func (o *overlay) run(ctx context.Context, t testRun, failed func(line string) bool) (string, error) {
	binary, err := o.binary(t.place)
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(t.config)
	if err != nil {
		return "", err
	}
	name := filepath.Join(o.dir, fmt.Sprintf("config-%d.json", os.Getpid()))
	if err := os.WriteFile(name, text, 0o644); err != nil {
		return "", err
	}
	defer os.Remove(name)
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	args := []string{"-test.v", "-test.count=1", "-test.timeout=0", "-test.parallel=" + strconv.Itoa(t.parallel)}
	if t.names != nil {
		args = append(args, "-test.run=^("+strings.Join(t.names, "|")+")$")
	}
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir = filepath.Join(o.root, t.place)
	cmd.Env = append(os.Environ(), live.Env+"="+name, "OUTBOX_TEST_POSTGRES=url", "OUTBOX_TEST_DATABASE_URL="+t.server)
	cmd.WaitDelay = time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return "", err
	}
	var all bytes.Buffer
	for lines := bufio.NewReader(out); ; {
		line, err := lines.ReadString('\n')
		all.WriteString(line)
		if failed != nil && failed(line) {
			time.AfterFunc(grace, cancel)
			failed = nil
		}
		if err != nil {
			break
		}
	}
	_ = cmd.Wait()
	return all.String(), context.Cause(ctx)
}

// newServer is a server for the tests, whose log says which functions are called.
func newServer(ctx context.Context) (*devpg.Server, error) {
	return devpg.Open(ctx, nil, devpg.WithLocal(), devpg.WithMemory(), devpg.WithSettings(map[string]string{
		"fsync": "off", "log_line_prefix": "%n ", "log_min_error_statement": "panic", "log_error_verbosity": "terse"}))
}
