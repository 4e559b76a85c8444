package doctor_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/doctor"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

func TestSettingsThatRiskTheDatabaseAreFound(t *testing.T) {
	needs.CI(t)
	db := local(t, map[string]string{"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"})
	has(t, diagnosis(t, db), "critical durability fsync … ALTER SYSTEM SET fsync = on",
		"critical durability full_page_writes", "info durability synchronous_commit")
}

func TestSettingsOfSessionsThatHurtRelaysAreFound(t *testing.T) {
	needs.Long(t)
	db := local(t, map[string]string{"statement_timeout": "2s", "idle_session_timeout": "10min"})
	has(t, diagnosis(t, db), "warning session-settings statement_timeout … on the server … ALTER SYSTEM RESET "+
		"statement_timeout",
		"info session-settings idle_session_timeout … ConnMaxIdleTime")
	db.Do(t, `CREATE ROLE shop; GRANT ALL ON SCHEMA outbox TO shop; GRANT ALL ON ALL TABLES IN SCHEMA outbox TO shop;
		CREATE ROLE reporting; CREATE ROLE web; GRANT USAGE ON SCHEMA outbox TO web;
		GRANT INSERT ON outbox.task TO web`)
	for change, want := range map[string]string{
		`ROLE shop SET lock_timeout = '100ms'`: "warning session-settings lock_timeout … " +
			"lock_timeout is 100ms for the role shop … ALTER ROLE shop RESET lock_timeout",
		`ROLE shop IN DATABASE postgres SET statement_timeout = 1000`: "warning session-settings statement_timeout … " +
			"for the role shop in the database postgres",
		`DATABASE postgres SET idle_session_timeout = '15s'`: "warning session-settings idle_session_timeout … " +
			"for the database postgres … LISTEN",
		`DATABASE postgres SET session_replication_role = replica`: "critical session-settings " +
			"session_replication_role … " +
			"triggers do not fire",
		`DATABASE postgres SET client_encoding = 'LATIN1'`: "warning session-settings client_encoding … pgx " +
			"… LATIN1",
		`DATABASE postgres SET enable_nestloop = off`:     "warning session-settings enable_nestloop … for the database postgres",
		`ROLE shop SET jit_above_cost = 10`:               "warning session-settings jit_above_cost … for the role shop",
		`DATABASE postgres SET client_encoding = 'utf-8'`: "",
		`ROLE web SET default_transaction_read_only = on`: "warning session-settings " +
			"default_transaction_read_only … 25006",
		`ROLE web SET statement_timeout = '1s'`:                     "", // it enqueues only
		`ROLE reporting SET default_transaction_read_only = on`:     "", // it does nothing with the outbox
		`ROLE shop SET statement_timeout = '1min'`:                  "",
		`DATABASE template1 SET default_transaction_read_only = on`: "",
		`ROLE shop SET lock_timeout = 0`:                            "",
	} {
		db.Do(t, `ALTER `+change)
		found := slices.DeleteFunc(diagnosis(t, again(t, db)), func(f doctor.Finding) bool {
			return f.Check != "session-settings" || strings.Contains(f.Message, "on the server")
		})
		if want == "" {
			if len(found) > 0 {
				t.Errorf("%s:\n%s", change, printed(found))
			}
			db.Do(t, `ALTER ROLE shop RESET ALL; ALTER ROLE web RESET ALL; ALTER ROLE reporting RESET ALL`)
			db.Do(t, `ALTER DATABASE postgres RESET ALL`)
			continue
		}
		undo, _, _ := strings.Cut(only(t, found, want).Remedy, ",")
		db.Do(t, undo)
		if n := strings.Count(printed(diagnosis(t, again(t, db))), " session-settings "); n != 2 {
			t.Errorf("%s mends nothing", undo)
		}
	}
	db = direct(t, ill(t).URL+"&default_transaction_read_only=on")
	has(t, diagnosis(t, db), "warning session-settings default_transaction_read_only … in the connection string")
}

