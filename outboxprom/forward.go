package outboxprom

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/txoutbox/outbox/forward"
)

var (
	eventsDesc = prometheus.NewDesc("outbox_events_total", "Events that were handed to a publisher, by what became of them.", []string{"type", "outcome"}, nil)
	openDesc   = prometheus.NewDesc("outbox_publisher_pause_seconds", "For how long no event is sent yet, as the broker was unavailable; 0 while all is well.", []string{"type"}, nil)
)

func collectForwarders(to chan<- prometheus.Metric, all []*forward.Forwarder) {
	for _, f := range all {
		s := f.Stats()
		count := func(outcome string, n int64) {
			to <- prometheus.MustNewConstMetric(eventsDesc, prometheus.CounterValue, float64(n), f.TaskType(), outcome)
		}
		count("published", s.Published)
		count("permanent", s.Permanent)
		count("temporary", s.Temporary)
		count("unavailable", s.Unavailable)
		to <- prometheus.MustNewConstMetric(openDesc, prometheus.GaugeValue, s.Open.Seconds(), f.TaskType())
	}
}
