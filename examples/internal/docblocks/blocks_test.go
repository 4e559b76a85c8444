package docblocks_test

import (
	"context"
	"database/sql"
	"os"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/examples/internal/docblocks"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/schema"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

const root = "../../.."

func page(lang string, blocks ...string) (out []docblocks.Block) {
	text := "# A page\n"
	for _, b := range blocks {
		text += "\n```" + lang + "\n" + b + "\n```\n"
	}
	return docblocks.Parse("docs/a.md", text)
}

func TestGoBlocksAreCompiled(t *testing.T) {
	needs.CI(t)
	if found := page("go", "a", "b"); len(found) != 2 || found[0].Line != 4 || found[1].Text != "b\n" {
		t.Fatalf("the page has the blocks %+v", found)
	}
	for _, tt := range []struct {
		name   string
		blocks []string
		want   string // the first problem, "" for none
	}{
		{"statements", []string{`_, err := SendWelcome.Enqueue(ctx, tx, Welcome{1})`}, ""},
		{"declarations before", []string{"type P struct{ A int }\nvar T = outbox.NewTaskType[P](\"T\")", "…\nT.Enqueue(ctx, tx, P{A: 1})"}, ""},
		{"what is declared anew", []string{"type Welcome struct{ Name string }\nvar w = Welcome{Name: \"a\"}", "type Welcome int\nvar w Welcome = 1"}, ""},
		{"a package of the examples", []string{"var d *gorm.DB"}, ""},
		{"a whole file", []string{"package main\nimport \"fmt\"\nfunc main() { fmt.Println() }"}, ""},
		{"a test", []string{"func TestA(t *testing.T) { outboxtest.RequireEnqueued(t, tx, SendWelcome, nil, outboxtest.After(time.Hour)) }"}, ""},

		{"no such function", []string{"x := 1", "outbox.None()"}, "docs/a.md:8: undefined: outbox.None"},
		{"no such name", []string{"return none"}, "docs/a.md:4: undefined: none"},
		{"another type", []string{"SendWelcome.Enqueue(ctx, tx, 1)"}, "docs/a.md:4: cannot use 1"},
		{"another signature", []string{"handlers.Leased(reg, SendWelcome, func(ctx context.Context, task *outbox.Task[int]) error { return nil })"}, "docs/a.md:4: in call to handlers.Leased"},
		{"unused in a file", []string{"package main\nimport \"fmt\"\nfunc main() {}"}, "docs/a.md:5: \"fmt\" imported and not used"},
		{"unused in a declaration", []string{"func f() { a := 1 }"}, "docs/a.md:4: declared and not used: a"},
		{"what comes later", []string{"p := P{}", "type P struct{}"}, "docs/a.md:4: undefined: P"},
		{"no Go", []string{"if {"}, "docs/a.md:4: neither declarations"},
	} {
		_, problems, err := docblocks.Compile(root, page("go", tt.blocks...))
		if err != nil {
			t.Fatal(err)
		}
		if tt.want == "" && len(problems) > 0 || tt.want != "" && (len(problems) == 0 || !strings.HasPrefix(problems[0].Error(), tt.want)) {
			t.Errorf("%s: the problems are %q, want %q", tt.name, problems, tt.want)
		}
	}
}

func TestSQLBlocksAreRun(t *testing.T) {
	needs.CI(t)
	db, err := sql.Open("postgres", pgtest.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := schema.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"CREATE TABLE a (); INSERT INTO outbox.task (task_type) VALUES ('A') RETURNING …": "",
		"SELECT usr_id FROM usr WHERE email = $1;":                                        "",
		"SELECT none FROM usr WHERE email = $1":                                           `"none" does not exist`,
		"SELECT 1; INSERT INTO outbox.task (type) VALUES ('A')":                           `"type" of relation "task" does not exist`,
		"SELEC 1": "syntax error",
	} {
		for range 2 { // the first one leaves nothing
			n, problems, err := docblocks.RunSQL(context.Background(), db, page("sql", text))
			if err != nil || n != 1 {
				t.Fatal(n, err)
			}
			if want == "" && len(problems) > 0 || want != "" && (len(problems) != 1 || !strings.Contains(problems[0].Error(), want)) {
				t.Errorf("%s: the problems are %q, want %q", text, problems, want)
			}
		}
	}
}

func TestShellBlocksNameWhatExists(t *testing.T) {
	for text, want := range map[string]string{
		"go run ./examples/signup -demo   # a comment":                                 "",
		"(cd examples && go test ./...) | OUTBOX_DATABASE_URL=a psql -c 'none | none'": "",
		"go get github.com/txoutbox/outbox@latest":                                     "",
		"psql -1 -f schema/00019_relays.sql":                                           "",
		"go run ./examples/none":                                                       "no package",
		"go run ./examples/signup -none":                                               "does not know none",
		"go instal ./relay":                                                            "no command instal",
		"go install github.com/txoutbox/outbox/cmd/none@latest":                        "no package",
		"psql -f schema/none.sql":                                                      "no such file",
		"outbox nowhere":                                                               "cmd/outbox does not know nowhere",
		"none --help":                                                                  "a command?",
	} {
		if _, problems := docblocks.CheckShell(root, page("sh", text)); want == "" && len(problems) > 0 || want != "" && (len(problems) != 1 || !strings.Contains(problems[0].Error(), want)) {
			t.Errorf("%s: the problems are %q, want %q", text, problems, want)
		}
	}
	console := page("console", "$ go run ./examples/none\ngo run ./examples/nothing\n$ psql")
	if n, problems := docblocks.CheckShell(root, console); n != 1 || len(problems) != 1 || !strings.HasPrefix(problems[0].Error(), "docs/a.md:4: ") {
		t.Errorf("a console: %d blocks, %q; want 1 problem", n, problems)
	}
}
