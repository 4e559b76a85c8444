package main

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/txoutbox/outbox/bench/raw"
	"github.com/txoutbox/outbox/bench/river"
	"github.com/txoutbox/outbox/bench/watermill"
	"github.com/txoutbox/outbox/relay"
)

// side is one of those that take turns.
type side struct {
	name   string
	key    string // of its template
	tasks  int    // in it
	build  func(context.Context, *database) error
	open   func(context.Context, *database) (client, error)
	start  func(ctx context.Context, url string, done func(n int)) (stop func() error, err error)
	claims *claims // of ours, if they are timed
	left   func(ctx context.Context, db *sql.DB) (int, error)
}

func oursSide(name string, tasks int, set relaySettings) side {
	return side{
		name: name, key: fmt.Sprint("ours ", tasks), tasks: tasks, build: buildOurs(taskType,
			tasks), open: oursClient, left: leftOurs,
		start: func(ctx context.Context, url string, done func(int)) (func() error, error) {
			return startRelay(ctx, url, set, func(n int, _ load) { done(n) })
		},
	}
}

// timedSide is oursSide whose claims are timed.
func timedSide(name string, tasks int, set relaySettings) side {
	s := oursSide(name, tasks, set)
	s.claims = &claims{}
	s.start = func(ctx context.Context, url string, done func(int)) (func() error, error) {
		return startRelay(ctx, url, set, func(n int, _ load) { done(n) }, relay.Observer{Claimed: s.claims.add})
	}
	return s
}

func rawSide(name string, tasks int, set raw.Settings) side {
	set.TaskType = taskType
	return side{
		name: name, key: fmt.Sprint("raw ",
			tasks), tasks: tasks, open: rawClient, left: count(`SELECT count(*) FROM bare_task`),
		build: func(ctx context.Context, d *database) error {
			if err := raw.Setup(ctx, d.DB); err != nil {
				return err
			}
			if err := d.exec(ctx, effectTableSQL); err != nil {
				return err
			}
			return raw.Fill(ctx, d.DB, taskType, tasks, payload)
		},
		start: func(ctx context.Context, url string, done func(int)) (func() error, error) {
			return raw.Start(ctx, url, set, done)
		},
	}
}

func riverSide(name string, tasks int, set river.Settings) side {
	return side{
		name: name, key: fmt.Sprint("river ", tasks), tasks: tasks, open: riverClient, left: count(river.LeftSQL),
		build: func(ctx context.Context, d *database) error {
			if err := river.Setup(ctx, d.url); err != nil {
				return err
			}
			if err := d.exec(ctx, effectTableSQL); err != nil {
				return err
			}
			return river.Fill(ctx, d.url, tasks)
		},
		start: func(ctx context.Context, url string, done func(int)) (func() error, error) {
			return river.Start(ctx, url, set, done)
		},
	}
}

func watermillSide(name string, tasks int) side {
	return side{
		name: name, key: fmt.Sprint("watermill ", tasks), tasks: tasks, left: count(watermill.LeftSQL),
		build: func(ctx context.Context, d *database) error {
			if err := watermill.Setup(ctx, d.DB); err != nil {
				return err
			}
			return watermill.Fill(ctx, d.DB, tasks, payload)
		},
		start: watermill.Start,
	}
}

func count(query string) func(context.Context, *sql.DB) (int, error) {
	return func(ctx context.Context, db *sql.DB) (n int, err error) {
		return n, db.QueryRowContext(ctx, query).Scan(&n)
	}
}
