package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const streamName = "ORDERS"

// startBroker starts a JetStream server in this process, with files in dir and a stream of orders.
func startBroker(ctx context.Context, dir string) (*server.Server, error) {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true,
		StoreDir: dir, NoSigs: true, NoLog: true})
	if err != nil {
		return nil, err
	}
	go s.Start()
	if !s.ReadyForConnections(time.Minute) {
		err = errors.New("the broker does not start")
	} else {
		err = makeStream(ctx, s.ClientURL())
	}
	if err != nil {
		s.Shutdown()
		return nil, fmt.Errorf("start the broker: %w", err)
	}
	return s, nil
}

// makeStream makes the stream of orders. It knows the ids of the last hour, so that an event which
// is published twice is stored once.
func makeStream(ctx context.Context, url string) error {
	conn, err := nats.Connect(url)
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	_, err = js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: streamName, Subjects: []string{"orders.>"}, Storage: jetstream.FileStorage, Duplicates: time.Hour})
	return err
}
