package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// What a lane does after a failure of its own.
const (
	restLeast     = 20 * time.Millisecond // it rests, each time twice as long,
	restMost      = time.Second           // but no longer, and so long at once where PostgreSQL refuses it
	failingAfter  = 3                     // so many failures in a row are logged, and reported by Health
	failingShare  = .25                   // and so is this share of failed claims,
	shareOf       = 16                    // among about so many of the latest
	shareLasts    = time.Minute           // Health reports the share for so long after the latest failure
	failureLogged = time.Minute           // at most once in
	growBelow     = pg.StatementTimeout / 4
	largestClaim  = 1 << 16
)

// failing has the failures since the last success, of a lane's claims and results or of promotions.
type failing struct {
	times     int       // in a row
	share     float64   // of failures among the latest claims: a moving average, with failingAfter in a row at most
	since, at time.Time // of the first and the latest
	until     time.Time // the lane rests
	err       error     // the latest
	logged    time.Time // also before its last success
	most      int       // tasks of a claim, since a larger one failed; 0 is no limit
}

// note notes a failure of what began at the given time.
func (f *failing) note(err error, began, now time.Time) {
	if began.Before(f.at) {
		return // one of several that failed together
	}
	if f.since.IsZero() {
		f.since = now
	}
	if f.times++; f.times <= failingAfter { // else an outage would be seen long after its end
		f.share += (1 - f.share) / shareOf
	}
	f.at, f.err = now, err
	rest := restMost
	if !pgerr.Refusal(err) {
		rest = min(restLeast<<min(f.times-1, 10), restMost)
	}
	f.until = now.Add(rest)
}

// forget notes a success, which ends failures in a row. It only decreases the share.
func (f *failing) forget() {
	next := failing{logged: f.logged, most: f.most, share: f.share * (1 - 1./shareOf)}
	if next.often() {
		next.since, next.at, next.err = f.since, f.at, f.err
	}
	*f = next
}

// often reports whether the share of failures is too large.
func (f *failing) often() bool { return f.share >= failingShare }

// fails reports whether the log and Health name the lane.
func (f *failing) fails() bool { return f.times >= failingAfter || f.often() }

// logs reports whether the failures are to be logged now.
func (f *failing) logs(now time.Time) bool {
	if !f.fails() && !pgerr.Refusal(f.err) || now.Sub(f.logged) < failureLogged {
		return false
	}
	f.logged = now
	return true
}

// shrink makes the next claim half as large as the one of so many tasks that failed, or a quarter if
// that took long, as each try does then. It reports whether that is possible: the next one may work.
func (f *failing) shrink(limit int, err error, took time.Duration) bool {
	if limit <= 1 || pgerr.Conflict(err) {
		return false
	}
	if fault := pgerr.Of(err); fault == pgerr.Server || fault == pgerr.Foreign {
		return false
	}
	f.most = limit / 2
	if took >= pg.StatementTimeout/2 {
		f.most = max(limit/4, 1)
	}
	return true
}

// grow lets the next claim be larger, after one that took so long.
func (f *failing) grow(took time.Duration) {
	if f.most > 0 && took < growBelow {
		if f.most *= 2; f.most > largestClaim {
			f.most = 0
		}
	}
}

// upTo is how many of so many tasks a claim may take.
func (f *failing) upTo(limit int) int {
	if f.most > 0 {
		return min(f.most, limit)
	}
	return limit
}

// text is for Health.
func (f *failing) text() string {
	how := "a quarter or more of the tries fail"
	if f.times >= failingAfter {
		how = fmt.Sprintf("%d failures in a row", f.times)
	}
	return fmt.Sprintf("since %s, %s, the last one %s", f.since.UTC().Format(time.RFC3339), how, f.kind())
}

// kind is the latest error without the words of the driver or the server.
func (f *failing) kind() string {
	switch code := pgerr.Code(f.err); {
	case code != "":
		return "with SQLSTATE " + code
	case errors.Is(f.err, context.DeadlineExceeded):
		return "as it took too long"
	case pgerr.Lost(f.err):
		return "as the connection was lost"
	}
	return "as the log says"
}

// unreadable has the time when tasks of a lane that cannot be read were last set aside. Several claims
// may fail together; one at a time looks for such tasks.
type unreadable struct {
	mu sync.Mutex
	at time.Time
}

// setAside sets aside the tasks that prevented a claim, which began at the given time. It reports
// whether there were any: then the others can be claimed.
func (u *unreadable) setAside(began time.Time, find func() int) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.at.After(began) { // another claim had met them too
		return true
	}
	if find() == 0 {
		return false
	}
	u.at = time.Now()
	return true
}
