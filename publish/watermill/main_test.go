package outboxwatermill_test

import (
	"testing"

	"github.com/txoutbox/outbox/internal/relaytest"
)

func TestMain(m *testing.M) { relaytest.Main(m) }
