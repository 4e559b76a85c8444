package dashboard

import (
	"context"
	"sync"
	"time"

	"github.com/txoutbox/outbox/admin"
)

// span is the range that the query asks for.
func (v *view) span() (name string, d time.Duration, text string) {
	for _, r := range ranges {
		if r.Name == v.r.URL.Query().Get("range") {
			return r.Name, r.Span, r.Text
		}
	}
	return ranges[0].Name, ranges[0].Span, ranges[0].Text
}

const samplesAge = 15 * time.Second // a relay takes one a minute

type sampleKey struct {
	taskType string
	span     time.Duration
}

// charts keeps samples, for all viewers.
type charts struct {
	mu   sync.Mutex
	kept map[sampleKey]keptSamples
}

type keptSamples struct {
	at      time.Time
	samples []admin.Sample
}

// samples are those of the types over the last d, read in one transaction but for those that are
// known.
func (v *view) samples(d time.Duration, types ...string) (map[string][]admin.Sample, error) {
	c := &v.charts
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string][]admin.Sample{}
	var missing []string
	for _, t := range types {
		if k, ok := c.kept[sampleKey{t, d}]; ok && time.Since(k.at) < samplesAge {
			out[t] = k.samples
		} else {
			missing = append(missing, t)
		}
	}
	if len(missing) == 0 {
		return out, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(v.r.Context()), 2*v.config.StatementTimeout)
	defer cancel()
	for key, k := range c.kept {
		if time.Since(k.at) > samplesAge {
			delete(c.kept, key)
		}
	}
	if c.kept == nil {
		c.kept = map[sampleKey]keptSamples{}
	}
	_, err := v.readFor(ctx, func(client *admin.Client) error {
		for _, t := range missing {
			s, err := client.Samples(ctx, t, d)
			if err != nil {
				return err
			}
			c.kept[sampleKey{t, d}] = keptSamples{time.Now(), s}
			out[t] = s
		}
		return nil
	})
	return out, err
}
