package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	neturl "net/url"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const streamName = "ORDERS"

// freeURL is where a broker can listen.
func freeURL() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return "nats://" + l.Addr().String(), l.Close()
}

// runBroker runs a JetStream server until ctx ends. It keeps its files.
func runBroker(ctx context.Context, p places) error {
	u, err := neturl.Parse(p.Broker)
	if err != nil {
		return err
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		return err
	}
	s, err := server.NewServer(&server.Options{Host: u.Hostname(), Port: port, JetStream: true, StoreDir: p.Store,
		NoSigs: true, NoLog: true})
	if err != nil {
		return err
	}
	go s.Start()
	defer s.WaitForShutdown()
	defer s.Shutdown()
	if !s.ReadyForConnections(20 * time.Second) {
		return errors.New("the broker does not start")
	}
	if err := makeStream(ctx, p.Broker); err != nil {
		return fmt.Errorf("make the stream: %w", err)
	}
	<-ctx.Done()
	return nil
}

// makeStream makes the stream of orders, if it is not there. It knows the ids of the last hour, so
// that an event which is published twice is stored once.
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
