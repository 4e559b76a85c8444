package dashboard

import (
	"net/url"
	"strings"
	"time"

	"github.com/txoutbox/outbox/admin"
)

// deadFilter is what a form says of dead letters.
type deadFilter struct{ admin.Filter }

func deadFilterOf(q url.Values) (f deadFilter, err error) {
	f.Filter = admin.Filter{Type: q.Get("type"), Reason: q.Get("reason"), Error: strings.TrimSpace(q.Get("error"))}
	if older := q.Get("older"); older != "" {
		if f.OlderThan, err = time.ParseDuration(older); err != nil {
			return f, badRequest("The age is to be like 24h.")
		}
	}
	if len(f.Error) > 1024 {
		return f, badRequest("The text of the error is longer than 1 kB.")
	}
	return f, nil
}

// query has the filter as deadFilterOf reads it.
func (f deadFilter) query() url.Values {
	q := url.Values{}
	for key, s := range map[string]string{"type": f.Type, "reason": f.Reason, "error": f.Error, "older": f.Older()} {
		if s != "" {
			q.Set(key, s)
		}
	}
	return q
}

// Older is OlderThan in a query.
func (f deadFilter) Older() string {
	if f.OlderThan == 0 {
		return ""
	}
	return f.OlderThan.String()
}

// searches reports whether only the rows tell which pass.
func (f deadFilter) searches() bool { return f.Reason != "" || f.Error != "" || f.OlderThan != 0 }

func (f deadFilter) Any() bool { return f.String() != "all" }

// Link is an address with the filter in it, and one value more.
func (f deadFilter) Link(page, key, value string) string {
	q := f.query()
	if value != "" {
		q.Set(key, value)
	}
	return address(page, q)
}
