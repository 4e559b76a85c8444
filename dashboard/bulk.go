package dashboard

import (
	"context"
	"net/url"
	"strconv"
	"time"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// bulkData is what the page shows that asks before a bulk action, and how far it has come.
type bulkData struct {
	Do     string // redrive, purge
	Filter deadFilter
	Until  int64 // µs since 1970: letters that died later are not meant
	Total  int64
	More   bool // there may be more than Total
	Begun  bool
	Done   int64
	After  string // where it goes on
	Left   bool   // some that are meant are there yet
	Going  bool   // the page's script goes on by itself
}

// Share is how far it is, in percent; of no use where it is not known how many they are.
func (d bulkData) Share() int {
	if !d.Left {
		return 100
	}
	if d.Total <= 0 {
		return 0
	}
	return int(min(100*d.Done/d.Total, 99))
}

func bulkOf(q url.Values) (d bulkData, err error) {
	d = bulkData{Do: q.Get("do"), Filter: deadFilterOf(q), After: q.Get("after")}
	if d.Do != "redrive" && d.Do != "purge" {
		return d, badRequest("Dead letters can be redriven or purged.")
	}
	for key, to := range map[string]*int64{"until": &d.Until, "total": &d.Total, "done": &d.Done} {
		if s := q.Get(key); s != "" {
			if *to, err = strconv.ParseInt(s, 10, 64); err != nil || *to < 0 || *to > 253402300799000000 {
				return d, badRequest("The form has a number that cannot be.")
			}
		}
	}
	d.More, d.Left = q.Get("more") == "1", q.Get("left") == "1"
	return d, nil
}

// bulk asks whether to do it, with the number of dead letters that are meant; or says how far it
// has come.
func (v *view) bulk() error {
	q := v.r.URL.Query()
	d, err := bulkOf(q)
	if err != nil {
		return err
	}
	if d.Begun = q.Get("done") != ""; !d.Begun {
		d.After = ""
		if d.Total, d.More, err = v.countDead(d.Filter); err != nil {
			return err
		}
		d.Until = v.Now.UnixMicro()
	}
	return v.showBulk(d)
}

func (v *view) showBulk(d bulkData) error {
	v.Template, v.Title, v.Section, v.Data, v.Live = "bulk.html", map[string]string{"redrive": "Redrive", "purge": "Purge"}[d.Do]+" dead letters", "dead", d, false
	return v.show(200)
}

// countDead counts those that pass the filter: from the counters where these know it, else by
// reading them, for as long as a search may take and, in pages, as long again. more: there may be
// more.
func (v *view) countDead(f deadFilter) (n int64, more bool, err error) {
	filter, err := f.filter()
	if err != nil {
		return 0, false, err
	}
	if f == (deadFilter{Type: f.Type}) {
		err = v.read(func(ctx context.Context, c *admin.Client) error {
			types, err := c.Types(ctx)
			for _, t := range types {
				if f.Type == "" || f.Type == t.Type {
					n += t.Dead
				}
			}
			return err
		})
		return n, false, err
	}
	err = v.readWithin(min(v.patience, v.config.StatementTimeout), func(ctx context.Context, c *admin.Client) (err error) {
		n, _, err = c.CountDeadLetters(ctx, filter, admin.Page{})
		return err
	})
	if pgerr.Code(err) != tookTooLong {
		return n, false, err
	}
	err = v.read(func(ctx context.Context, c *admin.Client) error {
		after := ""
		return search(v.patience, func(look int) (enough bool, err error) {
			counted, next, err := c.CountDeadLetters(ctx, filter, admin.Page{After: after, Look: look})
			if err != nil {
				return false, err
			}
			n, after, more = n+counted, next, next != ""
			return !more, nil
		})
	})
	if pgerr.Code(err) == tookTooLong {
		return n, true, nil
	}
	return n, more, err
}

// Without script a request of the page works for this long, and with it for less, as it goes on by
// itself.
const (
	bulkFor       = 5 * time.Second
	bulkForScript = time.Second
)

// doBulk redrives or purges for a while, 1,000 dead letters in a transaction, each with its entry
// in the audit log, and then says what is left, and where the next request goes on. A request ends
// with the transaction in which that while is over, and who closes the page ends it.
func (v *view) doBulk() error {
	d, err := bulkOf(v.r.PostForm)
	if err != nil {
		return err
	}
	filter, err := d.Filter.filter()
	if err != nil {
		return err
	}
	if d.Until == 0 {
		return badRequest("The form does not say until when.")
	}
	if err := v.read(func(context.Context, *admin.Client) error { return nil }); err != nil {
		return err
	}
	d.Until = min(d.Until, v.Now.UnixMicro()) // an address can say another time, but not that those are meant that die from now on
	filter.DiedBefore = time.UnixMicro(d.Until).Add(-filter.OlderThan)
	filter.OlderThan = 0
	limit := bulkFor
	if v.htmx() {
		limit = bulkForScript
	}
	do := (*admin.Client).Redrive
	if d.Do == "purge" {
		do = (*admin.Client).Purge
	}
	before := d.After
	target := d.Filter.Words() + ", died before " + stamp(time.UnixMicro(d.Until))
	for start := time.Now(); ; {
		var next string
		n, err := v.act(d.Do, target, func(ctx context.Context, c *admin.Client) (int64, error) {
			ids, to, err := do(c, ctx, filter, admin.Page{After: d.After, Look: 10_000})
			next = to
			return int64(len(ids)), err
		})
		if err != nil {
			if d.After == before {
				return err
			}
			_, v.Warning = v.explain(err) // and what was done is done
			d.Left = true
			break
		}
		d.Done, d.After = d.Done+n, next
		if d.Left = next != ""; !d.Left || time.Since(start) > limit || v.r.Context().Err() != nil {
			break
		}
	}
	if v.htmx() || v.Warning != "" {
		d.Begun, d.Going = true, d.Left && v.Warning == ""
		return v.showBulk(d)
	}
	q := d.Filter.query()
	q.Set("do", d.Do)
	q.Set("done", strconv.FormatInt(d.Done, 10))
	q.Set("total", strconv.FormatInt(d.Total, 10))
	q.Set("until", strconv.FormatInt(d.Until, 10))
	if d.More {
		q.Set("more", "1")
	}
	if d.Left {
		q.Set("left", "1")
		q.Set("after", d.After)
	}
	return v.redirect("bulk", q)
}
