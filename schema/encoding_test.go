package schema

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// A character outside of ASCII cannot be stored, or not even be sent, where the database's encoding lacks it.
func TestAllFilesAreASCII(t *testing.T) {
	for i, text := range append(migrations(), rolesScript) {
		for n, line := range strings.Split(text, "\n") {
			if strings.ContainsFunc(line, func(r rune) bool { return r > '~' || r < ' ' }) {
				t.Errorf("file %d, line %d is not ASCII: %q", i+1, n+1, line)
			}
		}
	}
}

func TestADatabaseThatIsNotInUTF8IsRefusedBeforeAnyWrite(t *testing.T) {
	for _, encoding := range []string{"LATIN1", "SQL_ASCII"} {
		t.Run(encoding, func(t *testing.T) {
			db, w := watched(t, pgtest.Encoded(t, encoding))
			want := fmt.Sprintf("the database %q has the encoding %s, the outbox needs UTF8: create a database with",
				scan[string](t, db, "SELECT current_database()"), encoding)
			for name, err := range map[string]error{
				"Migrate":    Migrate(t.Context(), db),
				"Check":      Check(t.Context(), db, "outbox"),
				"GrantRoles": GrantRoles(t.Context(), db),
			} {
				if !errors.Is(err, ErrUnsupportedEncoding) || !strings.Contains(err.Error(), want) {
					t.Errorf("%s: got %v, want ErrUnsupportedEncoding: %s", name, err, want)
				}
			}
			if got := w.writes(); len(got) > 0 {
				t.Errorf("it wrote %q", got)
			}
			// As psql and goose apply it.
			statements, err := gooseStatements(first())
			if err != nil {
				t.Fatal(err)
			}
			if _, err = db.ExecContext(t.Context(), statements[0]); pgerr.Code(err) != "0A000" || !strings.Contains(err.Error(), encoding) {
				t.Errorf("the first file: got %v, want SQLSTATE 0A000 with the encoding", err)
			}
			if scan[bool](t, db, "SELECT to_regnamespace('outbox') IS NOT NULL") {
				t.Error("there is a schema")
			}
		})
	}
}
