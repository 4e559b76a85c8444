// Api compares the exported names of the public packages, with their signatures, with .ci/api.txt.
//
//	go run .ci/api.go          fails if they differ, and prints what differs and what breaks an app
//	go run .ci/api.go -write   writes the file anew
//	go run .ci/api.go -since REV   prints what breaks an app that was built with REV
//
// Apidiff, a program of the Go project, says what breaks: since REV, or since the commit that changed the file last.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const (
	golden  = ".ci/api.txt"
	apidiff = "golang.org/x/exp/cmd/apidiff@v0.0.0-20261113113407-e3970619a1a4"
)

// private are folders without a public package.
var private = []string{
	".git", ".ci", "bench", "browsertest", "cmd", "docs", "examples", "internal", "node_modules", "testdata",
}

func main() {
	write := flag.Bool("write", false, "write .ci/api.txt anew")
	since := flag.String("since", "", "print what breaks since this revision")
	flag.Parse()
	err := run(*write, *since)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(write bool, since string) error {
	if since != "" {
		return breaks(since)
	}
	now, err := names()
	if err != nil {
		return err
	}
	if write {
		return os.WriteFile(golden, []byte(strings.Join(now, "\n")+"\n"), 0o644)
	}
	text, err := os.ReadFile(golden)
	if err != nil {
		return err
	}
	before := strings.Split(strings.TrimSpace(string(text)), "\n")
	if slices.Equal(before, now) {
		fmt.Printf("%d exported names, fields and methods, as in %s\n", len(now), golden)
		return nil
	}
	missing(before, now, "-")
	missing(now, before, "+")
	last, err := output(".", "git", "log", "-1", "--format=%H", "--", golden)
	if err == nil && last != "" {
		err = breaks(last)
	}
	if err != nil {
		fmt.Println("what breaks is not known:", err)
	}
	return fmt.Errorf("the public API is not as in %s: if that is meant, go run .ci/api.go -write, "+
		"and say in CHANGELOG.md what breaks", golden)
}

// missing prints the lines of a that b does not have.
func missing(a, b []string, sign string) {
	for _, line := range a {
		if !slices.Contains(b, line) {
			fmt.Println(sign, line)
		}
	}
}

// names are all names of all public packages, sorted.
func names() (all []string, err error) {
	err = filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case !d.IsDir():
			return nil
		case slices.Contains(private, d.Name()):
			return fs.SkipDir
		}
		found, err := inPackage(path)
		all = append(all, found...)
		return err
	})
	slices.Sort(all)
	return all, err
}

// lister collects the lines of one package.
type lister struct {
	fset  *token.FileSet
	pkg   string
	lines []string
}

