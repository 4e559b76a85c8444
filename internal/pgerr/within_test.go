package pgerr_test

import (
	"errors"
	"testing"

	"github.com/txoutbox/outbox/internal/pgerr"
)

func TestAPackageIsNamedOnce(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"schema: newer": "schema: migrate outbox: newer",
		"gave up: schema: newer; the latest: schema: old": "schema: migrate outbox: gave up: newer; the latest: old",
		"outbox: newer": "schema: migrate outbox: outbox: newer",
		"schema":        "schema: migrate outbox: schema",
	} {
		err := errors.New(text)
		if got := pgerr.Within("schema: migrate outbox", err); got.Error() != want || !errors.Is(got, err) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
