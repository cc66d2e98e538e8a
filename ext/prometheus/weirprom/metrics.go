package weirprom

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/ext/internal/tally"
	"github.com/weirflow/weir/internal/counting"
)

// Metrics is an [observe.Observer] for an operator, and a [prometheus.Collector] for a
// registry.
//
// It may be given to several operators, such as the operators of all partitions, or of a
// pipeline that is started again in the same process. Counters and gauges are sums then,
// and the age is the oldest element's of all. Its methods are safe for concurrent use.
type Metrics struct {
	onlyCounts
	read          []*prometheus.Desc // as tally.Metrics
	oldest        *prometheus.Desc
	erred         *prometheus.Desc
	ended         *prometheus.Desc
	doubt         *prometheus.Desc
	attemptsEnded *prometheus.Desc
	failed        *prometheus.Desc
	times         [4]*prometheus.Desc
	buckets       *buckets

	mu        sync.Mutex
	tally     tally.Tally   // guarded by mu
	durations [4]*histogram // guarded by mu; as times
}

const (
	ofAttempt = iota
	ofElement
	ofQueue
	ofBackoff
)

var (
	_ observe.Observer     = (*Metrics)(nil)
	_ prometheus.Collector = (*Metrics)(nil)
)

// Option changes a setting of [Metrics]. Options panic if their argument is invalid.
type Option func(*Metrics)

// DefaultBuckets returns the buckets of classic histograms: 100 µs to 100 s, three for
// each power of ten.
func DefaultBuckets() []time.Duration {
	var bounds []time.Duration
	for unit := 100 * time.Microsecond; unit < 100*time.Second; unit *= 10 {
		bounds = append(bounds, unit, 5*unit/2, 5*unit)
	}
	return append(bounds, 100*time.Second)
}

// WithBuckets sets the upper bounds of the classic histograms; the default is
// [DefaultBuckets]. It panics if there are no bounds, or more than 255, or if they are
// not positive and in increasing order.
func WithBuckets(bounds ...time.Duration) Option {
	b, err := newBuckets(bounds)
	if err != nil {
		panic(fmt.Sprintf("weirprom: WithBuckets: %v", err))
	}
	return func(m *Metrics) { m.buckets = b }
}

// New returns the metrics of an operator, named by their label operator, for
// [asyncop.WithObserver]. Register them: a registry refuses two with the same name. It
// panics if the name is empty.
func New(operator string, opts ...Option) *Metrics {
	if operator == "" {
		panic("weirprom: New: empty name")
	}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, prometheus.Labels{"operator": operator})
	}
	m := &Metrics{
		oldest: desc("weir_oldest_element_age_seconds", "Time since the oldest element in flight took its slot; 0 if there is none."),
		erred:  desc("weir_last_error_age_seconds", "Time since the last error of an attempt, or timeout of an element; 0 before the first error."),
		ended:  desc("weir_elements_ended_total", "Elements by how they ended.", "how"),
		doubt:  desc("weir_elements_in_doubt_total", "Elements that were not emitted although an attempt may have taken effect."),
		failed: desc("weir_element_failures_total", "Elements that were handed over or dropped, by what their errors have in common: the ten groups with the most.",
			"error", "reason"),
		attemptsEnded: desc("weir_attempts_ended_total", "Attempts by their outcome, and the reason that a classifier gave it.", "outcome", "reason"),
		times: [...]*prometheus.Desc{
			ofAttempt: desc("weir_attempt_duration_seconds", "Time from the begin of an attempt until its end is known."),
			ofElement: desc("weir_element_duration_seconds", "Time from the slot to the end of an element, over all its attempts."),
			ofQueue:   desc("weir_element_queue_duration_seconds", "Time from the slot of an element to its first attempt."),
			ofBackoff: desc("weir_retry_backoff_seconds", "Waits before retries."),
		},
	}
	m.onlyCounts = counting.CountedBy(m, counter{m})
	m.read = describe(tally.Metrics, desc)
	WithBuckets(DefaultBuckets()...)(m)
	for i, opt := range opts {
		if opt == nil {
			panic(fmt.Sprintf("weirprom: New: option %d is nil", i))
		}
		opt(m)
	}
	for i := range m.durations {
		m.durations[i] = newHistogram(m.buckets)
	}
	return m
}

// ---- The observer

var (
	_ asyncop.StatsReader  = (*Metrics)(nil)
	_ asyncop.GroupsReader = (*Metrics)(nil)
)

// Attach is called by the constructors of operators: see [asyncop.WithObserver].
func (m *Metrics) Attach(stats func() asyncop.Stats, done <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tally.Attach(stats, done)
}

