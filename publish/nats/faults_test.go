package outboxnats_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/testing/faultmap"
	"github.com/txoutbox/outbox/internal/testing/forwardtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	outboxnats "github.com/txoutbox/outbox/publish/nats"
)

// docs/faults.md has each error of the client, and what it means.
func TestTheMapOfNATS(t *testing.T) {
	t.Parallel()
	b := newBroker(t, nil)
	b.stream(nil)
	p := connect(t, b.url())
	forwardtest.Ready(t, p)
	without := newBroker(t, func(o *server.Options) { o.JetStream = false })
	off := connect(t, without.url())
	refused := func(status int, code jetstream.ErrorCode, text string) error {
		return fmt.Errorf("nats: %w", &jetstream.APIError{Code: status, ErrorCode: code, Description: text})
	}
	given := map[string]error{
		"10002": refused(400, 10002, "resource limits exceeded for account"), "10039": refused(503, 10039, ""),
		"10054": refused(400, 10054, ""),
		"10071": refused(400, 10071, "wrong last sequence: 7"), "10076": refused(503, 10076, ""),
		"10077":                   refused(503, 10077, "maximum messages exceeded"),
		"10077 message too large": refused(503, 10077, "message too large"), "10097": refused(400, 10097, ""),
		"10109": refused(400, 10109, ""),
		"10158": refused(409, 10158, ""), "10167": refused(429, 10167, ""),
		"any other code with a status of 500 or more": refused(503, 10023, "insufficient resources"),
		"any other error":         errors.New("never heard of"),
		"an error of the network": &net.OpError{Op: "write", Err: errors.New("broken pipe")}, "io.EOF": io.EOF,
		"io.ErrUnexpectedEOF": io.ErrUnexpectedEOF,

		"nats.ErrMaxPayload": nats.ErrMaxPayload, "nats.ErrBadSubject": nats.ErrBadSubject,
		"nats.ErrBadHeaderMsg": nats.ErrBadHeaderMsg,
		"nats.ErrNoResponders": nats.ErrNoResponders, "nats.ErrPermissionViolation": nats.ErrPermissionViolation,
		"nats.ErrTimeout":          nats.ErrTimeout,
		"nats.ErrConnectionClosed": nats.ErrConnectionClosed, "nats.ErrConnectionDraining": nats.ErrConnectionDraining,
		"nats.ErrConnectionReconnecting": nats.ErrConnectionReconnecting, "nats.ErrDisconnected": nats.ErrDisconnected,
		"nats.ErrInvalidConnection": nats.ErrInvalidConnection, "nats.ErrNoServers": nats.ErrNoServers,
		"nats.ErrStaleConnection":      nats.ErrStaleConnection,
		"nats.ErrReconnectBufExceeded": nats.ErrReconnectBufExceeded, "nats.ErrAuthorization": nats.ErrAuthorization,
		"nats.ErrAuthExpired": nats.ErrAuthExpired,
		"nats.ErrAuthRevoked": nats.ErrAuthRevoked, "nats.ErrAccountAuthExpired": nats.ErrAccountAuthExpired,
		"nats.ErrMaxConnectionsExceeded":        nats.ErrMaxConnectionsExceeded,
		"nats.ErrMaxAccountConnectionsExceeded": nats.ErrMaxAccountConnectionsExceeded,
		"jetstream.ErrInvalidSubject":           jetstream.ErrInvalidSubject,
		"jetstream.ErrInvalidJSAck":             jetstream.ErrInvalidJSAck,
		"jetstream.ErrNoStreamResponse":         jetstream.ErrNoStreamResponse,
		"jetstream.ErrAsyncPublishTimeout":      jetstream.ErrAsyncPublishTimeout,
		"jetstream.ErrConnectionClosed":         jetstream.ErrConnectionClosed,
		"jetstream.ErrServerShutdown":           jetstream.ErrServerShutdown,
		"jetstream.ErrJetStreamPublisherClosed": jetstream.ErrJetStreamPublisherClosed,
		"jetstream.ErrTooManyStalledMsgs":       jetstream.ErrTooManyStalledMsgs,
	}
	real := map[string]func() error{ // of a server
		"an invalid subject or header": func() error {
			e := event("1")
			e.Headers = map[string]string{"trace id": "1"}
			return p.Publish(t.Context(), []*forward.Event{e})[0]
		},
		"another event under the message ID": func() error {
			e := event("1")
			forwardtest.Must(t, errors.Join(p.Publish(t.Context(), []*forward.Event{e})...))
			e.Type = "another"
			return p.Publish(t.Context(), []*forward.Event{e})[0]
		},
		"JetStream is not there": func() error {
			relaytest.Eventually(t, time.Minute, "a connection", func() bool {
				return forward.IsUnavailable(outboxnats.Classify(t.Context(), off, event("1"), nats.ErrNoResponders))
			})
			return off.Publish(t.Context(), []*forward.Event{event("1")})[0]
		},
	}
	made, known := map[string]func() error{}, []error{context.Canceled, context.DeadlineExceeded} // no answer in time
	maps.Copy(made, real)
	for name, cause := range given {
		known = append(known, cause)
		made[name] = func() error {
			return outboxnats.Classify(t.Context(), p, &forward.Event{ID: "1", To: "nowhere"}, cause)
		}
	}
	faultmap.Check(t, "NATS", forwardtest.Fault, made, nil)
	for _, err := range outboxnats.ConnectionErrors {
		if !slices.Contains(known, err) {
			t.Errorf("docs/faults.md lacks %v", err)
		}
	}
}
