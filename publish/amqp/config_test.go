package outboxamqp_test

import (
	"errors"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/txoutbox/outbox/internal/forwardtest"
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

// The error says why there is no connection, without the password.
func TestABrokerThatCannotBeReachedIsUnavailable(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	forwardtest.Must(t, err)
	defer silent.Close()
	refuse := func(string, string) (net.Conn, error) { return nil, errors.New("no way there") }
	for says, p := range map[string]*outboxamqp.Publisher{
		"deadline|timeout": connect(t, "amqp://guest:secret@"+silent.Addr().String()+"/?connection_timeout=20",
			outboxamqp.Config{}),
		"no way there": connect(t, "amqp://guest:secret@127.0.0.1:1",
			outboxamqp.Config{DialConfig: &amqp.Config{Dial: refuse}}),
	} {
		errs := append(p.Publish(within(t, time.Minute), events(2, "q")), p.Ready(within(t, time.Minute)))
		forwardtest.Unavailable(t, errs, 3)
		for _, err := range errs {
			if !regexp.MustCompile(says).MatchString(err.Error()) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%v, want %s", err, says)
			}
		}
	}
}
