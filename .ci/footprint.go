// Footprint says what the library adds to an app: lines of go.sum, modules to fetch and their size, for
// programs that import some of its packages, each in an empty module with an empty module cache. It fails
// above a bound, where the tests' servers come along, and where go install refuses the command line.
//
//	go run .ci/footprint.go [-v]
//
// The checkout's files are served as a module proxy's, before the module cache and the machine's proxy.
package main

import (
	"archive/zip"
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const (
	library = "github.com/txoutbox/outbox"
	version = "v0.1.0" // that the modules require of each other
)

// A program is of packages of the library, with the most lines of go.sum that it may have.
type program struct {
	packages string
	lines    int
}

var bound = regexp.MustCompile(`(?m)^// An app's go.sum has at most (\d+) lines with it.$`)

// programs are those of the library itself, and one with each module in adapter/, publish/ and
// telemetry/, whose go.mod has its bound.
func programs() ([]program, error) {
	const base = "outbox handlers relay schema "
	all := []program{{base + "outboxtest", 35}, {base + "outboxtest admin doctor dashboard forward inbox pgdb", 35}}
	for _, pattern := range []string{"adapter/*/go.mod", "publish/*/go.mod", "telemetry/*/go.mod"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			p := program{packages: base + filepath.ToSlash(filepath.Dir(file))}
			if found := bound.FindSubmatch(text); found != nil {
				p.lines, _ = strconv.Atoi(string(found[1]))
			}
			all = append(all, p)
		}
	}
	return all, nil
}

// servers are parts of the names of modules that start the tests' servers.
var servers = []string{"docker", "runc", "embedded-postgres"}

var verbose = flag.Bool("v", false, "print the modules that each program requires")

