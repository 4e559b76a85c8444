package relay_test

import (
	"testing"

	_ "github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

func TestMain(m *testing.M) { relaytest.Main(m) }
