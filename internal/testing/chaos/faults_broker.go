//go:build unix

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/txoutbox/outbox/internal/testing/chaos/app"
)

// refuseTarget fills the stream of one target for a while: the broker refuses its events and takes
// those of the others.
func refuseTarget(a *arena, r *rand.Rand) (string, error) {
	target, d := r.IntN(app.Targets), time.Duration(2000+r.IntN(4000))*time.Millisecond
	accept := func(yes bool) error {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		return a.broker.accept(ctx, target, yes)
	}
	if err := accept(false); err != nil {
		return "", err
	}
	a.lasts(d, func() {
		if err := accept(true); err != nil {
			a.complain("target %d stays full: %v", target, err)
		}
	})
	return fmt.Sprint("target ", target, " for ", d), nil
}

// rotatePassword changes the broker's password. The app's processes have the new one some seconds
// later, after several refused logins.
func rotatePassword(a *arena, r *rand.Rand) (string, error) {
	if a.rotating.Swap(true) {
		return "", nil
	}
	d := time.Duration(1000+r.IntN(3000)) * time.Millisecond
	if err := a.broker.rotate(); err != nil {
		a.rotating.Store(false)
		return "", err
	}
	a.lasts(d, func() {
		if err := a.broker.tellApp(); err != nil {
			a.complain("the app has no password of the broker: %v", err)
		}
		a.rotating.Store(false)
	})
	return fmt.Sprint("the app has it after ", d), nil
}