func TestAServerThatIsNearlyFullIsFound(t *testing.T) {
	needs.Long(t)
	db := local(t, map[string]string{"max_connections": "23", "superuser_reserved_connections": "3"})
	has(t, diagnosis(t, db), "ok connections … of 20 connections are in use")
	crowd := func(n int) {
		t.Helper()
		for range n {
			if err := direct(t, db.URL+"&application_name=crowd").Ping(); err != nil {
				t.Fatal(err)
			}
		}
	}
	crowd(16)
	has(t, diagnosis(t, db), "warning connections … 17 of 20 connections are in use: 1 active, 16 idle … 16 by crowd "+
		"… max_connections")
	crowd(3)
	has(t, diagnosis(t, db), "critical connections … 20 of 20")
}

func TestARoleAtItsLimitOfConnectionsIsTold(t *testing.T) {
	db := ill(t)
	app, role := as(t, db)
	db.Do(t, `ALTER ROLE `+role+` CONNECTION LIMIT 0`)
	_, err := doctor.Check(t.Context(), app.DB)
	if err == nil || !strings.Contains(err.Error(), "doctor: connect: ") ||
		!strings.Contains(err.Error(), "the limit of the role or of the database, is reached") {
		t.Errorf("got %v", err)
	}
}

func TestARoleShortOfConnectionsIsFound(t *testing.T) {
	db := ill(t)
	app, role := as(t, db)
	db.Do(t, `ALTER ROLE `+role+` CONNECTION LIMIT 1`)
	if err := app.Ping(); err != nil {
		t.Fatal(err)
	}
	has(t, diagnosis(t, db), "critical connections "+role+" … 1 of 1 connections of the role … ALTER ROLE "+role)
}

func TestTheServersTimeAndAgeAreJudged(t *testing.T) {
	db := ill(t)
	fine(t, diagnosis(t, db), "clock", "wraparound", "future-times")
	has(t, diagnosis(t, db, doctor.At(time.Now().Add(-time.Minute))), "info clock … ahead of … the option After")
	has(t, diagnosis(t, db, doctor.At(time.Now().Add(time.Minute))), "info clock … behind")
	found := diagnosis(t, db, doctor.At(time.Now().AddDate(30, 0, 0)), doctor.Aged(1))
	for _, want := range []string{`warning server-version .* has ended`, `critical wraparound .*VACUUM \(FREEZE\)`} {
		if !regexp.MustCompile(want).MatchString(printed(found)) {
			t.Errorf("no finding is %s:\n%s", want, printed(found))
		}
	}
}

// A session that listens reads notifications only between its transactions.
func TestAQueueOfNotificationsThatFillsUpIsFound(t *testing.T) {
	db := ill(t)
	reader := direct(t, db.URL)
	reader.SetMaxOpenConns(1)
	reader.Do(t, `LISTEN crowded`)
	tx, err := reader.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	db.Do(t, `SELECT pg_notify('crowded', n || repeat('x', 7000)) FROM generate_series(1, 9) AS n`) // pages of 8 kB
	found := diagnosis(t, db, doctor.Queued(1e-7))
	has(t, found, "critical notification-queue … once it is full, commits that notify fail … see held-transaction")
	has(t, diagnosis(t, db, doctor.Queued(1)), "ok notification-queue")
}

func TestAnotherVersionOfTheOrderOfTextIsFound(t *testing.T) {
	address := pgtest.ICU(t, "en")
	if err := relaytest.Migrate(address); err != nil {
		t.Fatal(err)
	}
	db := direct(t, address, "postgres")
	fine(t, diagnosis(t, db), "collation-version")
	db.Do(t, `UPDATE pg_database SET datcollversion = '1.2' WHERE datname = current_database()`)
	f := has(t, diagnosis(t, db), "warning collation-version … of version 1.2 … REFRESH COLLATION VERSION")
	_, refresh, _ := strings.Cut(f.Remedy, "then ")
	refresh, _, _ = strings.Cut(refresh, ".")
	db.Do(t, refresh)
	fine(t, diagnosis(t, db), "collation-version")
}
