package forward_test

import (
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/forwardtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// Events are plain. Their copies are stored by the codec of their task's type, or by their own.
func TestEventsOfAnEncodedTypeArePlainAndTheirCopiesAreNot(t *testing.T) {
	t.Parallel()
	db, to, reg := relaytest.NewDatabase(t), &broker{}, handlers.New()
	tenant := outbox.Headers(map[string]string{"tenant": "acme"})
	one := outbox.NewTaskType[string]("one", outbox.Codec(relaytest.Hidden("c")), tenant)
	several := outbox.NewTaskType[string]("several", outbox.Codec(relaytest.Hidden("c")), tenant)
	forward.Register(reg, one, to, forward.HandlerOptions(handlers.Retention(time.Hour)))
	own := []forward.Option{forward.TaskOptions(outbox.Codec(relaytest.Hidden("own")))}
	forward.Fanout(reg, several, map[string]forward.Target{"a": {Publisher: to}, "b": {Publisher: to, Options: own}},
		forward.HandlerOptions(handlers.Retention(time.Hour)))
	relaytest.EnqueueAll(db.DB, one.New("clear"), several.New("clear"),
		outbox.TaskSpec{Type: "several", Payload: "clear"})
	relaytest.Run(t, db.DB, reg, relay.Config{})
	forwardtest.NothingLeft(t, db)
	all := to.received()
	if len(all) != 5 {
		t.Fatalf("%d events, want 5", len(all))
	}
	for _, e := range all {
		if string(e.Data) != `"clear"` || len(e.Headers) > 1 || len(e.Headers) == 1 && e.Headers["tenant"] != "acme" {
			t.Errorf("%s: data %s, headers %v", e.Type, e.Data, e.Headers)
		}
	}
	db.Want(t, "one c, several c, several -, several/a c, several/a c, several/b own, several/b own",
		`SELECT string_agg(task_type || ' ' || COALESCE(headers ->> 'outbox-codec', '-'), ', '
		ORDER BY task_type, headers ->> 'outbox-codec') FROM outbox.done_task`)
	db.Want(t, "1", `SELECT count(*) FROM outbox.done_task WHERE payload = '"clear"'`)
}

func TestCopiesHaveNoHooks(t *testing.T) {
	t.Parallel()
	defer func() {
		if text, _ := recover().(string); !strings.Contains(text, "TaskOptions: BeforeEnqueue: copies have no hooks") {
			t.Errorf("got the panic %q", text)
		}
	}()
	options := forward.TaskOptions(outbox.BeforeEnqueue(nil))
	forward.Fanout(handlers.New(), placed, map[string]forward.Target{"a": {Publisher: &broker{}}}, options)
	t.Error("it was registered")
}
