package outboxamqp_test

import (
	"strings"
	"testing"

	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/forwardtest"
	outboxamqp "github.com/txoutbox/outbox/publish/amqp"
)

// A relay process gets a URL, a space and an exchange.
func TestMain(m *testing.M) {
	forwardtest.Main(m, func(place string) (forward.Publisher, error) {
		url, exchange, _ := strings.Cut(place, " ")
		return outboxamqp.Connect(url, outboxamqp.Config{Exchange: exchange})
	}, func() {
		if started != nil {
			started.close()
		}
	})
}
