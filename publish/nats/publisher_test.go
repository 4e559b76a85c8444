package outboxnats_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/inbox"
	"github.com/txoutbox/outbox/internal/testing/faultmap"
	"github.com/txoutbox/outbox/internal/testing/forwardtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	outboxnats "github.com/txoutbox/outbox/publish/nats"
	"github.com/txoutbox/outbox/relay"
)

// logins are a broker's, with a stream of all events.
func (b *broker) logins(change func(*server.Options)) {
	b.t.Helper()
	options := b.options
	change(&options)
	forwardtest.Must(b.t, b.s.ReloadOptions(&options))
	b.options = options
}

// The server's password changes before the app's: the publisher goes on once it has the new one,
// however many logins were refused.
func TestAPublisherSurvivesAPasswordRotation(t *testing.T) {
	t.Parallel()
	b := newBroker(t, nil)
	b.stream(nil)
	b.logins(func(o *server.Options) { o.Username, o.Password = "app", "old" })
	var password atomic.Value
	var logins atomic.Int64
	password.Store("old")
	p, err := outboxnats.Open(b.url(), outboxnats.Config{Options: []nats.Option{nats.UserInfoHandler(func() (string,
		string) {
		logins.Add(1)
		return "app", password.Load().(string)
	})}})
	forwardtest.Must(t, err)
	t.Cleanup(func() { forwardtest.Must(t, p.Close()) })
	forwardtest.Ready(t, p)
	b.logins(func(o *server.Options) { o.Password = "new" })
	before := logins.Load()
	relaytest.Eventually(t, time.Minute, "five refused logins", func() bool { return logins.Load() >= before+5 })
	forwardtest.Unavailable(t, p.Publish(t.Context(), []*forward.Event{event("1")}), 1)
	password.Store("new")
	forwardtest.Ready(t, p)
	forwardtest.Publish(t, p, event("1"))
}

// A connection that is closed for good is replaced for as long as the publisher is open.
func TestAConnectionThatIsClosedForGoodIsReplaced(t *testing.T) {
	t.Parallel()
	b := newBroker(t, nil)
	b.stream(nil)
	var conn atomic.Pointer[nats.Conn]
	var closed atomic.Int64
	options := []nats.Option{nats.ConnectHandler(func(c *nats.Conn) { conn.Store(c) }),
		nats.ClosedHandler(func(*nats.Conn) { closed.Add(1) })}
	p, err := outboxnats.Open(b.url(), outboxnats.Config{Options: options})
	forwardtest.Must(t, err)
	clear(options) // the app's
	t.Cleanup(func() { forwardtest.Must(t, p.Close()) })
	forwardtest.Ready(t, p)
	relaytest.Eventually(t, time.Minute, "the connection", func() bool { return conn.Load() != nil })
	for i := range 2 {
		conn.Swap(nil).Close()
		relaytest.Eventually(t, time.Minute, "its end", func() bool { return closed.Load() == int64(i+1) })
		forwardtest.Ready(t, p)
		forwardtest.Publish(t, p, event("1"))
		relaytest.Eventually(t, time.Minute, "the next connection", func() bool { return conn.Load() != nil })
	}
}

// The server's limit of a line is lower than usual, so it closes the connection of a long subject.
// The attempt of that event counts, and the others are published.
func TestASubjectThatClosesTheConnectionIsTheMessages(t *testing.T) {
	t.Parallel()
	b := newBroker(t, func(o *server.Options) { o.MaxControlLine = 512 })
	b.stream(nil)
	p := connect(t, b.url())
	long := event("long")
	long.To = "orders." + strings.Repeat("x", 1000)
	published := map[string]bool{}
	relaytest.Eventually(t, time.Minute, "the others", func() bool {
		forwardtest.Ready(t, p)
		events := []*forward.Event{event("1"), event("2"), long}
		errs := p.Publish(t.Context(), events)
		for i, e := range events {
			if len(errs) == 0 || errs[i] == nil {
				published[e.ID] = true
			}
		}
		if len(errs) == 3 && forwardtest.Fault(errs[2]) != "the event's" {
			t.Errorf("the long subject: %v, want an error of the message", errs[2])
		}
		return published["1"] && published["2"]
	})
	if published["long"] {
		t.Error("the long subject was published")
	}
}

