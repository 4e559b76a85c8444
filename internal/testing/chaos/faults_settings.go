//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/testing/chaos/app"
)

// hinderedFor is how long relays may take to get on under hostile settings.
const hinderedFor = time.Minute

// hinder gives the database settings by which PostgreSQL plans badly and compiles nearly all, and
// the app's role a limit of 60 ms for each statement. Sessions begin anew, a relay as well. It
// takes the settings back once the schedule fires.
func hinder(a *arena, r *rand.Rand) (what string, err error) {
	database, began := pq.QuoteIdentifier(a.database), time.Now()
	set := fmt.Sprintf(`ALTER ROLE %s SET statement_timeout = '60ms'`, app.User)
	for _, s := range []string{"enable_seqscan = off", "enable_nestloop = off", "enable_sort = off", "jit = on"} {
		set += fmt.Sprintf(`; ALTER DATABASE %s SET %s`, database, s)
	}
	if err := renewSessions(a, set); err != nil {
		return "", err
	}
	defer func() {
		reset := fmt.Sprintf(`ALTER ROLE %s RESET ALL; ALTER DATABASE %s RESET ALL`, app.User, database)
		err = errors.Join(err, renewSessions(a, reset))
	}()
	s := a.someRelay(r)
	s.kill()
	for first := -1; time.Since(began) < hinderedFor; wait(context.Background(), 200*time.Millisecond) {
		n := 0
		if a.row(&n, `SELECT count(*) FROM tick`) != nil {
			continue // another fault's
		}
		if first < 0 {
			first = n
		}
		if n >= first+3 {
			return fmt.Sprintf("%s began anew, for %v", s.name, time.Since(began).Round(time.Millisecond)), nil
		}
	}
	a.violate("relays that stand still under a database's settings", fmt.Sprint("for ", hinderedFor))
	return "for the whole time", nil
}

// renewSessions changes settings, and ends the sessions that do not have them yet.
func renewSessions(a *arena, statements string) error {
	return errors.Join(a.do(statements),
		a.do(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'`))
}
