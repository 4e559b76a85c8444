package settings_test

import (
	"testing"

	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

func TestMain(m *testing.M) { relaytest.Main(m) }
