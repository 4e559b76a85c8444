package schema

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
)

const unsaid = -100

// newer adds versions that newer code has applied, each with the oldest code that may run beside it,
// both as the distance from this code's version.
func newer(t *testing.T, db *sql.DB, versions ...[2]int) {
	t.Helper()
	for _, v := range versions {
		oldest := "NULL"
		if v[1] != unsaid {
			oldest = fmt.Sprint(Version() + v[1])
		}
		run(t, db, fmt.Sprintf("INSERT INTO outbox.migration (version, oldest_version) VALUES (%d, %s)", Version()+v[0], oldest))
	}
}

func TestOlderCodeRunsBesideANewerSchemaThatAllowsIt(t *testing.T) {
	for _, c := range []struct {
		name     string
		versions [][2]int
		needs    int // what the error says, as the distance; 0: no error
	}{
		{"one that allows this code", [][2]int{{1, 0}}, 0},
		{"two of which each allows the one before", [][2]int{{1, 0}, {2, 1}}, 1},
		{"two that allow this code", [][2]int{{1, 0}, {2, 0}}, 0},
		{"one that allows its own code only", [][2]int{{1, 1}}, 1},
		{"the second does not allow it", [][2]int{{1, 0}, {2, 2}, {3, 0}}, 2},
		{"one that does not say", [][2]int{{1, unsaid}}, 1},
		{"one that does not say below one that allows", [][2]int{{1, unsaid}, {2, 0}}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			db, w := watched(t, pgtest.Database(t))
			migrate(t, db)
			newer(t, db, c.versions...)
			w.sent = nil
			newest := Version() + c.versions[len(c.versions)-1][0]
			errs := map[string]error{"Migrate": Migrate(t.Context(), db), "Check": Check(t.Context(), db), "GrantRoles": GrantRoles(t.Context(), db)}
			for call, err := range errs {
				if c.needs == 0 && err != nil {
					t.Errorf("%s: %v", call, err)
				}
				want := fmt.Sprintf(`the schema "outbox" is at version %d, which needs code that knows version %d; this code knows %d: `+
					`after a rollback run the newer code again, or do what its changelog says; else upgrade the module`,
					newest, Version()+c.needs, Version())
				if c.needs > 0 && (!errors.Is(err, ErrNewer) || !strings.Contains(err.Error(), want)) {
					t.Errorf("%s: got %v, want ErrNewer: %s", call, err, want)
				}
				if c.needs > 0 && strings.Count(err.Error(), "schema: ") != 1 {
					t.Errorf("%s names its package twice: %v", call, err)
				}
			}
			if got := w.writes(); len(got) > 0 {
				t.Errorf("it wrote %q", got)
			}
			state, _ := Inspect(t.Context(), db)
			if state.Version != newest || c.needs > 0 && state.OldestVersion != Version()+c.needs {
				t.Errorf("got %+v, want version %d", state, newest)
			}
		})
	}
}

// Replicas of the old and the new code restart in any order, while the new one migrates.
func TestOldAndNewCodeMigrateAtOnce(t *testing.T) {
	url := pgtest.Database(t)
	allows := second(`SELECT 1`) + `UPDATE outbox.migration SET oldest_version = 1 WHERE version = 2;`
	older, newer := []string{first()}, []string{first(), allows}
	start := make(chan struct{})
	var all sync.WaitGroup
	for i := range 8 {
		db := open(t, url)
		texts := older
		if i%2 == 0 {
			texts = newer
		}
		all.Go(func() {
			<-start
			for range 3 {
				if err := Migrate(t.Context(), db, files(texts...)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	close(start)
	all.Wait()
	if got := scan[int](t, open(t, url), "SELECT max(version) FROM outbox.migration"); got != 2 {
		t.Errorf("got version %d, want 2", got)
	}
}

// As psql applies them, in a schema of another name.
func TestTheOldestVersionIsReadInAnySchema(t *testing.T) {
	db := open(t, pgtest.Database(t))
	script, err := SQL(Schema("select"))
	if err != nil {
		t.Fatal(err)
	}
	run(t, db, script)
	run(t, db, fmt.Sprintf(`INSERT INTO "select".migration (version, oldest_version) VALUES (%d, %d)`, Version()+1, Version()))
	if err := errors.Join(Migrate(t.Context(), db, Schema("select")), Check(t.Context(), db, Schema("select"))); err != nil {
		t.Error(err)
	}
}

func TestANewerServerIsLetPassAndSaid(t *testing.T) {
	db, w := watched(t, pgtest.Database(t))
	w.rewrite = func(q string) string {
		q = strings.ReplaceAll(q, "current_setting('server_version_num')", "'190001'")
		return strings.ReplaceAll(q, "current_setting('server_version')", "'19.1'")
	}
	migrate(t, db)
	state, err := Inspect(t.Context(), db)
	if err != nil || !state.UntestedServer || state.Server != "19.1" {
		t.Errorf("got %+v, %v, want the untested server 19.1", state, err)
	}
	w.rewrite = nil
	if state, err = Inspect(context.Background(), db); err != nil || state.UntestedServer {
		t.Errorf("got %+v, %v, want a tested server", state, err)
	}
}
