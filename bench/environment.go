package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

// environment is what the numbers depend on.
type environment struct {
	Date     string      `json:"date"`
	Command  string      `json:"command"`
	Go       string      `json:"go"`
	CPU      string      `json:"cpu"`
	Cores    int         `json:"cores"`
	MemoryGB float64     `json:"memory_gb"`
	System   string      `json:"system"`
	Revision string      `json:"revision"`
	Modules  [][2]string `json:"modules"`
	Settings [][2]string `json:"settings"`
}

func environmentOf(ctx context.Context, b *bench) (environment, error) {
	e := environment{
		Date: time.Now().UTC().Format("2006-01-02"), Command: "go run . " + strings.Join(shownArguments(os.Args[1:]), " "), Go: runtime.Version(),
		CPU: procField("/proc/cpuinfo", "model name"), Cores: runtime.NumCPU(), System: runtime.GOOS + "/" + runtime.GOARCH, Revision: revision(ctx),
	}
	if kb, err := strconv.ParseFloat(strings.TrimSuffix(procField("/proc/meminfo", "MemTotal"), " kB"), 64); err == nil {
		e.MemoryGB = kb / 1e6
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			switch m.Path {
			case "github.com/riverqueue/river", "github.com/ThreeDotsLabs/watermill-sql/v4", "github.com/lib/pq", "github.com/jackc/pgx/v5":
				e.Modules = append(e.Modules, [2]string{m.Path, m.Version})
			}
		}
	}
	var err error
	e.Settings, err = b.server.settings(ctx)
	return e, err
}

func (e environment) print(w io.Writer) {
	fmt.Fprintf(w, "%s, %d cores, %.0f GB, %s, %s, revision %s\n", e.CPU, e.Cores, e.MemoryGB, e.System, e.Go, e.Revision)
	for _, m := range e.Modules {
		fmt.Fprintf(w, "%s %s; ", m[0], m[1])
	}
	fmt.Fprintln(w)
	for _, s := range e.Settings {
		fmt.Fprintf(w, "%s = %s; ", s[0], s[1])
	}
	fmt.Fprintln(w)
}

// shownArguments are the arguments without the password of a URL, and without where the report goes.
func shownArguments(args []string) []string {
	var out []string
	for i := 0; i < len(args); i++ {
		name, _, joined := strings.Cut(strings.TrimLeft(args[i], "-"), "=")
		switch name {
		case "database-url":
			out = append(out, "-database-url …")
		case "report", "o":
		default:
			out = append(out, args[i])
			continue
		}
		if !joined {
			i++
		}
	}
	return out
}

func procField(file, name string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
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
	if changes, err := exec.CommandContext(ctx, "git", "status", "--porcelain", "-uno", "..").Output(); err == nil && len(changes) > 0 {
		r += "+"
	}
	return r
}