// It is no other call's either, whose events wait for their acknowledgements on that connection.
func TestASubjectThatClosesTheConnectionUsesNoAttemptOfOtherCalls(t *testing.T) {
	t.Parallel()
	b := newBroker(t, func(o *server.Options) { o.MaxControlLine = 512 })
	quiet := b.stream(func(c *jetstream.StreamConfig) { c.NoAck = true })
	p := connect(t, b.url())
	forwardtest.Ready(t, p)
	others := make(chan []error)
	go func() { others <- p.Publish(t.Context(), []*forward.Event{event("1"), event("2")}) }()
	relaytest.Eventually(t, time.Minute, "their arrival", func() bool {
		info, err := quiet.Info(t.Context())
		return err == nil && info.State.Msgs == 2
	})
	long := event("long")
	long.To = "orders." + strings.Repeat("x", 1000)
	if errs := p.Publish(t.Context(), []*forward.Event{long}); forwardtest.Fault(errors.Join(errs...)) != "the event's" {
		t.Errorf("the long subject: %v", errs)
	}
	forwardtest.Unavailable(t, <-others, 2)
}

// One subject is at its limit: it is an unavailable target, and its neighbours are published.
func TestTheLimitOfOneSubjectIsTheTargets(t *testing.T) {
	t.Parallel()
	b := newBroker(t, nil)
	b.stream(func(c *jetstream.StreamConfig) {
		c.MaxMsgsPerSubject, c.Discard, c.DiscardNewPerSubject = 1, jetstream.DiscardNew, true
	})
	p := connect(t, b.url())
	forwardtest.Ready(t, p)
	other := event("3")
	other.To = "orders.other"
	errs := p.Publish(t.Context(), []*forward.Event{event("1"), event("2"), other})
	if len(errs) != 3 || errs[0] != nil || errs[2] != nil {
		t.Fatalf("got %v", errs)
	}
	if forwardtest.Fault(errs[1]) != "the target's" {
		t.Error(errs)
	}
}

// A subject that the login may not publish to is an unavailable target at once, though the server
// acknowledges nothing.
func TestARefusedSubjectIsTheTargets(t *testing.T) {
	t.Parallel()
	b := newBroker(t, nil)
	b.stream(nil)
	permit := func(allow ...string) func(*server.Options) {
		return func(o *server.Options) {
			o.Users = []*server.User{{Username: "app", Password: "x",
				Permissions: &server.Permissions{Publish: &server.SubjectPermission{Allow: append(allow,
					"$JS.API.>")}}}}
		}
	}
	b.logins(permit("orders.other"))
	p := connect(t, strings.Replace(b.url(), "//", "//app:x@", 1))
	forwardtest.Ready(t, p)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	other := event("2")
	other.To = "orders.other"
	errs := p.Publish(ctx, []*forward.Event{event("1"), other})
	if ctx.Err() != nil || len(errs) != 2 || errs[1] != nil || !errors.Is(errs[0], nats.ErrPermissionViolation) {
		t.Fatalf("got %v", errs)
	}
	if forwardtest.Fault(errs[0]) != "the target's" {
		t.Error(errs)
	}
	b.logins(permit("orders.>"))
	forwardtest.Ready(t, p)
	relaytest.Eventually(t, time.Minute, "the right to be there", func() bool {
		return p.Publish(ctx, []*forward.Event{event("1")}) == nil
	})
}

// An event that a stream has already is counted. Another event with its message ID, of a copy
// of the database, is an error and not lost in silence.
func TestADuplicateIsLookedAt(t *testing.T) {
	t.Parallel()
	b := newBroker(t, nil)
	b.stream(nil)
	p := connect(t, b.url())
	forwardtest.Ready(t, p)
	for range 2 {
		forwardtest.Publish(t, p, event("7"))
	}
	if got := p.Duplicates(); got != 1 || len(b.messages()) != 1 {
		t.Errorf("%d duplicates and %d messages, want 1 of each", got, len(b.messages()))
	}
	another := event("7")
	another.Time = another.Time.Add(time.Hour)
	errs := p.Publish(t.Context(), []*forward.Event{another, event("8")})
	if len(errs) != 2 || errs[0] == nil || errs[1] != nil || forward.IsPermanent(errs[0]) ||
		!strings.Contains(errs[0].Error(), "another event") {
		t.Errorf("got %v, want an error for the first one, to be tried again", errs)
	}
	if got := p.Duplicates(); got != 1 {
		t.Errorf("%d duplicates, want 1", got)
	}
}

