package forward

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/codec"
)

const (
	defaultBatch   = 200
	defaultTimeout = 10 * time.Second
)

// config is a registration's options.
type config struct {
	eventType, source, target string

	subject func(context.Context, *Event) (string, error)
	route   func(context.Context, *Event) (string, error)
	batch   int
	timeout time.Duration
	handler []handlers.Option
	task    []outbox.Option
}

// Option changes a registration.
type Option func(*config)

func newConfig(taskType string, opts []Option) *config {
	c := &config{eventType: taskType, batch: defaultBatch, timeout: defaultTimeout}
	c.route = func(_ context.Context, e *Event) (string, error) { return e.Type, nil }
	for i, o := range opts {
		if o == nil {
			panic(fmt.Sprintf("forward: %s: Option %d is nil", taskType, i))
		}
		o(c)
	}
	for i, o := range c.task {
		if o == nil {
			panic(fmt.Sprintf("forward: %s: TaskOptions: Option %d is nil", taskType, i))
		}
	}
	if codec.HasHook(c.task) {
		panic(fmt.Sprintf("forward: %s: TaskOptions: BeforeEnqueue: copies have no hooks: leave it out", taskType))
	}
	return c
}

// Source is the event's source, a URI reference that names the producer to its consumers. The
// default is "urn:uuid:" and the id of the database ([outbox.Task.DatabaseID]), which no other
// producer has. It panics if uri is empty.
func Source(uri string) Option {
	if uri == "" {
		panic("forward: Source: it is empty, and CloudEvents asks for one")
	}
	return func(c *config) { c.source = uri }
}

// Type is the event's type. The default is the task type. It panics if name is empty.
func Type(name string) Option {
	if name == "" {
		panic("forward: Type: it is empty, and CloudEvents asks for one")
	}
	return func(c *config) { c.eventType = name }
}

// Subject sets the subject of an event, from its other fields but To. Several goroutines
// may call of at once. Its ctx and its errors are as those of [Route]. Subject panics if of is nil.
func Subject(of func(ctx context.Context, e *Event) (string, error)) Option {
	if of == nil {
		panic("forward: Subject: the function is nil")
	}
	return func(c *config) { c.subject = of }
}

var placeholder = regexp.MustCompile(`\{[^{}]*\}`)

// To is where events go: a template in which {type}, {key} and {subject} stand for the event's
// Type, OrderingKey and Subject. The default is "{type}". Of several To and [Route] the last
// counts. It panics if the template is empty or has another placeholder.
func To(template string) Option {
	if template == "" {
		panic("forward: To: the template is empty")
	}
	for _, p := range placeholder.FindAllString(template, -1) {
		if p != "{type}" && p != "{key}" && p != "{subject}" {
			panic(fmt.Sprintf("forward: To(%q): unknown placeholder %s: use {type}, {key} or {subject}", template, p))
		}
	}
	return Route(func(_ context.Context, e *Event) (string, error) {
		return strings.NewReplacer("{type}", e.Type, "{key}", e.OrderingKey, "{subject}", e.Subject).Replace(template), nil
	})
}

// Route says where each event goes, as [Event.To]. Several goroutines may call to at once, each for
// one event after the other, before they are published. Its ctx ends with the handler's. An event
// for which it returns "" is a dead letter. An error is a failed attempt of the event, or a dead
// letter if it is [Permanent]. Route panics if to is nil.
func Route(to func(ctx context.Context, e *Event) (string, error)) Option {
	if to == nil {
		panic("forward: Route: the function is nil")
	}
	return func(c *config) { c.route = to }
}

// BatchSize is how many events one call of Publish gets at most: 1 to 10,000, by default 200.
// [Register] panics if it is out of range. Each worker of the relay has a batch in flight.
func BatchSize(n int) Option { return func(c *config) { c.batch = n } }

// Timeout bounds one call of Publish; by default 10 s. A call that takes longer counts as
// [Unavailable], or as [TargetUnavailable] without an attempt if all of its events have one target.
// For an event without an answer while others have one, see the package. It panics unless d is
// within 1 ms to 20 s: the transaction of the claim is open meanwhile.
func Timeout(d time.Duration) Option {
	if d < time.Millisecond || d > 20*time.Second {
		panic(fmt.Sprintf("forward: Timeout(%v): must be within 1ms to 20s", d))
	}
	return func(c *config) { c.timeout = d }
}

// HandlerOptions adds options of the handler, such as handlers.MaxAttempts or handlers.Retention. A nil
// handlers.Option panics in [Register].
func HandlerOptions(opts ...handlers.Option) Option {
	opts = slices.Clone(opts)
	return func(c *config) { c.handler = append(c.handler, opts...) }
}

// TaskOptions adds options of the tasks that [Fanout] makes for its targets. It needs outbox.Schema
// where the schema has another name than outbox. They do
// not replace what a copy has from its task: see Fanout. Register makes no tasks, and panics.
func TaskOptions(opts ...outbox.Option) Option {
	opts = slices.Clone(opts)
	return func(c *config) { c.task = append(c.task, opts...) }
}
