package doctor_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/doctor"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
)

func TestSettingsThatRiskTheDatabaseAreFound(t *testing.T) {
	needs.CI(t)
	server := pgtest.Local(t, map[string]string{"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"})
	found := diagnosis(t, direct(t, server.URL()))
	one(t, found, "durability", doctor.Critical, "fsync", "ALTER SYSTEM SET fsync = on")
	one(t, found, "durability", doctor.Critical, "full_page_writes")
	one(t, found, "durability", doctor.Info, "synchronous_commit")
}

func TestSettingsOfSessionsThatHurtRelaysAreFound(t *testing.T) {
	needs.Long(t)
	server := pgtest.Local(t, map[string]string{"statement_timeout": "2s", "idle_session_timeout": "10min"})
	if err := relaytest.Migrate(server.URL()); err != nil {
		t.Fatal(err)
	}
	db := direct(t, server.URL())
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
		found := diagnosis(t, direct(t, server.URL()))
		var new []doctor.Finding
		for _, f := range of(found, "session-settings") {
			if !strings.Contains(f.What, "on the server") {
				new = append(new, f)
			}
		}
		if want.subject == "" {
			if len(new) > 0 {
				t.Errorf("%s:\n%s", change, printed(new))
			}
		} else {
			f := one(t, new, "session-settings", want.severity, want.subject, want.texts...)
			undo, _, _ := strings.Cut(f.Do, ",")
			db.Do(t, undo)
			if len(of(diagnosis(t, direct(t, server.URL())), "session-settings")) != 2 {
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

func TestAnEncodingThatTheOutboxDoesNotWorkInIsFound(t *testing.T) {
	found := diagnosis(t, direct(t, pgtest.Encoded(t, "SQL_ASCII")))
	one(t, found, "encoding", doctor.Critical, "SQL_ASCII", "relays do not start", "ENCODING 'UTF8'")
}

func TestAServerThatIsNearlyFullIsFound(t *testing.T) {
	needs.Long(t)
	server := pgtest.Local(t, map[string]string{"max_connections": "23", "superuser_reserved_connections": "3"})
	if err := relaytest.Migrate(server.URL()); err != nil {
		t.Fatal(err)
	}
	db := direct(t, server.URL())
	one(t, diagnosis(t, db), "connections", doctor.OK, "", "of 20 connections are in use")
	db.Do(t, `ALTER DATABASE postgres CONNECTION LIMIT 22`)
	crowd := func(n int) {
		t.Helper()
		for range n {
			if err := direct(t, server.URL()+"&application_name=crowd").Ping(); err != nil {
				t.Fatal(err)
			}
		}
	}
	crowd(16)
	found := diagnosis(t, db)
	f := one(t, found, "connections", doctor.Warning, "", "17 of 20 connections are in use: 1 active, 16 idle", "16 by crowd", "max_connections")
	if strings.Contains(fmt.Sprint(f), "password") {
		t.Errorf("%+v", f)
	}
	crowd(3)
	found = diagnosis(t, db)
	one(t, found, "connections", doctor.Critical, "", "20 of 20")
	one(t, found, "connections", doctor.Warning, "postgres", "20 of 22 connections to the database", "CONNECTION LIMIT")
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
	for used, want := range map[int64]doctor.Severity{0: doctor.OK, 49_999: doctor.OK, 50_000: doctor.Warning, 500_000: doctor.Critical, 1_000_000: doctor.Critical} {
		if got := doctor.QueueSeverity(used); got != want {
			t.Errorf("%d millionths of the queue: got %v, want %v", used, got, want)
		}
	}
	for age, want := range map[int64]doctor.Severity{200_000_000: doctor.OK, 999_999_999: doctor.OK, 1_000_000_000: doctor.Warning, 1_500_000_000: doctor.Critical, 2_100_000_000: doctor.Critical} {
		if got := doctor.WraparoundSeverity(age); got != want {
			t.Errorf("age %d: got %v, want %v", age, got, want)
		}
	}
	for used, want := range map[int64]doctor.Severity{0: doctor.OK, 84: doctor.OK, 85: doctor.Warning, 95: doctor.Critical, 100: doctor.Critical} {
		if got := doctor.Fullness(used, 100); got != want {
			t.Errorf("%d of 100: got %v, want %v", used, got, want)
		}
	}
}
