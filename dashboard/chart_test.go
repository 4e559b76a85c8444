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
		known   bool
		want    float64 // in a minute
	}{
		"in the first minute":                              {[]sample{{3, 0}}, false, 0},
		"since the latest sample":                          {[]sample{{330, 0}, {30, 1190}}, true, 20},
		"since the one before, if the latest is too young": {[]sample{{90, 1080}, {1, 1200}}, true, 80},
		"after an hour without a relay":                    {[]sample{{3600, 900}, {3540, 1200}}, false, 0},
	} {
		var samples []admin.Sample
		for _, s := range c.samples {
			samples = append(samples, admin.Sample{At: ago(s.age), Finished: int64(s.finished)})
		}
		h := history(samples, admin.Type{TypeStats: outbox.TypeStats{Finished: 1200}}, now)
		got := rateOf(h)
		text := "–"
		if c.known {
			text = decimal(c.want) + "/min"
		}
		for i, got := range []string{charts(h, got, time.Hour, "")[0].Current, got.FinishedText()} {
			if got != text {
				t.Errorf("%s: text %d is %s, want %s", name, i, got, text)
			}
		}
		if got.Known != c.known || got.Finished != c.want {
			t.Errorf("%s: got %+v, want %v a minute", name, got, c.want)
		}
	}
}
