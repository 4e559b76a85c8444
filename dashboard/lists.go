package dashboard

import (
	"context"
	"net/http"

	"github.com/txoutbox/outbox/admin"
)

func (v *view) schedules() error {
	var d struct{ Schedules []admin.Schedule }
	err := v.read(func(ctx context.Context, c *admin.Client) (err error) {
		d.Schedules, err = c.Schedules(ctx)
		return err
	})
	if err != nil {
		return err
	}
	v.Live = true
	return v.show(http.StatusOK, "schedules.html", "Schedules", d)
}

func (v *view) relays() error {
	s, err := v.snapshot()
	if err != nil {
		return err
	}
	v.Live = true
	return v.show(http.StatusOK, "relays.html", "Relays", struct{ Relays []admin.Relay }{s.relays})
}

func (v *view) audit() error {
	var d struct {
		admin.AuditPage
		First bool
	}
	after := v.r.URL.Query().Get("after")
	err := v.read(func(ctx context.Context, c *admin.Client) (err error) {
		d.AuditPage, err = c.Audit(ctx, admin.AuditQuery{After: after, Limit: pageSize})
		return err
	})
	if err != nil {
		return err
	}
	d.First = after == ""
	v.Live = true
	return v.show(http.StatusOK, "audit.html", "Audit log", d)
}
