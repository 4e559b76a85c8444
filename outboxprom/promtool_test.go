package outboxprom_test

import (
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
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

// promtool runs it and returns what it says. Where it is not installed the test goes on without, or fails with OUTBOX_TEST_PROMTOOL=1.
func promtool(t *testing.T, stdin string, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("OUTBOX_TEST_PROMTOOL") == "1" {
			t.Errorf("OUTBOX_TEST_PROMTOOL=1 needs promtool: apt-get install prometheus: %v", err)
		}
		t.Log("without promtool: ", err)
		return
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "FAILED") {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
