// Package broker starts brokers for the case that publishes to them, and publishes to them from
// memory by their bare clients.
package broker

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kfake"
)

// Subject is where events go in JetStream, and Topic in Kafka.
const (
	Subject = "bench"
	Topic   = "bench"
)

// NATS starts a JetStream server in this process, with files, and a stream that takes Subject.
func NATS(ctx context.Context) (url string, stop func(), err error) {
	dir, err := os.MkdirTemp("", "outbox-bench-nats")
	if err != nil {
		return "", nil, err
	}
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: dir, NoSigs: true,
		NoLog: true})
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	go s.Start()
	stop = func() {
		s.Shutdown()
		s.WaitForShutdown()
		_ = os.RemoveAll(dir)
	}
	if !s.ReadyForConnections(20 * time.Second) {
		stop()
		return "", nil, errors.New("bench: the NATS server does not start")
	}
	conn, js, err := connect(s.ClientURL())
	if err == nil {
		defer conn.Close()
		_, err = js.CreateStream(ctx,
			jetstream.StreamConfig{Name: "BENCH", Subjects: []string{Subject}, Storage: jetstream.FileStorage})
	}
	if err != nil {
		stop()
		return "", nil, err
	}
	return s.ClientURL(), stop, nil
}

func connect(url string) (*nats.Conn, jetstream.JetStream, error) {
	conn, err := nats.Connect(url)
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(1000))
	return conn, js, err
}

// Kafka starts a cluster that speaks Kafka's protocol, in this process and its memory.
func Kafka(context.Context) (brokers string, stop func(), err error) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(4, Topic))
	if err != nil {
		return "", nil, err
	}
	return strings.Join(c.ListenAddrs(), ","), c.Close, nil
}

// ToNATS publishes n messages from memory, with the headers that ours have, up to 1,000 at once,
// and tells done of each that is acknowledged.
func ToNATS(ctx context.Context, url string, n int, payload string, done func(n int)) error {
	conn, js, err := connect(url)
	if err != nil {
		return err
	}
	defer conn.Close()
	acks := make(chan jetstream.PubAckFuture, 1000)
	failed := make(chan error, 1)
	go func() {
		defer close(failed)
		for ack := range acks {
			select {
			case <-ack.Ok():
				done(1)
			case err := <-ack.Err():
				failed <- err
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	for i := range n {
		if ctx.Err() != nil {
			break
		}
		id := strconv.Itoa(i)
		ack, err := js.PublishMsgAsync(&nats.Msg{Subject: Subject, Data: []byte(payload), Header: nats.Header{
			"Content-Type": {"application/json"}, "Nats-Msg-Id": {"/outbox/" + id},
			"ce-specversion": {"1.0"}, "ce-id": {id}, "ce-source": {"/outbox"}, "ce-type": {"BENCH"},
			"ce-time": {time.Now().UTC().Format(time.RFC3339Nano)}}})
		if err != nil {
			return err
		}
		select {
		case acks <- ack:
		case err := <-failed:
			return err
		}
	}
	close(acks)
	return <-failed
}
