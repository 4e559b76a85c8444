package doctor_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/doctor"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/needs"
)

func TestSettingsThatRiskTheDatabaseAreFound(t *testing.T) {
	needs.CI(t)
	found := diagnosis(t, local(t, map[string]string{"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}))
	one(t, found, "durability", doctor.Critical, "fsync", "ALTER SYSTEM SET fsync = on")
	one(t, found, "durability", doctor.Critical, "full_page_writes")
	one(t, found, "durability", doctor.Info, "synchronous_commit")
}

func TestSettingsOfSessionsThatHurtRelaysAreFound(t *testing.T) {
	needs.Long(t)
	db := local(t, map[string]string{"statement_timeout": "2s", "idle_session_timeout": "10min"})
	found := diagnosis(t, db)
	one(t, found, "session-settings", doctor.Warning, "statement_timeout", "on the server", "ALTER SYSTEM RESET statement_timeout")
	one(t, found, "session-settings", doctor.Info, "idle_session_timeout", "ConnMaxIdleTime")

	db.Do(t, `CREATE ROLE shop; GRANT ALL ON SCHEMA outbox TO shop; GRANT ALL ON ALL TABLES IN SCHEMA outbox TO shop; CREATE ROLE reporting; CREATE ROLE web; GRANT USAGE ON SCHEMA outbox TO web; GRANT INSERT ON outbox.task TO web`)
	for change, want := range map[string]struct {
		severity doctor.Severity
		subject  string
		texts    []string
	}{
		`ALTER ROLE shop SET lock_timeout = '100ms'`:                        {doctor.Warning, "lock_timeout", []string{"lock_timeout is 100ms for the role shop", "ALTER ROLE shop RESET lock_timeout"}},
		`ALTER ROLE shop IN DATABASE postgres SET statement_timeout = 1000`: {doctor.Warning, "statement_timeout", []string{"for the role shop in the database postgres"}},
		`ALTER DATABASE postgres SET idle_session_timeout = '15s'`:          {doctor.Warning, "idle_session_timeout", []string{"for the database postgres", "LISTEN"}},
		`ALTER DATABASE postgres SET session_replication_role = replica`:    {doctor.Critical, "session_replication_role", []string{"triggers do not fire"}},
		`ALTER ROLE web SET default_transaction_read_only = on`:             {doctor.Warning, "default_transaction_read_only", []string{"25006"}},
		`ALTER ROLE web SET statement_timeout = '1s'`:                       {}, // it enqueues only
		`ALTER ROLE reporting SET default_transaction_read_only = on`:       {}, // it does nothing with the outbox
		`ALTER ROLE shop SET statement_timeout = '1min'`:                    {},
		`ALTER DATABASE template1 SET default_transaction_read_only = on`:   {},
		`ALTER ROLE shop SET lock_timeout = 0`:                              {},
	} {
		db.Do(t, change)
		found := diagnosis(t, again(t, db))
		new := slices.DeleteFunc(of(found, "session-settings"), func(f doctor.Finding) bool { return strings.Contains(f.What, "on the server") })
		if want.subject == "" {
			if len(new) > 0 {
				t.Errorf("%s:\n%s", change, printed(new))
			}
		} else {
			f := one(t, new, "session-settings", want.severity, want.subject, want.texts...)
			undo, _, _ := strings.Cut(f.Do, ",")
			db.Do(t, undo)
			if len(of(diagnosis(t, again(t, db)), "session-settings")) != 2 {
				t.Errorf("%s mends nothing", undo)
			}
		}
		db.Do(t, `ALTER ROLE shop RESET ALL; ALTER ROLE web RESET ALL; ALTER ROLE reporting RESET ALL`)
	}
}

func TestWhatTheDoctorsConnectionStringSetsIsFound(t *testing.T) {
	db := direct(t, ill(t).URL+"&default_transaction_read_only=on")
	one(t, diagnosis(t, db), "session-settings", doctor.Warning, "default_transaction_read_only", "in the connection string")
}

func TestAnEncodingOfClientsThatPgxDoesNotSpeakIsFound(t *testing.T) {
	db := ill(t)
	var name string
	if err := db.QueryRow(`SELECT current_database()`).Scan(&name); err != nil {
		t.Fatal(err)
	}
	f := finds(t, db, `ALTER DATABASE `+name+` SET client_encoding = 'LATIN1'`, "session-settings", doctor.Warning, "client_encoding", "pgx", "LATIN1")
	db.Do(t, f.Do)
	fine(t, diagnosis(t, db), "session-settings")
	db.Do(t, `ALTER DATABASE `+name+` SET client_encoding = 'utf-8'`)
	fine(t, diagnosis(t, db), "session-settings")
}

func TestAnEncodingThatTheOutboxDoesNotWorkInIsFound(t *testing.T) {
	found := diagnosis(t, direct(t, pgtest.Encoded(t, "SQL_ASCII")))
	one(t, found, "encoding", doctor.Critical, "SQL_ASCII", "relays do not start", "ENCODING 'UTF8'")
}

func TestAServerThatIsNearlyFullIsFound(t *testing.T) {
	needs.Long(t)
	db := local(t, map[string]string{"max_connections": "23", "superuser_reserved_connections": "3"})
	one(t, diagnosis(t, db), "connections", doctor.OK, "", "of 20 connections are in use")
	db.Do(t, `ALTER DATABASE postgres CONNECTION LIMIT 22`)
	crowd := func(n int) {
		t.Helper()
		for range n {
			if err := direct(t, db.URL+"&application_name=crowd").Ping(); err != nil {
				t.Fatal(err)
			}
		}
	}
	crowd(16)
	found := diagnosis(t, db)
	one(t, found, "connections", doctor.Warning, "", "17 of 20 connections are in use: 1 active, 16 idle", "16 by crowd", "max_connections")
	crowd(3)
	found = diagnosis(t, db)
	one(t, found, "connections", doctor.Critical, "", "20 of 20")
	one(t, found, "connections", doctor.Warning, "postgres", "20 of 22 connections to the database", "CONNECTION LIMIT")
}

func TestServersAreSupportedUntilPostgreSQLEndsThem(t *testing.T) {
	day := func(text string) time.Time {
		at, err := time.Parse(time.DateOnly, text)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	for _, c := range []struct {
		major    int
		on       string
		severity doctor.Severity
		says     string
	}{
		{13, "2026-11-28", doctor.Critical, "PostgreSQL 13.1 is too old"},
		{14, "2026-11-12", doctor.OK, ""},
		{14, "2026-11-28", doctor.Warning, "no fixes for it since 12 November 2026 -> move to a newer major version; the outbox is tested with 14 until November 2027"},
		{15, "2026-11-28", doctor.OK, ""},
		{15, "2027-11-28", doctor.Warning, "PostgreSQL 15 has ended"},
		{18, "2026-11-28", doctor.OK, ""},
		{19, "2026-11-28", doctor.Warning, "PostgreSQL 19.1 is newer than the tested versions, 14 to 18"},
	} {
		severity, what, do := doctor.ServerVersion(c.major, fmt.Sprintf("%d.1", c.major), day(c.on))
		if severity != c.severity || !strings.Contains(what+" -> "+do, c.says) {
			t.Errorf("%d on %s: got %v %s -> %s, want %v %s", c.major, c.on, severity, what, do, c.severity, c.says)
		}
	}
	ended := of(mustCheck(t, ill(t), doctor.At(day("2040-01-01"))), "server-version")
	if len(ended) != 1 || ended[0].Severity != doctor.Warning || !strings.Contains(ended[0].What, "has ended") {
		t.Errorf("in 2040: got\n%s", printed(ended))
	}
}

func mustCheck(t *testing.T, db *database, opts ...doctor.Option) []doctor.Finding {
	t.Helper()
	found, err := doctor.Check(t.Context(), db.DB, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestRulesThatNoSmallServerBreaks(t *testing.T) {
	at := time.Unix(1000, 0)
	for _, c := range []struct{ server, before, after, want time.Duration }{
		{0, 0, 0, 0}, {5, 0, 10, 0}, {20, 0, 10, 10}, {-7, 0, 10, -7},
	} {
		if got := doctor.ClockDifference(at.Add(c.server), at.Add(c.before), at.Add(c.after)); got != c.want {
			t.Errorf("%+v: got %v", c, got)
		}
	}
	for _, c := range []struct {
		rule              func(int64) doctor.Severity
		warning, critical int64
	}{
		{doctor.QueueSeverity, 50_000, 500_000},
		{doctor.WraparoundSeverity, 1_000_000_000, 1_500_000_000},
		{func(used int64) doctor.Severity { return doctor.Fullness(used, 100) }, 85, 95},
	} {
		for n, want := range map[int64]doctor.Severity{
			0: doctor.OK, c.warning - 1: doctor.OK, c.warning: doctor.Warning, c.critical - 1: doctor.Warning, c.critical: doctor.Critical,
		} {
			if got := c.rule(n); got != want {
				t.Errorf("%d: got %v, want %v", n, got, want)
			}
		}
	}
}
