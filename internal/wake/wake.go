// Package wake joins InTx to the relays of the same process: a commit that may have enqueued tasks
// wakes them without a NOTIFY.
package wake

import "sync"

var (
	mu      sync.Mutex
	wakers  = map[int]func(){}
	counter int
)

// Register adds f, which must not block, until remove is called.
func Register(f func()) (remove func()) {
	mu.Lock()
	defer mu.Unlock()
	counter++
	id := counter
	wakers[id] = f
	return func() {
		mu.Lock()
		defer mu.Unlock()
		delete(wakers, id)
	}
}

// All wakes every relay of this process.
func All() {
	mu.Lock()
	defer mu.Unlock()
	for _, f := range wakers {
		f()
	}
}
