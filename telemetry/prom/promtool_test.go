package outboxprom_test

import (
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/txoutbox/outbox/internal/testing/needs"
)

// lint has the metrics checked by the client library's linter, and by promtool where it is there.
func lint(t *testing.T, registry *prometheus.Registry) {
	t.Helper()
	problems, err := testutil.GatherAndLint(registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
	w := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	promtool(t, w.Body.String(), "check", "metrics")
}

// promtool runs it, where it is installed.
func promtool(t *testing.T, stdin string, args ...string) {
	t.Helper()
	path := needs.Optional(t, "prometheus", "promtool")
	if path == "" {
		return
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "FAILED") {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
