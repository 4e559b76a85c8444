package pgdb_test

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/pgdb"
)

// A pool whose password is rotated goes on with the next one: by a function, or by a password file,
// which lib/pq reads for each connection.
func TestAPasswordMayChange(t *testing.T) {
	server := pgtest.Local(t, nil)
	admin := relaytest.Direct(t, server.URL(), "postgres")
	u, err := url.Parse(server.URL())
	relaytest.Must(err)
	file := filepath.Join(t.TempDir(), "pgpass")
	var password atomic.Value
	rotate := func(to string) {
		t.Helper()
		password.Store(to)
		relaytest.Must(os.WriteFile(file, []byte("*:*:*:rotated:"+to+"\n"), 0o600))
		admin.Do(t, `ALTER ROLE rotated PASSWORD '`+to+`'`)
	}
	admin.Do(t, `CREATE ROLE rotated LOGIN`)
	rotate("first")
	u.User = url.User("rotated")
	t.Setenv("PGPASSFILE", file)
	byFunction, err := pgdb.OpenFunc(func(context.Context) (string, error) {
		u := *u
		u.User = url.UserPassword("rotated", password.Load().(string))
		return u.String(), nil
	})
	relaytest.Must(err)
	defer byFunction.Close()
	pools := map[string]*sql.DB{"a function": byFunction, "a password file": openPool(t, u.String())}
	for _, to := range []string{"second", "third"} {
		for name, db := range pools {
			db.SetMaxIdleConns(-1)
			if err := db.PingContext(t.Context()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		rotate(to)
	}
}

func TestAFunctionForTheDSNCostsNeitherTheProcessNorTheCaller(t *testing.T) {
	t.Parallel()
	hangs := make(chan struct{})
	defer close(hangs)
	for want, f := range map[string]func() (string, error){
		"panic: oops":         func() (string, error) { panic("oops") },
		"ended the goroutine": func() (string, error) { runtime.Goexit(); return "", nil },
		"sealed":              func() (string, error) { return "", errors.New("sealed") },
		"deadline exceeded":   func() (string, error) { <-hangs; return "", nil },
		"not shown":           func() (string, error) { return "password='sesame", nil },
		"prefer-standby": func() (string, error) {
			return "password=sesame target_session_attrs=prefer-standby",
				nil
		},
	} {
		db, err := pgdb.OpenFunc(func(context.Context) (string, error) { return f() })
		relaytest.Must(err)
		within := time.Minute
		if want == "deadline exceeded" {
			within = 300 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(t.Context(), within)
		if err := db.PingContext(ctx); err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "sesame") {
			t.Errorf("got %v, want %s", err, want)
		}
		cancel()
		db.Close()
	}
}
