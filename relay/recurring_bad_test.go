package relay_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

func TestBadSchedulesAreRefusedByNew(t *testing.T) {
	t.Parallel()
	db := open(t, "postgres://nobody@localhost:1/none")
	good, year := relaytest.TypeFired.New(payload{}), relay.Every(yearly)
	for want, one := range map[string]relay.Schedule{
		`Name: it is empty`:             {Timing: year, Task: good},
		`Name: '\n' does not print`:     {Name: "a\n", Timing: year, Task: good},
		`Name: 129 bytes, at most 128`:  {Name: strings.Repeat("a", 129), Timing: year, Task: good},
		`there are two of this Name`:    {Name: "twice", Timing: year, Task: good},
		`Timing: it is nil`:             {Name: "a", Task: good},
		`Spec: it is empty: give the`:   {Name: "a", Timing: nextFunc(year.Next), Task: good},
		`Spec: '\x00' does not print`:   {Name: "a", Timing: year, Task: good, Spec: "\x00"},
		`the Timing Every(0s) must be`:  {Name: "a", Timing: relay.Every(0), Task: good},
		`the Timing Every(-1s) must be`: {Name: "a", Timing: relay.Every(-time.Second), Task: good},
		`the CatchUp 7 must be`:         {Name: "a", Timing: year, Task: good, CatchUp: 7},
		`Task: outbox: invalid task ty`: {Name: "a", Timing: year},
		`Task: outbox: invalid payload`: {Name: "a", Timing: year, Task: outbox.NewTask{Type: "A", Payload: func() {}}},
		`Task: outbox: invalid option`: {Name: "a", Timing: year,
			Task: relaytest.TypeFired.New(payload{}, outbox.Priority(99999))},
		`Timing: its Next panicked: panic: boom`: {Name: "a", Spec: "1", Task: good,
			Timing: nextFunc(func(time.Time) time.Time { panic("boom") })},
	} {
		s := relay.Schedules{{Name: "twice", Timing: year, Task: good}, one}
		want = fmt.Sprintf("Config.Schedules[1] %.32q: %s", one.Name, want)
		_, err := relay.New(db.DB, idle(), relay.Config{Schedules: s})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestSchedulesWorkInASchemaOfAnotherNameAndWithTheirOptions(t *testing.T) {
	t.Parallel()
	db := open(t, relaytest.Migrated(t, schema.Schema("other")))
	config := scheduled(relay.Schedule{Name: "tick", Timing: relay.Every(yearly),
		Task: relaytest.TypeFired.New(payload{N: 3}, outbox.Priority(4), outbox.MaxAttempts(5),
			outbox.Headers(map[string]string{"k": "v"}), outbox.After(time.Hour))})
	config.Schema = "other"
	once(t, db, idle(), config)
	db.Do(t, `UPDATE other.schedule SET next_at = now()`)
	once(t, db, idle(), config)
	db.wantText(t, `4 5 {"k": "v"} {"N": 3} t ready`, `SELECT concat_ws(' ', priority, max_attempts, headers, payload,
		run_at <= now(), state) FROM other.task`)
}
