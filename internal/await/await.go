// Package await joins outbox.WaitFor to the relays of the same process: they say which runs have ended,
// and carry a question to the relays of other processes, and the answer, by NOTIFY.
package await

import (
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// AskAgain is how often a question is repeated. A relay forgets it after twice that time.
const AskAgain = 30 * time.Second

// task is a task of any database: two that are alike are looked at once too often.
type task struct {
	schema string
	id     int64
}

var (
	mu        sync.Mutex
	waiting   = map[task]map[chan struct{}]struct{}{}
	waiters   atomic.Int64
	listeners = map[string]map[*func() bool]struct{}{} // by schema
)

// Wait returns a channel that gets a value when a run of the task may have ended, until stop is called.
func Wait(schema string, id int64) (ended <-chan struct{}, stop func()) {
	mu.Lock()
	defer mu.Unlock()
	t, c := task{schema, id}, make(chan struct{}, 1)
	if waiting[t] == nil {
		waiting[t] = map[chan struct{}]struct{}{}
	}
	waiting[t][c] = struct{}{}
	waiters.Add(1)
	return c, func() {
		mu.Lock()
		defer mu.Unlock()
		waiters.Add(-1)
		if delete(waiting[t], c); len(waiting[t]) == 0 {
			delete(waiting, t)
		}
	}
}

// Ended tells those who wait in this process that a run of a task has ended.
func Ended(schema string, id int64) {
	if waiters.Load() == 0 {
		return
	}
	mu.Lock()
	defer mu.Unlock()
	for c := range waiting[task{schema, id}] {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// Listen says that a relay of this process hears the notifications of a schema while works returns
// true, until stop is called.
func Listen(schema string, works func() bool) (stop func()) {
	mu.Lock()
	defer mu.Unlock()
	if listeners[schema] == nil {
		listeners[schema] = map[*func() bool]struct{}{}
	}
	listeners[schema][&works] = struct{}{}
	return func() {
		mu.Lock()
		defer mu.Unlock()
		delete(listeners[schema], &works)
	}
}

// Listens reports whether a relay of this process hears the notifications of a schema.
func Listens(schema string) bool {
	mu.Lock()
	defer mu.Unlock()
	for works := range listeners[schema] {
		if (*works)() {
			return true
		}
	}
	return false
}

// Texts of notifications on the channel of wake-ups. Those of enqueuers begin with a number.
const (
	question = "wait "
	answer   = "ended "
)

// Question is the notification that asks relays to say when a run of the task has ended.
func Question(id int64) string { return question + strconv.FormatInt(id, 10) }

// Answer is the notification that a run of the task has ended.
func Answer(id int64) string { return answer + strconv.FormatInt(id, 10) }

// Asked is the task that a notification asks for; 0: it is no question.
func Asked(notification string) int64 { return idBehind(notification, question) }

// Answered is the task of whose run a notification says that it has ended; 0: it is no answer.
func Answered(notification string) int64 { return idBehind(notification, answer) }

func idBehind(text, prefix string) int64 {
	number, found := strings.CutPrefix(text, prefix)
	id, err := strconv.ParseInt(number, 10, 64)
	if !found || err != nil || id < 1 {
		return 0
	}
	return id
}
