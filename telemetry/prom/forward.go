package outboxprom

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/txoutbox/outbox/forward"
)

var (
	eventsDesc = prometheus.NewDesc("outbox_events_total",
		"Events that were handed to a publisher, by outcome.", []string{"type", "outcome"}, nil)
	pauseDesc = prometheus.NewDesc("outbox_publisher_pause_seconds",
		"Time until events are sent again to an unavailable broker or target; 0 if all are available.",
		[]string{"type"}, nil)
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
		to <- prometheus.MustNewConstMetric(pauseDesc, prometheus.GaugeValue, s.Pause.Seconds(), f.TaskType())
	}
}
