// Reference writes the pages of docs/reference that are made of the code: go.md of the doc comments, metrics.md of
// the package comments of telemetry/, and programs.md of the flags of the repository's own programs.
//
//	go run .ci/reference.go          fails if a page is not as the code is, or if a comment lacks its zero value
//	go run .ci/reference.go -write   writes the pages anew
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
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const (
	module = "github.com/txoutbox/outbox"
	made   = "<!-- Made by `go run .ci/reference.go -write`. -->\n\n"
)

// private are folders without a public package, as in api.go.
var private = strings.Fields(".git .ci bench browsertest cmd docs examples internal node_modules testdata")

func main() {
	write := flag.Bool("write", false, "write the pages anew")
	flag.Parse()
	if err := run(*write); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(write bool) error {
	packages, err := parsed()
	if err != nil {
		return err
	}
	goPage, errs := goPage(packages)
	programs, err := programsPage()
	errs = append(errs, err)
	for name, text := range map[string]string{
		"go.md": goPage, "metrics.md": metricsPage(packages), "programs.md": programs,
	} {
		name = filepath.Join("docs/reference", name)
		before, _ := os.ReadFile(name)
		switch {
		case string(before) == text:
		case write:
			errs = append(errs, os.WriteFile(name, []byte(text), 0o644))
		default:
			errs = append(errs, fmt.Errorf("%s is not as the code is: go run .ci/reference.go -write", name))
		}
	}
	return errors.Join(errs...)
}

// pkg is a public package.
type pkg struct {
	*doc.Package
	folder  string
	imports map[string]string // folders of this module, by the name of the package
}

var fset = token.NewFileSet()

func parsed() (all []*pkg, err error) {
	err = filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || !d.IsDir():
			return err
		case slices.Contains(private, d.Name()):
			return fs.SkipDir
		}
		p, err := parse(path)
		if p != nil {
			all = append(all, p)
		}
		return err
	})
	return all, err
}

// parse returns nil for a folder without Go.
func parse(folder string) (*pkg, error) {
	found, err := parser.ParseDir(fset, folder, func(f fs.FileInfo) bool {
		return !strings.HasSuffix(f.Name(), "_test.go")
	}, parser.ParseComments)
	for _, one := range found {
		p := &pkg{folder: filepath.ToSlash(folder), imports: map[string]string{}}
		for _, f := range one.Files {
			for _, i := range f.Imports {
				if path, _ := strconv.Unquote(i.Path.Value); strings.HasPrefix(path, module+"/") {
					p.imports[filepath.Base(path)] = strings.TrimPrefix(path, module+"/")
				}
			}
		}
		p.Package = doc.New(one, folder, doc.PreserveAST)
		return p, err
	}
	return nil, err
}

func goPage(packages []*pkg) (string, []error) {
	var b strings.Builder
	var errs []error
	b.WriteString("# Reference of the Go API\n\n" + made + wrap("All exported errors, options and fields that an app "+
		"sets. `go doc` and pkg.go.dev have all names. [Metrics](metrics.md), [SQL](sql.md) and the [command "+
		"line](command-line.md) have pages of their own.") + "\n")
	b.WriteString("\n## Errors\n\n`errors.Is` finds these, also wrapped. The text may have more around it.\n\n" +
		"| error | text | meaning |\n|---|---|---|\n")
	for _, p := range packages {
		for _, row := range p.errors() {
			b.WriteString(row)
		}
	}
	b.WriteString("\n`errors.As` finds the types `*handlers.PanicError` and `handlers.BatchResult`.\n")
	b.WriteString("\n## Options\n")
	for _, p := range packages {
		rows, err := p.options()
		if len(rows) > 0 {
			fmt.Fprintf(&b, "\n### Options of %s\n\n| option | meaning |\n|---|---|\n%s", p.Name, strings.Join(rows, ""))
		}
		errs = append(errs, err)
	}
	b.WriteString("\n## Fields\n\nThese are the structs that an app gives to a function.\n")
	for _, p := range packages {
		for _, t := range p.inputs() {
			rows, err := p.fields(t)
			if len(rows) > 0 {
				fmt.Fprintf(&b, "\n### %s.%s\n\n%s\n\n| field | type | meaning |\n|---|---|---|\n%s", p.Name, t.Name,
					wrap(markdown(essence(paragraph(t.Doc)))), strings.Join(rows, ""))
			}
			errs = append(errs, err)
		}
	}
	return b.String(), errs
}

