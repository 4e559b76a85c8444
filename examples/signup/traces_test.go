package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// spans is a collector that keeps what it gets.
type spans struct {
	mu   sync.Mutex
	got  []*tracev1.Span
	from []string // services
	bad  []string
}

func startCollector(t *testing.T) *spans {
	t.Helper()
	s := &spans{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var sent collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &sent)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if err != nil || r.URL.Path != "/v1/traces" {
			s.bad = append(s.bad, fmt.Sprint(r.URL.Path, err))
		}
		for _, of := range sent.ResourceSpans {
			for _, a := range of.Resource.Attributes {
				if a.Key == "service.name" {
					s.from = append(s.from, a.Value.GetStringValue())
				}
			}
			for _, in := range of.ScopeSpans {
				s.got = append(s.got, in.Spans...)
			}
		}
	}))
	t.Cleanup(server.Close)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.URL)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "50") // ms
	return s
}

// picture is each span with its ancestors; from are the services that sent them, bad what could not be read.
func (s *spans) picture() (out map[string]int, from, bad []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	byID := map[string]*tracev1.Span{}
	for _, span := range s.got {
		byID[string(span.TraceId)+string(span.SpanId)] = span
	}
	out = map[string]int{}
	for _, span := range s.got {
		path := []string{span.Name}
		for len(span.ParentSpanId) > 0 {
			if span = byID[string(span.TraceId)+string(span.ParentSpanId)]; span == nil {
				path = append(path, "?")
				break
			}
			path = append(path, span.Name)
		}
		out[strings.Join(path, " < ")]++
	}
	return out, slices.Clone(s.from), slices.Clone(s.bad)
}

// A sign-up is one trace, from the request to what was done in the handlers, at a collector by the standard protocol.
func TestASignUpIsOneTrace(t *testing.T) {
	got := startCollector(t)
	a := startServed(t)
	if err := postSignUp(t.Context(), a.url, "ada@example.com"); err != nil {
		t.Fatal(err)
	}
	var picture map[string]int
	var from, bad []string
	defer func() {
		if t.Failed() {
			t.Logf("the spans are %v, of %q; refused: %q", picture, from, bad)
		}
	}()
	eventually(t, 20*time.Second, "all spans are there", func() bool {
		picture, from, bad = got.picture()
		for _, kind := range []string{"GRANT_WELCOME_CREDIT", "SEND_EMAIL_WELCOME"} {
			if picture[fmt.Sprintf("process %s < receive %[1]s < send %[1]s < POST /signup", kind)] != 1 {
				return false
			}
		}
		return picture["POST /signup"] == 1
	})
	if len(picture) != 7 || len(bad) > 0 || from[0] != "signup" {
		t.Error("there should be seven, of signup")
	}
}
