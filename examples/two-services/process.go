package main

import (
	"context"
	"log/slog"
	"os"
	"slices"

	"github.com/txoutbox/outbox/internal/child"
)

// config is of a part, which is a process of this same program.
type config struct {
	Role string
	At   places
}

var roles = map[string]func(context.Context, places) error{
	"broker": runBroker, "orders": runOrders, "billing": runBilling,
}

// runRole is the main function of a part. ctx ends with the program.
func runRole(ctx context.Context, c config) error {
	slog.SetLogLoggerLevel(slog.LevelError + 1) // the others being killed is no news
	return roles[c.Role](ctx, c.At)
}

// part is a process that is started again after it was killed.
type part struct {
	role string
	*child.Process
}

func (p *part) start(at places) (err error) {
	p.Process, err = child.Start(config{p.role, at}, os.Stderr)
	return err
}

type parts []*part

// startAll starts the broker and the two services. The caller stops them, also after an error.
func startAll(at places) (all parts, err error) {
	for _, role := range []string{"broker", "orders", "billing"} {
		p := &part{role: role}
		if err := p.start(at); err != nil {
			return all, err
		}
		all = append(all, p)
	}
	return all, nil
}

// stop ends the services, then the broker.
func (all parts) stop() {
	for _, p := range slices.Backward(all) {
		_ = p.Stop()
	}
}