// values are the exported variables and constants, those that go/doc sorts under a type too.
func (p *pkg) values() []*doc.Value {
	out := slices.Clone(p.Vars)
	for _, t := range p.Types {
		out = append(out, t.Vars...)
	}
	return out
}

func (p *pkg) errors() (rows []string) {
	for _, v := range p.values() {
		for _, s := range v.Decl.Specs {
			s := s.(*ast.ValueSpec)
			for i, n := range s.Names {
				if !strings.HasPrefix(n.Name, "Err") || i >= len(s.Values) {
					continue
				}
				about := s.Doc.Text()
				if about == "" {
					about = v.Doc
				}
				if rest, found := strings.CutPrefix(about, n.Name+": "); found {
					about = strings.ToUpper(rest[:1]) + rest[1:]
				}
				rows = append(rows, fmt.Sprintf("| `%s.%s` | `%s` | %s |\n", p.Name, n.Name, p.text(s.Values[i]),
					markdown(paragraph(about))))
			}
		}
	}
	slices.Sort(rows)
	return rows
}

// text is that of errors.New, also where another package of the module calls it.
func (p *pkg) text(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		s, _ := strconv.Unquote(e.Value)
		return s
	case *ast.BinaryExpr:
		return p.text(e.X) + p.text(e.Y)
	case *ast.CallExpr:
		return p.text(e.Args[0])
	case *ast.SelectorExpr:
		of, _ := e.X.(*ast.Ident)
		other, err := parse(p.imports[of.Name])
		if err != nil || other == nil {
			return ""
		}
		for _, v := range other.values() {
			for _, s := range v.Decl.Specs {
				s := s.(*ast.ValueSpec)
				for i, n := range s.Names {
					if n.Name == e.Sel.Name {
						return other.text(s.Values[i])
					}
				}
			}
		}
	}
	return ""
}

// allFuncs are the functions and methods, those that go/doc sorts under the type of their result too.
func (p *pkg) allFuncs() []*doc.Func {
	out := slices.Clone(p.Funcs)
	for _, t := range p.Types {
		out = append(append(out, t.Funcs...), t.Methods...)
	}
	return out
}

// An option returns nothing else but a type with such a name.
var optionType = regexp.MustCompile(`^(\w+\.)?\w*Option$`)

func (p *pkg) options() (rows []string, err error) {
	var errs []error
	for _, f := range p.allFuncs() {
		results := f.Decl.Type.Results
		if results == nil || len(results.List) != 1 || !optionType.MatchString(source(results.List[0].Type)) {
			continue
		}
		params := strings.TrimPrefix(source(&ast.FuncType{Params: f.Decl.Type.Params}), "func")
		name := p.Name + "."
		if f.Recv != "" {
			name += strings.TrimPrefix(f.Recv, "*") + "."
		}
		about := essence(f.Doc)
		if params != "()" && !strings.HasPrefix(params, "(opts ...") && !saysZero.MatchString(about) {
			errs = append(errs, fmt.Errorf("%s%s: the comment does not say the zero value: %s", name, f.Name, about))
		}
		rows = append(rows, fmt.Sprintf("| `%s%s%s` | %s |\n", name, f.Name, params, markdown(about)))
	}
	slices.Sort(rows)
	return rows, errors.Join(errs...)
}

// outputs are structs that an app gets, and gives back as they are.
var outputs = []string{"doctor.Finding"}

// inputs are the structs that parameters of functions have, and those in their fields.
func (p *pkg) inputs() (out []*doc.Type) {
	named := map[string]bool{}
	var add func(e ast.Expr)
	add = func(e ast.Expr) {
		ast.Inspect(e, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncType, *ast.SelectorExpr:
				return false
			case *ast.Ident:
				if named[n.Name] {
					return false
				}
				named[n.Name] = true
				for _, t := range p.Types {
					if s := structOf(t); s != nil && t.Name == n.Name {
						for _, f := range s.Fields.List {
							add(f.Type)
						}
					}
				}
			}
			return true
		})
	}
	for _, f := range p.allFuncs() {
		for _, param := range f.Decl.Type.Params.List {
			add(param.Type)
		}
	}
	for _, t := range p.Types {
		if structOf(t) != nil && named[t.Name] && !slices.Contains(outputs, p.Name+"."+t.Name) {
			out = append(out, t)
		}
	}
	return out
}

