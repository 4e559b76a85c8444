package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
)

// environment is what the numbers depend on.
type environment struct {
	date, cpu, system, revision string
	cores                       int
	memoryGB                    float64
	modules, settings           [][2]string // name and version, name and value
}

// peers are the modules whose versions are shown.
var peers = []string{
	"github.com/ThreeDotsLabs/watermill-sql/v4", "github.com/jackc/pgx/v5", "github.com/lib/pq",
	"github.com/riverqueue/river",
}

func environmentOf(ctx context.Context, s *server) (environment, error) {
	e := environment{
		date: time.Now().UTC().Format("2006-01-02"), cpu: procField("/proc/cpuinfo", "model name"), cores: runtime.NumCPU(),
		system: runtime.GOOS + "/" + runtime.GOARCH, revision: revision(ctx),
		memoryGB: procKB("/proc/meminfo", "MemTotal") / 1e6,
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if slices.Contains(peers, m.Path) {
				e.modules = append(e.modules, [2]string{m.Path, m.Version})
			}
		}
	}
	var err error
	e.settings, err = s.settings(ctx)
	return e, err
}

func (e environment) print(w io.Writer) {
	fmt.Fprintf(w, "%s, %d cores, %.0f GB, %s, %s, revision %s\n%s\n%s\n", e.cpu, e.cores, e.memoryGB, e.system,
		runtime.Version(), e.revision, joined(e.modules, " "), joined(e.settings, " = "))
}

// joined lists pairs, with sep between the two of each.
func joined(pairs [][2]string, sep string) string {
	var all []string
	for _, p := range pairs {
		all = append(all, p[0]+sep+p[1])
	}
	return strings.Join(all, ", ")
}

// procKB is a size from a file of /proc; 0 where there is none.
func procKB(file, name string) float64 {
	kb, _ := strconv.ParseFloat(strings.TrimSuffix(procField(file, name), " kB"), 64)
	return kb
}

func procField(file, name string) string {
	text, _ := os.ReadFile(file)
	for line := range strings.Lines(string(text)) {
		if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// revision is that of the checkout, with + if it has changes; "unknown" without git.
func revision(ctx context.Context) string {
	head, err := exec.CommandContext(ctx, "git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	r := strings.TrimSpace(string(head))
	changes, err := exec.CommandContext(ctx, "git", "status", "--porcelain", "-uno", "..").Output()
	if err == nil && len(changes) > 0 {
		r += "+"
	}
	return r
}
