package main

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/txoutbox/outbox/bench/raw"
	"github.com/txoutbox/outbox/bench/river"
	"github.com/txoutbox/outbox/bench/watermill"
)

// side is one of those that take turns at burning down a backlog.
type side struct {
	name  string
	peer  string // "" is ours
	key   string // of its template
	tasks int    // in it
	build func(context.Context, *database) error
	start func(ctx context.Context, url string, done func(n int)) (stop func() error, err error)
	left  func(ctx context.Context, db *sql.DB) (int, error)
}

func oursSide(name string, tasks int, payload string, set relaySettings) side {
	return side{
		name: name, key: fmt.Sprintf("ours %d %d", tasks, len(payload)), tasks: tasks, build: fillOurs(tasks, taskType, payload), left: leftOurs,
		start: func(ctx context.Context, url string, done func(int)) (func() error, error) {
			return startRelay(ctx, url, set, func(n int, _ load) { done(n) })
		},
	}
}

func rawSide(name string, tasks int, payload string, set raw.Settings) side {
	set.TaskType = taskType
	return side{
		name: name, peer: peerRaw, key: fmt.Sprintf("raw %d %d", tasks, len(payload)), tasks: tasks,
		build: func(ctx context.Context, d *database) error {
			if err := raw.Setup(ctx, d.DB); err != nil {
				return err
			}
			if err := d.exec(ctx, effectTableSQL); err != nil || tasks == 0 {
				return err
			}
			return raw.Fill(ctx, d.DB, taskType, tasks, payload)
		},
		start: func(ctx context.Context, url string, done func(int)) (func() error, error) {
			return raw.Start(ctx, url, set, done)
		},
		left: count(`SELECT count(*) FROM bare_task`),
	}
}

func riverSide(name string, tasks int, pad string, set river.Settings) side {
	return side{
		name: name, peer: peerRiver, key: fmt.Sprintf("river %d %d", tasks, len(pad)), tasks: tasks,
		build: func(ctx context.Context, d *database) error {
			if err := river.Setup(ctx, d.url); err != nil {
				return err
			}
			if err := d.exec(ctx, effectTableSQL); err != nil {
				return err
			}
			return river.Fill(ctx, d.url, tasks, pad)
		},
		start: func(ctx context.Context, url string, done func(int)) (func() error, error) {
			return river.Start(ctx, url, set, done)
		},
		left: count(river.LeftSQL),
	}
}

func watermillSide(name string, tasks, batch int) side {
	return side{
		name: name, peer: peerWatermill, key: fmt.Sprintf("watermill %d", tasks), tasks: tasks,
		build: func(ctx context.Context, d *database) error {
			if err := watermill.Setup(ctx, d.DB); err != nil {
				return err
			}
			return watermill.Fill(ctx, d.DB, tasks, smallPayload)
		},
		start: func(ctx context.Context, url string, done func(int)) (func() error, error) {
			return watermill.Start(ctx, url, batch, done)
		},
		left: count(watermill.LeftSQL),
	}
}

func count(query string) func(context.Context, *sql.DB) (int, error) {
	return func(ctx context.Context, db *sql.DB) (n int, err error) {
		if err = db.QueryRowContext(ctx, query).Scan(&n); err != nil {
			err = fmt.Errorf("bench: count what is left: %w", err)
		}
		return n, err
	}
}

// present leaves out the sides of peers that are not asked for.
func (b *bench) present(sides []side) []side {
	return slices.DeleteFunc(slices.Clone(sides), func(s side) bool { return !b.has(s.peer) })
}

func (b *bench) has(peer string) bool { return peer == "" || slices.Contains(b.opts.peers, peer) }
