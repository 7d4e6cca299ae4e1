package obs

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/felixlog/felix/wire"
)

// Results of publishes in felix_acks_total.
const (
	resultOK      = "ok"
	resultRefused = "refused" // nothing was done
	resultUnknown = "unknown" // it may have been done
)

// Publish is a publish that was settled.
type Publish struct {
	Records int
	Bytes   int           // of payload
	Took    time.Duration // in the broker; 0 if it never reached its shard
	Durable bool          // its stream is
	Failure *wire.Failure // nil for success
}

// Published counts a settled publish. It allocates nothing.
func (m *Metrics) Published(p Publish) {
	if p.Took > 0 {
		m.publishDuration.Observe(p.Took.Seconds())
		if p.Durable {
			m.appendDuration.Observe(p.Took.Seconds())
		}
	}
	failure := p.Failure
	if failure == nil {
		m.publishes.Inc()
		m.records.Add(float64(p.Records))
		m.bytes.Add(float64(p.Bytes))
		m.answer(answerKey{resultOK, 0}).Inc()
		return
	}
	result := resultRefused
	if failure.Retry == wire.RetryOutcomeUnknown {
		result = resultUnknown
	}
	m.answer(answerKey{result, failure.Code}).Inc()
	if failure.Code == wire.CodeOverloaded && failure.Reason != "" {
		m.Refused(failure.Reason)
	}
}

type answerKey struct {
	result string
	code   wire.Code
}

func (m *Metrics) answer(k answerKey) prometheus.Counter {
	if c, ok := m.answers.Load(k); ok {
		return c.(prometheus.Counter)
	}
	c, _ := m.answers.LoadOrStore(k, m.acks.WithLabelValues(k.result, k.code.String()))
	return c.(prometheus.Counter)
}

// Connected and Disconnected count a client's connection; transport is quic or tcp.
func (m *Metrics) Connected(transport string) {
	m.connections.WithLabelValues(transport).Inc()
	m.connectionsEver.WithLabelValues(transport).Inc()
}

// Disconnected ends what Connected began.
func (m *Metrics) Disconnected(transport string) {
	m.connections.WithLabelValues(transport).Dec()
}

// Refused counts a request or connection turned away. Reasons are a fixed set.
func (m *Metrics) Refused(reason string) { m.refused.WithLabelValues(reason).Inc() }

// Paused counts a time a client's stream was not read. Reasons are a fixed set.
func (m *Metrics) Paused(reason string) { m.paused.WithLabelValues(reason).Inc() }

// GroupsClamped counts groups that were past the end of their stream.
func (m *Metrics) GroupsClamped(groups int) { m.clamped.Add(float64(groups)) }

// Delivered counts what was written to subscribers.
func (m *Metrics) Delivered(records, bytes int) {
	m.deliveredEvents.Add(float64(records))
	m.deliveredBytes.Add(float64(bytes))
}
