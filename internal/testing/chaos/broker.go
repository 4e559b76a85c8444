//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/txoutbox/outbox/internal/testing/chaos/app"
)

// broker is the NATS server, with JetStream, that relays forward events to. Each target has a stream
// of its own, so that one can be refused. The harness has an account whose password stays.
type broker struct {
	server  *server.Server
	options server.Options
	file    string // of the app's password
	version int    // of that password
	conn    *nats.Conn
	js      jetstream.JetStream
}

const harness = "harness" // user of the broker, and its password

// start starts the server and makes the streams. The caller must call close, also after an error.
func (b *broker) start(ctx context.Context, dir string) (err error) {
	b.file = filepath.Join(dir, "broker-password")
	b.options = server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: filepath.Join(dir, "broker"),
		NoSigs: true, NoLog: true}
	b.setUsers()
	first := b.options
	if b.server, err = server.NewServer(&first); err != nil {
		return err
	}
	go b.server.Start()
	if !b.server.ReadyForConnections(time.Minute) {
		return errors.New("the broker does not start")
	}
	b.options.Port = b.server.Addr().(*net.TCPAddr).Port
	if err := b.tellApp(); err != nil {
		return err
	}
	if b.conn, err = nats.Connect(b.url(), nats.UserInfo(harness, harness)); err != nil {
		return err
	}
	if b.js, err = jetstream.New(b.conn); err != nil {
		return err
	}
	for target := range app.Targets {
		if err := b.accept(ctx, target, true); err != nil {
			return err
		}
	}
	return nil
}

func (b *broker) url() string { return "nats://127.0.0.1:" + strconv.Itoa(b.options.Port) }

func (b *broker) setUsers() {
	b.options.Users = []*server.User{
		{Username: harness, Password: harness}, {Username: app.User, Password: b.password()},
	}
}

func (b *broker) password() string { return fmt.Sprint("chaos-", b.version) }

// tellApp writes the app's password where its processes read it.
func (b *broker) tellApp() error {
	next := b.file + ".next"
	if err := os.WriteFile(next, []byte(b.password()), 0o600); err != nil {
		return err
	}
	return os.Rename(next, b.file)
}

// rotate has the server take another password only, and ends the sessions of the app.
func (b *broker) rotate() error {
	b.version++
	b.setUsers()
	options := b.options
	return b.server.ReloadOptions(&options)
}

// accept has the target's stream take messages, or none: it is full then.
func (b *broker) accept(ctx context.Context, target int, yes bool) error {
	c := jetstream.StreamConfig{Name: fmt.Sprint("T", target), Subjects: []string{app.Subject(target)},
		Discard: jetstream.DiscardNew, MaxMsgs: 1, Duplicates: time.Hour}
	if yes {
		c.MaxMsgs = -1
	}
	_, err := b.js.CreateOrUpdateStream(ctx, c)
	return err
}

// event is a message that a target has taken.
type event struct {
	K   string
	Key string // its ordering key
	Seq int
}

// events are those of each target, in their order.
func (b *broker) events(ctx context.Context) (all [app.Targets][]event, err error) {
	for target := range app.Targets {
		stream, err := b.js.Stream(ctx, fmt.Sprint("T", target))
		if err != nil {
			return all, err
		}
		for n, last := uint64(1), stream.CachedInfo().State.LastSeq; n <= last; n++ {
			m, err := stream.GetMsg(ctx, n)
			if err != nil {
				return all, err
			}
			var p app.Payload
			if err := json.Unmarshal(m.Data, &p); err != nil {
				return all, err
			}
			all[target] = append(all[target], event{p.K, m.Header.Get("ce-partitionkey"), p.Seq})
		}
	}
	return all, nil
}

func (b *broker) close() {
	if b.conn != nil {
		b.conn.Close()
	}
	if b.server != nil {
		b.server.Shutdown()
		b.server.WaitForShutdown()
	}
}