func TestAWrongConfigIsRefused(t *testing.T) {
	t.Parallel()
	named := []nats.Option{nats.Name("shop"), nil}
	_, noOption := outboxnats.Open("nats://127.0.0.1:1", outboxnats.Config{Options: named})
	_, noClient := outboxnats.New(nil, outboxnats.Config{})
	js, err := jetstream.New(&nats.Conn{})
	relaytest.Must(err)
	_, options := outboxnats.New(js, outboxnats.Config{Options: named[:1]})
	forwardtest.WantErrors(t, map[string]error{"Config.Options: 1 is nil": noOption, "the JetStream is nil": noClient,
		"Config.Options: they are for Open": options})
}

func TestABadURLIsRefused(t *testing.T) {
	t.Parallel()
	if p, err := outboxnats.Open("nats://user:secret@%zz", outboxnats.Config{}); err == nil {
		p.Close()
		t.Error("it connects")
	} else if strings.Contains(err.Error(), "secret") {
		t.Errorf("the error has the password: %v", err)
	}
}

// Two targets of a Fanout may share a stream: none drops the other's event for a repetition.
func TestTargetsShareAStream(t *testing.T) {
	t.Parallel()
	b, db, reg := newBroker(t, nil), relaytest.NewDatabase(t), handlers.New()
	b.stream(nil)
	p := connect(t, b.url())
	forward.Fanout(reg, forwardtest.Placed, map[string]forward.Target{
		"billing":  {Publisher: p, Options: []forward.Option{forward.To("orders.billing")}},
		"shipping": {Publisher: p, Options: []forward.Option{forward.To("orders.shipping")}},
	})
	forwardtest.Enqueue(t, db, 0, 3, 3)
	leave(relaytest.Run(t, db.DB, reg, relay.Config{}))
	forwardtest.NothingLeft(t, db)
	got := map[string]int{}
	for _, m := range b.messages() {
		got[m.Subject()]++
	}
	if len(got) != 2 || got["orders.billing"] != 3 || got["orders.shipping"] != 3 {
		t.Errorf("messages by subject: %v, want 3 of each", got)
	}
}

// Two services say nothing of a source, and their events have the same task ids. A stream they
// share keeps both events, and a consumer handles both.
func TestServicesWithDefaultsShareAStream(t *testing.T) {
	t.Parallel()
	b, billing := newBroker(t, nil), relaytest.NewDatabase(t)
	b.stream(nil)
	for range 2 {
		db, reg := relaytest.NewDatabase(t), handlers.New()
		f := forward.Register(reg, forwardtest.Placed, connect(t, b.url()), forward.To("orders.placed"))
		db.Do(t, `INSERT INTO outbox.task (task_type, payload, created_at)
			VALUES ('order.placed', '{"n": 0}', '2026-01-01')`)
		leave(relaytest.Run(t, db.DB, reg, relay.Config{}))
		relaytest.Eventually(t, time.Minute, "the event to be published",
			func() bool { return f.Stats().Published > 0 })
	}
	got := b.messages()
	if len(got) != 2 {
		t.Errorf("the stream has %d messages, want that of each service", len(got))
	}
	for _, m := range got {
		id, source := m.Headers().Get("ce-id"), m.Headers().Get("ce-source")
		forwardtest.Must(t, outbox.InTx(t.Context(), billing.DB, func(tx *sql.Tx) error {
			first, err := inbox.Once(t.Context(), tx, source, id)
			if !first {
				t.Errorf("the inbox drops event %s of %s", id, source)
			}
			return err
		}))
	}
}

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
			forwardtest.Publish(t, p, e)
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
