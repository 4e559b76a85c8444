package outboxamqp_test

import (
	"errors"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/txoutbox/outbox/forward"
	outboxamqp "github.com/txoutbox/outbox/publish/amqp"
)

func TestMistakesInTheConfigurationAreNamed(t *testing.T) {
	t.Parallel()
	const good = "amqp://guest:secret@127.0.0.1:1/"
	for name, c := range map[string]struct {
		url, says string
		config    outboxamqp.Config
	}{
		"another scheme":  {"http://guest:secret@127.0.0.1/", "URL", outboxamqp.Config{}},
		"a bare password": {"amqp://guest:sec#ret@127.0.0.1/", "URL", outboxamqp.Config{}},
		"a space":         {"amqp://guest:secret @127.0.0.1/", "URL", outboxamqp.Config{}},
		"channels":        {good, "Config.Channels", outboxamqp.Config{Channels: -1}},
		"many channels":   {good, "Config.Channels", outboxamqp.Config{Channels: 1001}},
		"a long exchange": {good, "Config.Exchange", outboxamqp.Config{Exchange: strings.Repeat("x", 256)}},
		"recovery": {good, "Config.DialConfig.Recovery",
			outboxamqp.Config{DialConfig: &amqp.Config{Recovery: &amqp.Recovery{}}}},
	} {
		_, err := outboxamqp.Connect(c.url, c.config)
		if err == nil || !strings.HasPrefix(err.Error(), "outboxamqp: ") || !strings.Contains(err.Error(), c.says) ||
			strings.Contains(err.Error(), "sec") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Nothing listens, nothing answers, or the password is wrong: the error says so, without a
// password.
func TestABrokerThatCannotBeReachedIsUnavailable(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = gone.Close()
	config := outboxamqp.Config{DialConfig: &amqp.Config{Dial: func(string, string) (net.Conn, error) {
		return nil,
			errors.New("no way there")
	}}}
	for name, c := range map[string]struct {
		url, says string
		config    outboxamqp.Config
	}{
		"nothing listens": {"amqp://guest:secret@" + gone.Addr().String(), "refused", outboxamqp.Config{}},
		"nothing answers": {"amqp://guest:secret@" + silent.Addr().String(), "no connection", outboxamqp.Config{}},
		"too slow": {"amqp://guest:secret@" + silent.Addr().String() + "/?connection_timeout=20",
			"deadline|timeout", outboxamqp.Config{}},
		"dial fails": {"amqp://guest:secret@127.0.0.1:1", "no way there", config},
	} {
		limit := time.Minute
		if name == "nothing answers" {
			limit = 50 * time.Millisecond
		}
		p := connect(t, c.url, c.config)
		errs := p.Publish(within(t, limit), events(2, "q"))
		if len(errs) != 2 {
			t.Errorf("%s: %d errors", name, len(errs))
			continue
		}
		for _, err := range append(errs, p.Ready(within(t, limit))) {
			if _, away := forward.IsUnavailable(err); !away || !regexp.MustCompile(c.says).MatchString(err.Error()) ||
				strings.Contains(err.Error(), "secret") {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func TestAWrongPasswordIsUnavailable(t *testing.T) {
	t.Parallel()
	r := broker(t)
	p := connect(t, strings.Replace(r.url(), "guest:guest", "guest:secret", 1), outboxamqp.Config{})
	errs := p.Publish(within(t, time.Minute), events(1, "q"))
	if _, away := forward.IsUnavailable(errors.Join(errs...)); !away || !strings.Contains(errs[0].Error(), "403") ||
		strings.Contains(errs[0].Error(), "secret") {
		t.Errorf("%v", errs)
	}
}
