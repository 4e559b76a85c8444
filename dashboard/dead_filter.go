package dashboard

import (
	"net/url"
	"strings"
	"time"

	"github.com/txoutbox/outbox/admin"
)

// deadFilter is what a form says of dead letters.
type deadFilter struct {
	Type, Reason, Error, Older string
}

// The ages that the form offers.
var ages = []struct {
	Name, Text string
	Age        time.Duration
}{{"1h", "1 hour", time.Hour}, {"6h", "6 hours", 6 * time.Hour}, {"24h", "1 day", 24 * time.Hour}, {"168h", "7 days", 168 * time.Hour}, {"720h", "30 days", 720 * time.Hour}}

func deadFilterOf(q url.Values) deadFilter {
	return deadFilter{q.Get("type"), q.Get("reason"), strings.TrimSpace(q.Get("error")), q.Get("older")}
}

func (f deadFilter) query() url.Values {
	q := url.Values{}
	for key, s := range map[string]string{"type": f.Type, "reason": f.Reason, "error": f.Error, "older": f.Older} {
		if s != "" {
			q.Set(key, s)
		}
	}
	return q
}

func (f deadFilter) Any() bool { return f != deadFilter{} }

// Link is an address with the filter in it.
func (f deadFilter) Link(page string, more ...string) string {
	q := f.query()
	for i := 0; i+1 < len(more); i += 2 {
		if more[i+1] != "" {
			q.Set(more[i], more[i+1])
		}
	}
	if len(q) == 0 {
		return "./" + page
	}
	return "./" + page + "?" + q.Encode()
}

func (f deadFilter) age() (time.Duration, error) {
	if f.Older == "" {
		return 0, nil
	}
	for _, a := range ages {
		if a.Name == f.Older {
			return a.Age, nil
		}
	}
	return 0, badRequest("There is no such age in the form.")
}

// filter is what package admin takes.
func (f deadFilter) filter() (out admin.Filter, err error) {
	if len(f.Error) > 1024 {
		return out, badRequest("The text of the error is longer than 1 kB.")
	}
	out = admin.Filter{Type: f.Type, Reason: f.Reason, Error: f.Error}
	out.OlderThan, err = f.age()
	return out, err
}

// Words are the filter as a person would say it, for a page.
func (f deadFilter) Words() string {
	var parts []string
	if f.Type != "" {
		parts = append(parts, "of type "+visible(f.Type))
	}
	if f.Reason != "" {
		parts = append(parts, "for "+reasonText(f.Reason))
	}
	if f.Error != "" {
		parts = append(parts, "with “"+visible(f.Error)+"” in the error")
	}
	for _, a := range ages {
		if a.Name == f.Older {
			parts = append(parts, "dead for more than "+a.Text)
		}
	}
	if len(parts) == 0 {
		return "all"
	}
	return strings.Join(parts, ", ")
}
