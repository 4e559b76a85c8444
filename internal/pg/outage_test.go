package pg

import (
	"database/sql/driver"
	"log/slog"
	"testing"
	"time"
)

// A wake-up ends the pause of the dispatcher, but not at once.
func TestASignEndsThePauseOfTheDispatcher(t *testing.T) {
	t.Parallel()
	began := time.Now()
	o := Outage{log: slog.New(slog.DiscardHandler), changed: func(bool, time.Time) {}}
	o.Fail(driver.ErrBadConn, began, began)
	o.until = began.Add(time.Hour)
	o.Hasten(began)
	if d := o.until.Sub(began); d < tryLeast || d > 2*tryLeast {
		t.Errorf("the pause ends after %v", d)
	}
	before := o.until
	if o.Hasten(began.Add(time.Minute)); o.until != before {
		t.Errorf("a later sign moved the end of the pause by %v", o.until.Sub(before))
	}
}
