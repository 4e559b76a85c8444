package outboxprom_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
	outboxprom "github.com/txoutbox/outbox/telemetry/prom"
)

func forwarders() []*forward.Forwarder {
	return []*forward.Forwarder{forward.Register(handlers.New(), relaytest.TypeTx, broker{})}
}

// exported are the names that can be asked for, those of histograms with their suffixes, and the
// labels of each.
func exported(t *testing.T) map[string][]string {
	t.Helper()
	db := relaytest.NewDatabase(t)
	c, registry := newCollector(t, outboxprom.Config{DB: db.DB, Forwarders: forwarders()})
	db.Enqueue(t, "TX", 1)
	relaytest.Once(t, db.DB, app(), relay.Config{Observers: []relay.Observer{c.Observer()}})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	for _, f := range families {
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
	asked := ""
	for title, exprs := range dashboard(t) {
		for _, e := range exprs {
			check(t, title, e, have)
			asked += " " + e
		}
	}
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

// forPrometheus puts values in for Grafana's variables.
func forPrometheus(expr string) string {
	return strings.NewReplacer("$__rate_interval", "10s", "$type", ".*", "$job", ".*").Replace(expr)
}

// A Prometheus server, where one is installed, scrapes an app at work, and answers each expression
// of the dashboard.
func TestAPrometheusServerAnswersTheDashboard(t *testing.T) {
	path := needs.Program(t, "prometheus", "prometheus")
	db := relaytest.NewDatabase(t)
	c, registry := newCollector(t, outboxprom.Config{Forwarders: forwarders(), DB: db.DB})
	for _, kind := range []string{"TX", "BATCH", "LEASED", "NOBODY"} {
		db.Enqueue(t, kind, 5)
	}
	relaytest.Run(t, db.DB, app(), relay.Config{PollInterval: 20 * time.Millisecond,
		Observers: []relay.Observer{c.Observer()}})
	target := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	defer target.Close()

	dir := t.TempDir()
	rules, err := filepath.Abs("alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf("global: {scrape_interval: 1s, scrape_timeout: 1s}\nrule_files: [%s]\nscrape_configs: "+
		"[{job_name: app, static_configs: [{targets: [%q]}]}]\n",
		rules, target.Listener.Addr())
	if err := os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	var log strings.Builder
	cmd := exec.CommandContext(t.Context(), path, "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	}()
	query := func(expr string) (status, problem string, results int) {
		res, err := http.Get("http://" + address + "/api/v1/query?query=" + url.QueryEscape(expr))
		if err != nil {
			return "", err.Error(), 0
		}
		defer res.Body.Close()
		body, _ := io.ReadAll(res.Body)
		var answer struct {
			Status, Error string
			Data          struct{ Result []any }
		}
		_ = json.Unmarshal(body, &answer)
		return answer.Status, answer.Error, len(answer.Data.Result)
	}
	relaytest.Eventually(t, 60*time.Second, "it has scraped a few times", func() bool {
		_, _, n := query(`rate(outbox_finished_total{type="TX"}[10s])`)
		return n == 1
	})
	quiet := map[string]bool{"Leases lost and dead letters, in 5 minutes": true,
		"Types without a relay, or paused": true, "Tasks for each claim": true} // may have nothing to show
	for title, exprs := range dashboard(t) {
		if strings.HasPrefix(title, "variable") {
			continue
		}
		for _, e := range exprs {
			status, problem, n := query(forPrometheus(e))
			if status != "success" || n == 0 && !quiet[title] && !strings.HasSuffix(e, "> 0") {
				t.Errorf("%s: %s: %s %s, %d series", title, e, status, problem, n)
			}
		}
	}
	if _, _, n := query(`max by (type) (outbox_type_relays) == 0`); n != 1 {
		t.Errorf("%d types without a relay, want NOBODY", n)
	}
}