// AttachGroups is called by the constructors of operators: see
// [asyncop.AsyncWaitOperator.Groups].
func (m *Metrics) AttachGroups(groups func() []observe.Group) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tally.AttachGroups(groups)
}

type onlyCounts = counting.Counted // operators find the counter by it

// counter is called once in a step of an operator, in place of the methods below, because
// metrics need neither elements nor contexts. The methods serve observers that call or
// embed m.
type counter struct{ *Metrics }

func (m counter) Count(attempts []counting.AttemptEnd, elements []counting.Element) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range attempts {
		m.countAttempt(&attempts[i])
	}
	for i := range elements {
		m.countElement(&elements[i])
	}
}

func (m *Metrics) countAttempt(a *counting.AttemptEnd) {
	m.tally.CountAttempt(a)
	m.durations[ofAttempt].observe(m.buckets, a.Duration)
	if a.Retry {
		m.durations[ofBackoff].observe(m.buckets, a.Delay)
	}
}

func (m *Metrics) countElement(e *counting.Element) {
	m.tally.Element(e)
	if e.Accepted {
		m.durations[ofElement].observe(m.buckets, e.Total)
		m.durations[ofQueue].observe(m.buckets, e.Queued)
	}
}

// Accepted implements [observe.Observer]. It does not change the context.
func (m *Metrics) Accepted(context.Context, any, bool) context.Context { return nil }

// AttemptStarted implements [observe.Observer]. It does not change the context.
func (m *Metrics) AttemptStarted(context.Context, int) context.Context { return nil }

// AttemptEnded implements [observe.Observer].
func (m *Metrics) AttemptEnded(_ context.Context, o observe.Outcome) {
	a := tally.AttemptEndOf(o)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.countAttempt(&a)
}

// Ended implements [observe.Observer].
func (m *Metrics) Ended(_ context.Context, e observe.Ending) {
	el := tally.ElementOf(e)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.countElement(&el)
}

// ---- The collector

// Describe implements [prometheus.Collector].
func (m *Metrics) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range m.read {
		descs <- d
	}
	for _, d := range m.times {
		descs <- d
	}
	descs <- m.oldest
	descs <- m.erred
	descs <- m.ended
	descs <- m.doubt
	descs <- m.attemptsEnded
	descs <- m.failed
}

// Collect implements [prometheus.Collector].
func (m *Metrics) Collect(metrics chan<- prometheus.Metric) {
	m.mu.Lock()
	now := m.tally.Read()
	var durations [len(m.durations)]*histogram
	for i, h := range m.durations {
		durations[i] = h.clone()
	}
	m.mu.Unlock()

	collect(metrics, tally.Metrics, m.read, &now.Stats)
	metrics <- prometheus.MustNewConstMetric(m.oldest, prometheus.GaugeValue, now.Stats.OldestAge.Seconds())
	metrics <- prometheus.MustNewConstMetric(m.erred, prometheus.GaugeValue, now.Stats.LastErrorAge.Seconds())
	metrics <- counted(m.doubt, now.InDoubt)
	for how, n := range now.Ended {
		metrics <- counted(m.ended, n, how)
	}
	for o, n := range now.Ends {
		metrics <- counted(m.attemptsEnded, n, o.End, o.Reason)
	}
	for f, n := range now.Failed {
		metrics <- counted(m.failed, n, f.Error, f.Reason)
	}
	for i, h := range durations {
		metrics <- h.metric(m.times[i], m.buckets)
	}
}

func describe[S any](all []tally.Metric[S], desc func(name, help string, labels ...string) *prometheus.Desc) (read []*prometheus.Desc) {
	for _, r := range all {
		name := "weir_" + strings.ReplaceAll(r.Name, ".", "_")
		if !r.Gauge {
			name += "_total"
		}
		var labels []string
		if r.Label != "" {
			labels = []string{r.Label}
		}
		read = append(read, desc(name, r.Help, labels...))
	}
	return read
}

func collect[S any](metrics chan<- prometheus.Metric, all []tally.Metric[S], read []*prometheus.Desc, s *S) {
	for i, r := range all {
		kind := prometheus.CounterValue
		if r.Gauge {
			kind = prometheus.GaugeValue
		}
		for _, v := range r.Of {
			var labels []string
			if r.Label != "" {
				labels = []string{v.Label}
			}
			metrics <- prometheus.MustNewConstMetric(read[i], kind, float64(v.Of(s)), labels...)
		}
	}
}

func counted(desc *prometheus.Desc, n int64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), labels...)
}
