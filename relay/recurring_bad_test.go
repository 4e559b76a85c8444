package relay_test

import (
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
	good := relaytest.TypeFired.New(payload{})
	for want, s := range map[string]relay.Schedules{
		`Config.Schedules[0] "": Name: it is empty`: {{Timing: relay.Every(yearly), Task: good}},
		`Config.Schedules[1] "a": there are two of this Name`: {{Name: "a",
			Timing: relay.Every(yearly), Task: good}, {Name: "a", Timing: relay.Every(yearly), Task: good}},
		`Config.Schedules[0] "a\n": Name: '\n' does not print`: {{Name: "a\n",
			Timing: relay.Every(yearly), Task: good}},
		`Name: 129 bytes, at most 128`: {{Name: strings.Repeat("a", 129), Timing: relay.Every(yearly), Task: good}},
		`Config.Schedules[0] "a": Timing: it is nil`: {{Name: "a",
			Task: good}},
		`Config.Schedules[0] "a": Spec: it is empty: give the text of the cron expression`: {{Name: "a",
			Timing: nextFunc(relay.Every(yearly).Next), Task: good}},
		`Config.Schedules[0] "a": the Timing Every(0s) must be at least 10ms, in whole microseconds`: {{Name: "a",
			Timing: relay.Every(0), Task: good}},
		`Config.Schedules[0] "a": the Timing Every(-1s) must be at least 10ms, in whole microseconds`: {{Name: "a",
			Timing: relay.Every(-time.Second), Task: good}},
		`Timing: its Next panicked: panic: boom`: {{Name: "a",
			Timing: nextFunc(func(time.Time) time.Time { panic("boom") }), Spec: "1", Task: good}},
		`Config.Schedules[0] "a": the CatchUp 7 must be CatchUpOnce or CatchUpAll`: {{Name: "a",
			Timing: relay.Every(yearly), Task: good, CatchUp: 7}},
		`Config.Schedules[0] "a": Spec: '\x00' does not print`: {{Name: "a",
			Timing: relay.Every(yearly), Task: good, Spec: "\x00"}},
		`Config.Schedules[0] "a": Task: outbox: invalid task type: it is empty`: {{Name: "a",
			Timing: relay.Every(yearly)}},
		`Config.Schedules[0] "a": Task: outbox: invalid payload`: {{Name: "a",
			Timing: relay.Every(yearly), Task: outbox.NewTask{Type: "A", Payload: func() {}}}},
		`Config.Schedules[0] "a": Task: outbox: invalid option: Priority(99999): must be between -32`: {{Name: "a",
			Timing: relay.Every(yearly), Task: relaytest.TypeFired.New(payload{}, outbox.Priority(99999))}},
	} {
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
