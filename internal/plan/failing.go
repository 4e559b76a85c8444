package plan

import "time"

// What a lane does after a failure of its own.
const (
	restLeast     = 20 * time.Millisecond // it rests, each time twice as long,
	RestMost      = time.Second           // but no longer, and so long at once where PostgreSQL refuses it
	failingAfter  = 3                     // so many failures in a row are logged, and reported by Health
	failingShare  = .25                   // and so is this share of failed claims,
	shareOf       = 16                    // among about so many of the latest
	failureLogged = time.Minute           // at most once in
	largestClaim  = 1 << 16
)

// Failure is an error and its class.
type Failure struct {
	Err          error
	Refused      bool // PostgreSQL refuses the statement itself
	Answered     bool // PostgreSQL has answered, so the error is no sign of an outage
	Passing      bool // it may be that of a single connection
	NoConnection bool // the server has no connection left
	Divisible    bool // a smaller claim may succeed
	Lasting      bool // PostgreSQL has answered, and no waiting mends it
	Named        bool // and the error names what is missing
	Busy         bool // the relay's pool has no free connection
}

// Failing has the failures since the last success, of a lane's claims and results or of promotions.
type Failing struct {
	Times     int       // in a row
	Since, At time.Time // of the first and the latest
	Latest    Failure
	share     float64   // of failures among the latest claims: a moving average, with failingAfter in a row at most
	until     time.Time // the lane rests
	logged    time.Time // also before its last success
	most      int       // tasks of a claim, since a larger one failed; 0 is no limit
}

// note notes a failure of work that began at the given time.
func (f *Failing) note(failure Failure, began, now time.Time) {
	if began.Before(f.At) {
		return // one of several that failed together
	}
	if f.Since.IsZero() {
		f.Since = now
	}
	if f.Times++; f.Times <= failingAfter { // else an outage would be seen long after its end
		f.share += (1 - f.share) / shareOf
	}
	f.At, f.Latest = now, failure
	rest := RestMost
	if !failure.Refused {
		rest = min(restLeast<<min(f.Times-1, 10), RestMost)
	}
	f.until = now.Add(rest)
}

// succeeded notes a success, which ends failures in a row. It only decreases the share.
func (f *Failing) succeeded() {
	next := Failing{logged: f.logged, most: f.most, share: f.share * (1 - 1./shareOf)}
	if next.often() {
		next.Since, next.At, next.Latest = f.Since, f.At, f.Latest
	}
	*f = next
}

// InARow reports whether too many failures follow each other. One is enough where the error names
// what is missing.
func (f *Failing) InARow() bool { return f.Times >= failingAfter || f.Times > 0 && f.Latest.Named }

// often reports whether the share of failures is too large.
func (f *Failing) often() bool { return f.share >= failingShare }

// fails reports whether the log and Health name the lane.
func (f *Failing) fails() bool { return f.InARow() || f.often() }

// logs reports whether the failures are to be logged now.
func (f *Failing) logs(now time.Time) bool {
	if !f.fails() && !f.Latest.Refused || now.Sub(f.logged) < failureLogged {
		return false
	}
	f.logged = now
	return true
}

// shrink makes the next claim half as large as the claim of so many tasks that failed, or a quarter if
// that was slow, as each try is slow then. It reports whether that is possible: the next claim may succeed.
func (f *Failing) shrink(limit int, failure Failure, took, slow time.Duration) bool {
	if limit <= 1 || !failure.Divisible {
		return false
	}
	f.most = limit / 2
	if took >= slow/2 {
		f.most = max(limit/4, 1)
	}
	return true
}

// grow lets the next claim be larger, after a claim that was fast.
func (f *Failing) grow(took, slow time.Duration) {
	if f.most > 0 && took < slow/4 {
		if f.most *= 2; f.most > largestClaim {
			f.most = 0
		}
	}
}

// upTo is how many of so many tasks a claim may take.
func (f *Failing) upTo(limit int) int {
	if f.most > 0 {
		return min(f.most, limit)
	}
	return limit
}
