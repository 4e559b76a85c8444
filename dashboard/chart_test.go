package dashboard

import (
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
)

func TestARateIsThatOfTheLatestMinutes(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ago := func(seconds int) time.Time { return now.Add(-time.Duration(seconds) * time.Second) }
	type sample struct{ age, finished int }
	for name, c := range map[string]struct {
		samples []sample // before 1,200 were done
		began   int      // the oldest living relay; negative: there is none
		known   bool
		want    float64 // in a minute
	}{
		"in the first minute":                              {[]sample{{3, 0}}, 3, false, 0},
		"since the latest sample":                          {[]sample{{330, 0}, {30, 1190}}, 900, true, 20},
		"since the one before, if the latest is too young": {[]sample{{90, 1080}, {1, 1200}}, 900, true, 80},
		"after a restart":                                  {[]sample{{130, 600}, {70, 900}, {1, 1200}}, 2, false, 0},
		"after a restart, as soon as it is known":          {[]sample{{130, 600}, {70, 1200}, {25, 1200}}, 40, true, 0},
		"after an hour without a relay":                    {[]sample{{3600, 900}, {3540, 1200}}, 3, false, 0},
		"without a relay":                                  {[]sample{{130, 600}, {70, 900}, {10, 1200}}, -1, false, 0},
	} {
		var samples []admin.Sample
		for _, s := range c.samples {
			samples = append(samples, admin.Sample{At: ago(s.age), Finished: int64(s.finished)})
		}
		relays := []admin.Relay{{Alive: c.began >= 0, StartedAt: ago(c.began)}}
		h := history(samples, admin.Type{TypeStats: outbox.TypeStats{Finished: 1200}}, now)
		got := rateOf(h, relays)
		if text := charts(h, got, time.Hour, "")[0].Current; (text == "1,200") == c.known {
			t.Errorf("%s: the page has %s", name, text)
		}
		if got.Known != c.known || got.Finished != c.want {
			t.Errorf("%s: got %+v, want %v a minute", name, got, c.want)
		}
	}
}
