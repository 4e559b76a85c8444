package schedule

import "time"

// restFor is how long a schedule is left alone that cannot be registered or fired.
const restFor = time.Minute

// rests are the schedules that are left alone for a while, by this process's clock.
type rests map[string]time.Time

func (r rests) add(name string) { r[name] = time.Now().Add(restFor) }

func (r rests) resting(name string) bool { return time.Now().Before(r[name]) }