func structOf(t *doc.Type) *ast.StructType {
	s, _ := t.Decl.Specs[0].(*ast.TypeSpec).Type.(*ast.StructType)
	return s
}

func (p *pkg) fields(t *doc.Type) (rows []string, err error) {
	var errs []error
	ofAll := t.Name != "Config" && saysZero.MatchString(t.Doc) // of the struct as a whole
	for _, f := range structOf(t).Fields.List {
		about := f.Doc.Text()
		if about == "" {
			about = f.Comment.Text()
		}
		for _, n := range f.Names {
			if !n.IsExported() {
				continue
			}
			text := essence(about)
			if text == "" || !ofAll && source(f.Type) != "bool" && !saysZero.MatchString(text) {
				errs = append(errs, fmt.Errorf("%s.%s.%s: the comment does not say the zero value: %s", p.Name, t.Name,
					n.Name, text))
			}
			rows = append(rows, fmt.Sprintf("| `%s.%s.%s` | `%s` | %s |\n", p.Name, t.Name, n.Name, source(f.Type),
				markdown(text)))
		}
	}
	return rows, errors.Join(errs...)
}

// source is a node in one line.
func source(node ast.Node) string {
	var out bytes.Buffer
	(&printer.Config{Mode: printer.RawFormat}).Fprint(&out, fset, node)
	return strings.Join(strings.Fields(out.String()), " ")
}

var (
	saysZero = regexp.MustCompile(`\b[Dd]efaults?\b|\b0\b|\bnegative\b|\bWithout\b|\bbetween\b|\bzero\b|\bnil\b|` +
		`\bempty\b|""|\bmust (?:fit|be|have|lead|not be)\b|\brequired\b|\b1 to \b|\bif (?:set|any)\b|\bset by\b`)
	limits    = regexp.MustCompile(`[Aa]t most|[Tt]he most`)
	codeBlock = regexp.MustCompile(`:\n(\n\t.*)+`)
	docLink   = regexp.MustCompile(`\[(\*?[A-Za-z][\w.]*)\]`)
	tag       = regexp.MustCompile(`<(\w)`)
	pointer   = regexp.MustCompile("(^|[^`\\w])(\\*[a-z]+\\.[A-Z]\\w+)")
)

// paragraph is the first one of a comment, in one line.
func paragraph(text string) string {
	first, _, _ := strings.Cut(strings.TrimSpace(text), "\n\n")
	return strings.Join(strings.Fields(first), " ")
}

// essence is a comment if it is short, else its first sentence with those that say limits and the zero value.
func essence(text string) string {
	text, _, _ = strings.Cut(text, "\nExperimental:")
	all := strings.Join(strings.Fields(codeBlock.ReplaceAllString(text, ".")), " ")
	if len(strings.Fields(all)) <= 50 {
		return all
	}
	var out []string
	for i, s := range strings.SplitAfter(all, ". ") {
		if i == 0 || saysZero.MatchString(s) || limits.MatchString(s) {
			out = append(out, strings.TrimSpace(s))
		}
	}
	return strings.Join(out, " ")
}

// wrap breaks a text into lines of at most 100 columns.
func wrap(text string) string {
	var out strings.Builder
	width := 0
	for _, word := range strings.Fields(text) {
		if n := len([]rune(word)); width > 0 && width+1+n > 100 {
			out.WriteString("\n" + word)
			width = n
			continue
		} else if width > 0 {
			out.WriteString(" ")
			width++
		}
		out.WriteString(word)
		width += len([]rune(word))
	}
	return out.String()
}

// markdown is a comment as a cell of a table.
func markdown(text string) string {
	text = docLink.ReplaceAllString(text, "`$1`")
	text = pointer.ReplaceAllString(text, "$1`$2`")
	parts := strings.Split(text, "`") // those in between are code
	for i := 0; i < len(parts); i += 2 {
		parts[i] = tag.ReplaceAllString(strings.ReplaceAll(parts[i], "*", `\*`), `\<$1`)
	}
	return strings.ReplaceAll(strings.Join(parts, "`"), "|", `\|`)
}