func inPackage(folder string) ([]string, error) {
	fset := token.NewFileSet()
	parsed, err := parser.ParseDir(fset, folder, func(f fs.FileInfo) bool {
		return !strings.HasSuffix(f.Name(), "_test.go")
	}, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, p := range parsed {
		d := doc.New(p, folder, 0)
		l := lister{fset: fset, pkg: strings.TrimPrefix(filepath.ToSlash(folder), "./")}
		if folder == "." {
			l.pkg = d.Name
		}
		l.values(d.Consts, d.Vars)
		l.funcs(d.Funcs)
		for _, t := range d.Types {
			l.typ(t)
			l.values(t.Consts, t.Vars)
			l.funcs(t.Funcs)
			l.funcs(t.Methods)
		}
		lines = append(lines, l.lines...)
	}
	return lines, nil
}

func (l *lister) add(docs, format string, args ...any) {
	line := l.pkg + ": " + fmt.Sprintf(format, args...)
	if strings.Contains(docs, "Experimental:") {
		line += " (experimental)"
	}
	l.lines = append(l.lines, line)
}

func (l *lister) values(groups ...[]*doc.Value) {
	for _, v := range slices.Concat(groups...) {
		typ := ""
		for _, s := range v.Decl.Specs {
			s := s.(*ast.ValueSpec)
			if s.Type != nil {
				typ = " " + l.source(s.Type)
			} else if len(s.Values) > 0 {
				typ = ""
			}
			for i, n := range s.Names {
				if !n.IsExported() {
					continue
				}
				value := ""
				if v.Decl.Tok == token.CONST && i < len(s.Values) {
					value = " = " + l.source(s.Values[i])
				}
				l.add(v.Doc, "%s %s%s%s", v.Decl.Tok, n.Name, typ, value)
			}
		}
	}
}

func (l *lister) funcs(all []*doc.Func) {
	for _, f := range all {
		decl := *f.Decl
		decl.Body, decl.Doc = nil, nil
		l.add(f.Doc, "%s", l.source(&decl))
	}
}

func (l *lister) typ(t *doc.Type) {
	for _, s := range t.Decl.Specs {
		s := s.(*ast.TypeSpec)
		head := "type " + s.Name.Name
		if s.TypeParams != nil {
			decl := &ast.FuncDecl{Name: s.Name, Type: &ast.FuncType{TypeParams: s.TypeParams, Params: &ast.FieldList{}}}
			head = "type " + strings.TrimSuffix(strings.TrimPrefix(l.source(decl), "func "), "()")
		}
		if s.Assign.IsValid() {
			head += " ="
		}
		switch typ := s.Type.(type) {
		case *ast.StructType:
			l.add(t.Doc, "%s struct", head)
			l.members(t, "field", typ.Fields)
		case *ast.InterfaceType:
			l.add(t.Doc, "%s interface", head)
			l.members(t, "method", typ.Methods)
		default:
			l.add(t.Doc, "%s %s", head, l.source(typ))
		}
	}
}

// members are the exported fields of a struct, or the methods of an interface.
func (l *lister) members(t *doc.Type, kind string, fields *ast.FieldList) {
	for _, f := range fields.List {
		for _, n := range f.Names {
			switch {
			case n.IsExported():
				l.add(t.Doc+f.Doc.Text(), "type %s, %s %s %s", t.Name, kind, n.Name, l.source(f.Type))
			case kind == "method":
				l.add(t.Doc, "type %s, unexported methods", t.Name)
			}
		}
		if len(f.Names) == 0 {
			l.add(t.Doc, "type %s, embedded %s", t.Name, l.source(f.Type))
		}
	}
}

// source is a node in one line.
func (l *lister) source(node ast.Node) string {
	var out bytes.Buffer
	(&printer.Config{Mode: printer.RawFormat}).Fprint(&out, l.fset, node)
	return strings.Join(strings.Fields(out.String()), " ")
}

// breaks prints what an app that was built with rev cannot use any more, by module.
func breaks(rev string) error {
	old, err := os.MkdirTemp("", "api")
	if err != nil {
		return err
	}
	defer os.RemoveAll(old)
	archive := exec.Command("git", "archive", rev)
	unpack := exec.Command("tar", "-x", "-C", old)
	if unpack.Stdin, err = archive.StdoutPipe(); err != nil {
		return err
	}
	if err := unpack.Start(); err != nil {
		return err
	}
	if err := archive.Run(); err != nil {
		return fmt.Errorf("git archive %s: %w", rev, err)
	}
	if err := unpack.Wait(); err != nil {
		return err
	}
	tools := filepath.Join(old, ".tools")
	install := exec.Command("go", "install", apidiff)
	install.Env = append(os.Environ(), "GOBIN="+tools, "GOFLAGS=-mod=mod")
	if text, err := install.CombinedOutput(); err != nil {
		return fmt.Errorf("go install %s: %w\n%s", apidiff, err, text)
	}
	top, err := os.Getwd()
	if err != nil {
		return err
	}
	modules, err := output(".", "go", "list", "-m", "-f", "{{.Path}}\t{{.Dir}}")
	if err != nil {
		return err
	}
	os.Setenv("GOWORK", "off") // each module alone: the others need not compile while one changes
	for _, m := range strings.Split(modules, "\n") {
		module, folder, _ := strings.Cut(m, "\t")
		if slices.ContainsFunc(private, func(p string) bool { return strings.Contains(module+"/", "/"+p+"/") }) {
			continue
		}
		export := filepath.Join(old, "export")
		before := filepath.Join(old, strings.TrimPrefix(folder, top))
		if _, err := output(before, tools+"/apidiff", "-m", "-w", export, module); err != nil {
			fmt.Printf("%s: nothing to compare with at %.12s: %v\n", module, rev, err)
			continue
		}
		text, err := output(folder, tools+"/apidiff", "-m", "-incompatible", export, module)
		if err != nil {
			fmt.Printf("%s: not known what breaks: %v\n", module, err)
		}
		if text != "" {
			fmt.Printf("%s, what breaks since %.12s:\n%s\n", module, rev, text)
		}
	}
	return nil
}

// output is what a program prints; its error has what it says on standard error.
func output(folder string, name string, args ...string) (string, error) {
	c := exec.Command(name, args...)
	c.Dir = folder
	text, err := c.Output()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		said := regexp.MustCompile("Ignoring internal package.*\n").ReplaceAll(exit.Stderr, nil)
		err = fmt.Errorf("%s: %w\n%s", name, err, said)
	}
	return strings.TrimSpace(string(text)), err
}
