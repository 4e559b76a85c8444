package outboxprom_test

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
	outboxprom "github.com/txoutbox/outbox/telemetry/prom"
)

// exported are the names that can be asked for, those of histograms with their suffixes, and the
// labels of each.
func exported(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for _, f := range families(t) {
		labels := []string{"job", "instance"} // Prometheus' own
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		if f.GetMetric()[0].GetHistogram() == nil {
			out[f.GetName()] = labels
			continue
		}
		out[f.GetName()+"_bucket"] = append(slices.Clone(labels), "le")
		out[f.GetName()+"_sum"], out[f.GetName()+"_count"] = labels, labels
	}
	return out
}

// families are all metrics, of a process whose relay has run a task.
func families(t *testing.T) []*dto.MetricFamily {
	t.Helper()
	db := relaytest.NewDatabase(t)
	c, registry := newCollector(t, outboxprom.Config{DB: db.DB,
		Forwarders: []*forward.Forwarder{forward.Register(handlers.New(), relaytest.TypeTx, broker{})}})
	db.Enqueue(t, "TX", 1)
	relaytest.Once(t, db.DB, app(), relay.Config{Observers: []relay.Observer{c.Observer()}})
	all, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// promised are the metrics with their labels. A change of one breaks panels and alerts of apps.
var promised = strings.Fields(`
	outbox_claim_duration_seconds{type}
	outbox_claimed_tasks_total{type}
	outbox_dead_letters_total{type,reason}
	outbox_events_total{type,outcome}
	outbox_handler_duration_seconds{type}
	outbox_oldest_ready_seconds{type}
	outbox_publisher_pause_seconds{type}
	outbox_relay_outage
	outbox_relay_refused
	outbox_relay_running
	outbox_relays_alive
	outbox_runs_failed_total{type}
	outbox_runs_total{type,outcome}
	outbox_scrape_duration_seconds
	outbox_scrape_success
	outbox_tasks_finished_total{type}
	outbox_tasks{type,state}
	outbox_type_failing{type}
	outbox_type_paused{type}
	outbox_type_relays{type}
	outbox_wait_duration_seconds{type}`)

func TestTheMetricsAreThoseOfTheDocumentation(t *testing.T) {
	var got []string
	for name, labels := range exported(t) {
		name = strings.TrimSuffix(name, "_count")
		if own := labels[2:]; len(own) > 0 {
			slices.Reverse(own) // the type first
			name += "{" + strings.Join(own, ",") + "}"
		}
		if !regexp.MustCompile("_bucket|_sum").MatchString(name) {
			got = append(got, name)
		}
	}
	if slices.Sort(got); !slices.Equal(got, promised) {
		t.Errorf("got %q, want %q", got, promised)
	}
	for _, file := range []string{"collector.go", "../../docs/reference/metrics.md"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		doc, _, _ := strings.Cut(string(text), "\npackage outboxprom\n")
		named := regexp.MustCompile(`outbox_[a-z_]+(\{[a-z,]+\})?`).FindAllString(doc, -1)
		slices.Sort(named)
		if named = slices.Compact(named); !slices.Equal(named, promised) {
			t.Errorf("%s names %q, want %q", file, named, promised)
		}
	}
}

// The page has the type of each metric.
func TestTheTypesOfMetricsAreThoseOfTheDocumentation(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families(t) {
		row := regexp.MustCompile("(?m)^\\| `" + f.GetName() + "[`{].*$").FindString(string(page))
		if want := "` | " + strings.ToLower(f.GetType().String()) + " |"; !strings.Contains(row, want) {
			t.Errorf("the row of %s is %q, want %q in it", f.GetName(), row, want)
		}
	}
}

var selector = regexp.MustCompile(`(outbox_[a-z_]+)(?:\{([^}]*)\})?`)

// check looks for what is not exported in an expression.
func check(t *testing.T, where, expr string, exported map[string][]string) {
	t.Helper()
	found := selector.FindAllStringSubmatch(expr, -1)
	if len(found) == 0 {
		t.Errorf("%s: %q names no metric", where, expr)
	}
	for _, m := range found {
		labels, there := exported[m[1]]
		if !there {
			t.Errorf("%s: there is no metric %s", where, m[1])
			continue
		}
		for _, l := range regexp.MustCompile(`([a-z_]+)(?:=~|!=|!~|=)"`).FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(labels, l[1]) {
				t.Errorf("%s: %s has no label %s, only %v", where, m[1], l[1], labels)
			}
		}
	}
}

// dashboard are the expressions of grafana.json, by the title of their panel.
func dashboard(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("grafana.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Templating struct {
			List []struct{ Name, Definition string }
		}
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	out, ids := map[string][]string{}, map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] || len(p.Targets) == 0 {
			t.Errorf("panel %q has the id of another one, or no expression", p.Title)
		}
		ids[p.ID] = true
		for _, target := range p.Targets {
			out[p.Title] = append(out[p.Title], target.Expr)
		}
	}
	for _, v := range d.Templating.List {
		if v.Definition != "" {
			out["variable "+v.Name] = append(out["variable "+v.Name], v.Definition)
		}
	}
	if len(out) < 10 {
		t.Fatalf("only %d panels were found", len(out))
	}
	return out
}

func TestTheDashboardAsksOnlyForWhatIsExportedAndForAllOfIt(t *testing.T) {
	have := exported(t)
	asked, rules := "", "groups: [{name: dashboard, rules: [\n"
	variables := strings.NewReplacer("$__rate_interval", "10s", "$type", ".*", "$job", ".*")
	for title, exprs := range dashboard(t) {
		for _, e := range exprs {
			check(t, title, e, have)
			asked += " " + e
			if !strings.HasPrefix(title, "variable") {
				rules += fmt.Sprintf("{record: panel, expr: %q},\n", variables.Replace(e))
			}
		}
	}
	file := filepath.Join(t.TempDir(), "rules.yml")
	if err := os.WriteFile(file, []byte(rules+"]}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "", "check", "rules", "--lint=none", file)
	for name := range have {
		if base := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_sum"),
			"_count"); !strings.Contains(asked, base) {
			t.Errorf("no panel shows %s", base)
		}
	}
}

func TestAlertsAskOnlyForWhatIsExported(t *testing.T) {
	text, err := os.ReadFile("alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile("alerts_test.yml")
	if err != nil {
		t.Fatal(err)
	}
	have := exported(t)
	alerts := regexp.MustCompile(`(?m)^      - alert: (\w+)\n        expr: (.*)$`).FindAllStringSubmatch(string(text),
		-1)
	if len(alerts) != strings.Count(string(text), "alert:") || len(alerts) == 0 {
		t.Fatalf("%d alerts were found", len(alerts))
	}
	for _, a := range alerts {
		check(t, a[1], a[2], have)
		if n := strings.Count(string(tests), "alertname: "+a[1]); n < 2 {
			t.Errorf("%s has %d tests in alerts_test.yml, want one that it is raised and one that it is not", a[1], n)
		}
	}
	promtool(t, "", "check", "rules", "alerts.yml")
	promtool(t, "", "test", "rules", "alerts_test.yml")
}

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
