package dashboard_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/dashboard"
)

// ran is a database in which so many tasks of the type A were done, and the samples that a relay
// took of that: by the seconds of their age, the number that was done then.
func ran(t *testing.T, done int, samples map[int]int) *site {
	t.Helper()
	db := newDatabase(t)
	db.Do(t, `INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind) VALUES (0, $1, 'A', 'ready')`, done)
	for age, finished := range samples {
		for _, taskType := range []string{"", "A"} {
			db.Do(t, `INSERT INTO outbox.sample (at, task_type, ready, scheduled, leased, waiting, dead, finished, failed, oldest_ready)
				VALUES (now() - $1 * interval '1 second', $2, 0, 0, 0, 0, 0, $3, 0, 0)`, age, taskType, finished)
		}
	}
	return serve(t, db, dashboard.Config{Authorize: as(dashboard.View)})
}

// relay is a living relay that began so many seconds ago.
func (s *site) relay(t *testing.T, age int) {
	t.Helper()
	s.db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, started_at, alive_until, task_types) VALUES (gen_random_uuid(), 'h', 1, now() - $1 * interval '1 second', now() + interval '1 hour', '{A}')`, age)
}

func TestTheFirstMinuteShowsCounts(t *testing.T) {
	t.Parallel()
	s := ran(t, 12, map[int]int{3: 0}) // as the relay began
	s.relay(t, 3)
	overview := s.get(t, "")
	overview.has(t, 200, "Finished 12 Failed runs 0 ", "A 0 0 0 0 0 12 0 ")
	if n := strings.Count(overview.text(), "–"); n != 2 { // the age of the oldest ready task, as there is none
		t.Errorf("%d times there is a – for a number, want 2: %s", n, overview.text())
	}
	// The tasks that were done are what there is to see of the type.
	s.get(t, "type?name=A").has(t, 200, "Finished 12", "handlers.Keep keeps them")
}

func TestARateIsThatOfTheLatestMinutes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		samples map[int]int // before 1,200 were done
		began   int         // the relay
		want    string      // in a minute
	}{
		"since the latest sample":                           {map[int]int{330: 0, 30: 1190}, 900, "[12][\\d.]+"},
		"since the one before, as the latest is too young":  {map[int]int{90: 1080, 1: 1200}, 900, "[78][\\d.]+"},
		"after a restart, of what the new relay did":        {map[int]int{130: 600, 70: 900, 1: 1200}, 2, ""},
		"after a restart, as soon as it is known":           {map[int]int{130: 600, 70: 1200, 25: 1200}, 40, "0"},
		"after a restart, with a sample of the old process": {map[int]int{60: 900}, 2, ""},
		"after an hour without a relay":                     {map[int]int{3600: 900, 3540: 1200}, 3, ""},
		"without a relay":                                   {map[int]int{130: 600, 70: 900, 10: 1200}, -1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := ran(t, 1200, c.samples)
			if c.began >= 0 {
				s.relay(t, c.began)
			}
			for _, path := range []string{"", "type?name=A"} {
				text, want := s.get(t, path).text(), `Finished 1,200 (`+c.want+`)/min `
				if c.want == "" {
					want = `Finished 1,200 Failed runs 0 [^/]* Finished 1,200 `
				}
				if !regexp.MustCompile(want).MatchString(text) {
					t.Errorf("%q does not show %s: %s", path, want, text)
				}
				if rates := regexp.MustCompile(`\S+/min`).FindAllString(text, -1); c.want == "" && rates != nil {
					t.Errorf("%q shows the rates %s", path, fmt.Sprint(rates))
				}
			}
		})
	}
}
