//go:build unix

package app

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	outboxnats "github.com/txoutbox/outbox/publish/nats"
	"github.com/txoutbox/outbox/relay"
)

// Targets is how many subjects of the broker events go to.
const Targets = 4

// Subject is that of a target.
func Subject(target int) string { return fmt.Sprint("chaos.", target) }

// forwardEvents registers the forwarding of events. The broker's password is read at each login, as
// it may have been rotated.
func forwardEvents(reg *handlers.Registry, c Config, opts ...handlers.Option) (*outboxnats.Publisher, error) {
	to, err := outboxnats.Open(c.Broker,
		outboxnats.Config{Options: []nats.Option{nats.UserInfoHandler(func() (user, password string) {
			text, _ := os.ReadFile(c.BrokerPassword)
			return User, string(text)
		})}})
	if err != nil {
		return nil, err
	}
	forward.Register(reg, typeEvent, to, forward.Source("/chaos"), forward.Timeout(5*time.Second),
		forward.HandlerOptions(opts...), forward.Route(func(_ context.Context, e *forward.Event) (string, error) {
			_, target, _ := strings.Cut(e.OrderingKey, "-to-")
			return "chaos." + target, nil
		}))
	return to, nil
}

// ticks is a schedule that never ends: each firing leaves a row.
func ticks(reg *handlers.Registry) []relay.Schedule {
	handlers.Tx(reg, TypeTick, func(ctx context.Context, tx *sql.Tx, _ *outbox.Task[Payload]) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO tick DEFAULT VALUES`)
		return err
	}, handlers.MaxAttempts(1000))
	return []relay.Schedule{{Name: "tick", Timing: relay.Every(time.Second), Task: TypeTick.New(Payload{K: "tick"})}}
}