func main() {
	flag.Parse()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() (err error) {
	dir, err := os.MkdirTemp("", "outbox-footprint-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	proxy := filepath.Join(dir, "proxy")
	if err := publish(proxy); err != nil {
		return err
	}
	known, err := command(".", nil, "go", "env", "GOMODCACHE", "GOPROXY")
	if err != nil {
		return err
	}
	mod, rest, _ := strings.Cut(strings.TrimSpace(known), "\n")
	env := []string{"GOWORK=off", "GOFLAGS=-modcacherw", "GOSUMDB=off",
		"GOPROXY=" + fileURL(proxy) + "," + fileURL(filepath.Join(mod, "cache", "download")) + "," + rest}
	fmt.Println("lines of go.sum, modules in the cache, MB fetched")
	var failed []error
	all, err := programs()
	if err != nil {
		return err
	}
	for n, p := range all {
		home := filepath.Join(dir, fmt.Sprint(n))
		found, err := measure(home, env, strings.Fields(p.packages))
		if err != nil {
			return fmt.Errorf("%s: %w", p.packages, err)
		}
		fmt.Printf("%5d %4d %6.1f  %s\n", found.lines, found.modules, float64(found.bytes)/1e6, p.packages)
		if *verbose {
			fmt.Println(found.requires)
		}
		if found.lines > p.lines {
			failed = append(failed, fmt.Errorf("%s: %d lines of go.sum, want %d at most, "+
				"by programs or by the first line of the module's go.mod: // An app's go.sum has at most N lines with it.",
				p.packages, found.lines, p.lines))
		}
		for _, name := range found.servers {
			failed = append(failed, fmt.Errorf("%s: %s comes along", p.packages, name))
		}
		if err := os.RemoveAll(home); err != nil {
			return err
		}
	}
	env = append(env, "GOMODCACHE="+filepath.Join(dir, "cache"), "GOBIN="+dir)
	if _, err := command(dir, env, "go", "install", library+"/cmd/outbox@"+version); err != nil {
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// footprint is what go mod tidy has fetched for a program.
type footprint struct {
	lines, modules int
	bytes          int64
	requires       string
	servers        []string // lines of go.sum and files in the cache that are of servers
}

func measure(home string, env, packages []string) (f footprint, err error) {
	app, cache := filepath.Join(home, "app"), filepath.Join(home, "cache")
	env = append([]string{"GOMODCACHE=" + cache}, env...)
	source, require := "package main\n\nimport (\n", []string{"mod", "edit", "-require=" + library + "@" + version}
	for _, p := range packages {
		path := library
		if p != "outbox" {
			path += "/" + p
		}
		source += fmt.Sprintf("\t_ %q\n", path)
		if _, err := os.Stat(filepath.Join(p, "go.mod")); err == nil {
			require = append(require, "-require="+path+"@"+version) // else tidy asks the machine's proxy for it
		}
	}
	if err := errors.Join(os.MkdirAll(app, 0o755),
		os.WriteFile(filepath.Join(app, "main.go"), []byte(source+")\n\nfunc main() {}\n"), 0o644)); err != nil {
		return f, err
	}
	for _, args := range [][]string{{"mod", "init", "example.com/app"}, require, {"mod", "tidy"}} {
		if _, err := command(app, env, "go", args...); err != nil {
			return f, err
		}
	}
	sum, err1 := os.ReadFile(filepath.Join(app, "go.sum"))
	requires, err2 := os.ReadFile(filepath.Join(app, "go.mod"))
	if err := cmp.Or(err1, err2); err != nil {
		return f, err
	}
	f.requires = string(requires)
	for line := range strings.Lines(string(sum)) {
		f.lines++
		f.note("go.sum: " + strings.TrimSpace(line))
	}
	return f, filepath.WalkDir(filepath.Join(cache, "cache", "download"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		f.bytes += info.Size()
		f.note(path)
		if filepath.Ext(path) == ".zip" {
			f.modules++
		}
		return nil
	})
}

func (f *footprint) note(name string) {
	if slices.ContainsFunc(servers, func(s string) bool { return strings.Contains(name, s) }) {
		f.servers = append(f.servers, name)
	}
}

// publish writes what a module proxy has of the checkout's modules.
func publish(proxy string) error {
	listed, err := command(".", nil, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return err
	}
	files := strings.Split(strings.TrimSuffix(listed, "\x00"), "\x00")
	slices.Sort(files)
	var modules []string // folders, the inner ones first
	for _, file := range slices.Compact(files) {
		if filepath.Base(file) == "go.mod" {
			modules = append([]string{filepath.Dir(file)}, modules...)
		}
	}
	slices.SortFunc(modules, func(a, b string) int { return len(b) - len(a) })
	written := map[string]bool{}
	for _, folder := range modules {
		name, prefix := library+"/"+folder, folder+"/"
		if folder == "." {
			name, prefix = library, ""
		}
		var own []string
		for _, file := range files {
			if strings.HasPrefix(file, prefix) && !written[file] {
				own, written[file] = append(own, file), true
			}
		}
		if err := publishModule(filepath.Join(proxy, filepath.FromSlash(name), "@v", version), name, prefix, own); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// publishModule writes the three files of a version.
func publishModule(path, name, prefix string, files []string) error {
	var content bytes.Buffer
	w := zip.NewWriter(&content)
	var mod []byte
	for _, file := range files {
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) { // deleted in the checkout
			continue
		}
		if err != nil {
			return err
		}
		inside := strings.TrimPrefix(file, prefix)
		if inside == "go.mod" {
			mod = text
		}
		f, err := w.Create(name + "@" + version + "/" + inside)
		if err != nil {
			return err
		}
		if _, err := f.Write(text); err != nil {
			return err
		}
	}
	return errors.Join(w.Close(), os.MkdirAll(filepath.Dir(path), 0o755),
		os.WriteFile(path+".zip", content.Bytes(), 0o644),
		os.WriteFile(path+".mod", mod, 0o644),
		os.WriteFile(path+".info", []byte(`{"Version":"`+version+`"}`), 0o644),
		os.WriteFile(filepath.Join(filepath.Dir(path), "list"), []byte(version+"\n"), 0o644))
}

func fileURL(path string) string { return "file://" + filepath.ToSlash(path) }

func command(dir string, env []string, name string, args ...string) (output string, err error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(cmd.Environ(), env...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, said.Bytes())
	}
	return string(out), err
}
