//go:build !browser

package dashboard_test

import (
	"testing"

	"github.com/txoutbox/outbox/internal/needs"
)

// The tests in a browser have a build tag, as what drives it takes long to compile.
func TestInABrowser(t *testing.T) {
	needs.Missing(t, "the build tag: go test -tags browser ./dashboard", "chromium")
}