var metricItem = regexp.MustCompile(`^((?:outbox|messaging)[_.][a-z_.]+(?:\{[a-z,]+\})?) \((.*?)\): (.*)$`)

// metricsPage has the lists of the package comments of telemetry/, each below the line that introduces it.
func metricsPage(packages []*pkg) string {
	var b strings.Builder
	b.WriteString("# Metrics\n\n" + made + "[Observing](../guide/observing.md) says how to set them up, and which " +
		"alerts to have.\n")
	for _, about := range []struct{ folder, title, kind string }{
		{"telemetry/prom", "Prometheus", "metric | type"},
		{"telemetry/otel", "OpenTelemetry", "instrument | unit; attributes"},
	} {
		fmt.Fprintf(&b, "\n## %s\n", about.title)
		i := slices.IndexFunc(packages, func(p *pkg) bool { return p.folder == about.folder })
		inList := false
		for _, block := range strings.Split(packages[i].Doc, "\n\n") {
			if strings.HasSuffix(block, ":") && !strings.Contains(block, "\t") {
				fmt.Fprintf(&b, "\n%s\n", markdown(block))
				inList = false
			}
			for _, item := range strings.Split("\n"+block, "\n  - ")[1:] {
				m := metricItem.FindStringSubmatch(strings.Join(strings.Fields(item), " "))
				if m == nil {
					continue
				}
				if !inList {
					fmt.Fprintf(&b, "\n| %s | meaning |\n|---|---|---|\n", about.kind)
				}
				inList = true
				fmt.Fprintf(&b, "| `%s` | %s | %s |\n", m[1], m[2], markdown(m[3]))
			}
		}
	}
	return b.String()
}

// flagCall are the functions that define a flag: of package flag, or of a FlagSet f.
var flagCall = regexp.MustCompile(`^(?:flag|f)\.(?:String|Bool|Int|Uint64|Duration)(Var)?$`)

// programsPage is of the flags of the programs that this repository has beside the command line.
func programsPage() (string, error) {
	rows := map[string][]string{}
	var programs []string
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") ||
			strings.HasPrefix(path, "cmd/") {
			return err
		}
		file, err := parser.ParseFile(fset, path, nil, 0)
		if err != nil || file.Name.Name != "main" {
			return err
		}
		program := "go run ./" + filepath.ToSlash(filepath.Dir(path))
		if strings.HasPrefix(path, ".ci/") {
			program = "go run " + path
		} else if strings.HasPrefix(path, "bench/") {
			program = "cd bench && go run ."
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			m := flagCall.FindStringSubmatch(source(call.Fun))
			if m == nil {
				return true
			}
			args := call.Args[len(m[1])/len("Var"):]
			if rows[program] == nil {
				programs = append(programs, program)
			}
			rows[program] = append(rows[program], fmt.Sprintf("| `-%s` | %s | %s |\n", literals(args[0]), initial(args[1]),
				markdown(strings.ReplaceAll(literals(args[2]), "`", ""))))
			return true
		})
		return nil
	})
	var b strings.Builder
	b.WriteString("# Flags of the repository's programs\n\n" + made +
		"The flags of the command line `outbox` are on [its page](command-line.md).\n")
	for _, p := range programs {
		fmt.Fprintf(&b, "\n## %s\n\n| flag | default | meaning |\n|---|---|---|\n%s", p, strings.Join(rows[p], ""))
	}
	return b.String(), err
}

// literals are the texts in an expression, with … for what the program puts in.
func literals(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		s, _ := strconv.Unquote(e.Value)
		return strings.ReplaceAll(s, "\n", " ")
	case *ast.BinaryExpr:
		return literals(e.X) + literals(e.Y)
	}
	return "…"
}

// initial is the default of a flag.
func initial(e ast.Expr) string {
	text := source(e)
	switch text {
	case `""`, "false":
		return ""
	case "rand.Uint64N(1_000_000)":
		return "random"
	case "time.Minute":
		return "1m0s"
	}
	if m := times.FindStringSubmatch(text); m != nil {
		return m[1] + map[string]string{"Millisecond": "ms", "Second": "s"}[m[2]]
	}
	return strings.Trim(text, `"`)
}

var times = regexp.MustCompile(`^(\d+) ?\* ?time\.(Millisecond|Second)$`)
