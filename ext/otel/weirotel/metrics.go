package weirotel

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/ext/internal/tally"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
)

const scope = "github.com/weirflow/weir/ext/otel/weirotel"

// system is the messaging system, unless the user's attributes name another.
var system = semconv.MessagingSystemKey.String("weir")

const (
	operatorKey   = attribute.Key("weir.operator.name")
	endingKey     = attribute.Key("weir.element.ending")
	outcomeKey    = attribute.Key("weir.attempt.outcome")
	reasonKey     = attribute.Key("weir.reason")
	errorKey      = attribute.Key("weir.error")
	pipelineKey   = attribute.Key("weir.pipeline.name")
	checkpointKey = attribute.Key("weir.checkpoint.result")
	queueKey      = attribute.Key("weir.queue.name")
	workerKey     = attribute.Key("weir.worker.name")
	serviceKey    = attribute.Key("weir.service.name")
	backendKey    = attribute.Key("weir.backend.name")
	causeKey      = attribute.Key("weir.cause")
	stateKey      = attribute.Key("weir.state")
	partitionKey  = attribute.Key("weir.partition.name")
)

// Metrics is an [observe.Observer] that reports the metrics of an operator to a meter.
//
// It may be given to several operators, such as the operators of all partitions, or of a
// pipeline that is started again in the same process. Counters and gauges are sums then,
// and the age is the oldest element's of all. Its methods are safe for concurrent use.
type Metrics struct {
	operator attribute.KeyValue
	option   []metric.RecordOption // with operator
	reg      metric.Registration

	attempt, element, queue, backoff, process metric.Float64Histogram

	messaging []attribute.KeyValue // of process

	mu    sync.Mutex
	tally tally.Tally // guarded by mu
}

var _ observe.Observer = (*Metrics)(nil)

// NewMetrics returns the metrics of the named operator, for [asyncop.WithObserver]. The
// attributes are added to messaging.process.duration: set messaging.system if the
// messages come from another system, such as kafka. Errors come from the provider. It
// panics if the name is empty or the provider nil.
func NewMetrics(operator string, provider metric.MeterProvider, messaging ...attribute.KeyValue) (*Metrics, error) {
	switch {
	case operator == "":
		panic("weirotel: NewMetrics: empty name")
	case guard.IsNil(provider):
		panic("weirotel: NewMetrics: nil provider")
	}
	m := &Metrics{operator: operatorKey.String(operator)}
	m.messaging = append([]attribute.KeyValue{m.operator, system, semconv.MessagingOperationName("process")}, messaging...)
	m.option = []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(m.operator))}
	in := instruments{meter: provider.Meter(scope)}
	m.attempt = in.histogram("weir.attempt.duration", "Time from the begin of an attempt until its end is known.")
	m.element = in.histogram("weir.element.duration", "Time from the slot to the end of an element, over all its attempts.")
	m.queue = in.histogram("weir.element.queue.duration", "Time from the slot of an element to its first attempt.")
	m.backoff = in.histogram("weir.retry.backoff", "Waits before retries.")
	m.process = in.histogram("messaging.process.duration", "Duration of processing operation.")
	m.observe(&in)
	if in.err != nil {
		return nil, fmt.Errorf("weirotel: NewMetrics: %w", in.err)
	}
	m.reg = in.registration
	return m, nil
}

func (m *Metrics) observe(in *instruments) {
	read := readings(in, tally.Metrics, m.operator)
	ended := in.counter("weir.elements.ended", "Elements by how they ended.", "{element}")
	inDoubt := in.counter("weir.elements.in_doubt", "Elements that were not emitted although an attempt may have taken effect.", "{element}")
	attemptsEnded := in.counter("weir.attempts.ended", "Attempts by their outcome, and the reason that a classifier gave it.", "{attempt}")
	failures := in.counter("weir.element.failures",
		"Elements that were handed over or dropped, by what their errors have in common: the ten groups with the most.", "{element}")
	oldest := in.gauge("weir.elements.oldest_age", "Time since the oldest element in flight took its slot; 0 if there is none.", "s")
	lastError := in.gauge("weir.last_error.age", "Time since the last error of an attempt, or timeout of an element; 0 before the first error.", "s")

	own := metric.WithAttributeSet(attribute.NewSet(m.operator))
	in.register(func(_ context.Context, o metric.Observer) error {
		m.mu.Lock()
		now := m.tally.Read()
		m.mu.Unlock()
		read(o, &now.Stats)
		for how, n := range now.Ended {
			o.ObserveInt64(ended, n, metric.WithAttributes(m.operator, endingKey.String(how)))
		}
		o.ObserveInt64(inDoubt, now.InDoubt, own)
		for out, n := range now.Ends {
			set := []attribute.KeyValue{m.operator, outcomeKey.String(out.End)}
			if out.Reason != "" {
				set = append(set, reasonKey.String(out.Reason))
			}
			o.ObserveInt64(attemptsEnded, n, metric.WithAttributes(set...))
		}
		for f, n := range now.Failed {
			o.ObserveInt64(failures, n, metric.WithAttributes(m.operator, errorKey.String(f.Error), reasonKey.String(f.Reason)))
		}
		o.ObserveFloat64(oldest, now.Stats.OldestAge.Seconds(), own)
		o.ObserveFloat64(lastError, now.Stats.LastErrorAge.Seconds(), own)
		return nil
	})
}

// Unregister ends the reading of the operator's metrics. Call it to release the metrics
// before their provider ends.
func (m *Metrics) Unregister() error { return m.reg.Unregister() }

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

// Accepted implements [observe.Observer]. It does not change the context.
func (m *Metrics) Accepted(context.Context, any, bool) context.Context { return nil }

// AttemptStarted implements [observe.Observer]. It does not change the context.
func (m *Metrics) AttemptStarted(context.Context, int) context.Context { return nil }

// AttemptEnded implements [observe.Observer]. Exemplars are made from ctx.
func (m *Metrics) AttemptEnded(ctx context.Context, o observe.Outcome) {
	a := tally.AttemptEndOf(o)
	m.mu.Lock()
	m.tally.CountAttempt(&a)
	m.mu.Unlock()
	m.attempt.Record(ctx, o.Duration.Seconds(), m.option...)
	if o.Retry {
		m.backoff.Record(ctx, o.Delay.Seconds(), m.option...)
	}
}

// Ended implements [observe.Observer]. Exemplars are made from ctx.
func (m *Metrics) Ended(ctx context.Context, e observe.Ending) {
	el := tally.ElementOf(e)
	m.mu.Lock()
	m.tally.Element(&el)
	m.mu.Unlock()
	if el.Accepted {
		m.element.Record(ctx, e.Total.Seconds(), m.option...)
		m.queue.Record(ctx, e.Queued.Seconds(), m.option...)
		m.processed(ctx, e)
	}
}

func (m *Metrics) processed(ctx context.Context, e observe.Ending) {
	meta, ok := message.MetaFromContext(ctx)
	if !ok {
		return
	}
	set := slices.Clip(m.messaging)
	if meta.Origin.Source != "" {
		set = append(set, semconv.MessagingDestinationName(valid(meta.Origin.Source)))
	}
	if e.Err != nil {
		m.mu.Lock()
		reason := m.tally.Bounded(e.Reason)
		m.mu.Unlock()
		set = append(set, errorType(e.Err, reason))
	}
	m.process.Record(ctx, e.Total.Seconds(), metric.WithAttributes(set...))
}

// bounds are the default bounds of the histograms, in seconds: 100 µs to 100 s.
var bounds = func() (b []float64) {
	for unit := 100 * time.Microsecond; unit < 100*time.Second; unit *= 10 {
		b = append(b, unit.Seconds(), (5 * unit / 2).Seconds(), (5 * unit).Seconds())
	}
	return append(b, 100)
}()

type instruments struct {
	meter        metric.Meter
	observables  []metric.Observable
	registration metric.Registration
	err          error
}

func (in *instruments) keep(err error) {
	if in.err == nil {
		in.err = err
	}
}

func (in *instruments) histogram(name, help string) metric.Float64Histogram {
	h, err := in.meter.Float64Histogram(name, metric.WithDescription(help), metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(bounds...))
	in.keep(err)
	return h
}

func (in *instruments) counter(name, help, unit string) metric.Int64Observable {
	c, err := in.meter.Int64ObservableCounter(name, metric.WithDescription(help), metric.WithUnit(unit))
	in.keep(err)
	in.observables = append(in.observables, c)
	return c
}

func (in *instruments) upDown(name, help, unit string) metric.Int64Observable {
	c, err := in.meter.Int64ObservableUpDownCounter(name, metric.WithDescription(help), metric.WithUnit(unit))
	in.keep(err)
	in.observables = append(in.observables, c)
	return c
}

func (in *instruments) gauge(name, help, unit string) metric.Float64Observable {
	g, err := in.meter.Float64ObservableGauge(name, metric.WithDescription(help), metric.WithUnit(unit))
	in.keep(err)
	in.observables = append(in.observables, g)
	return g
}

// readings makes the instruments of metrics that are read from statistics, and returns a
// function that reports them.
func readings[S any](in *instruments, all []tally.Metric[S], own attribute.KeyValue) func(o metric.Observer, s *S) {
	read := make([]metric.Int64Observable, len(all))
	sets := make([][]metric.ObserveOption, len(all)) // by metric and value
	for i, r := range all {
		unit := "{" + r.Unit + "}"
		if r.Unit == "By" { // a unit of UCUM, not a counted thing
			unit = r.Unit
		}
		if r.Gauge {
			read[i] = in.upDown("weir."+r.Name, r.Help, unit)
		} else {
			read[i] = in.counter("weir."+r.Name, r.Help, unit)
		}
		for _, v := range r.Of {
			set := []attribute.KeyValue{own}
			if r.Label != "" {
				set = append(set, attribute.String("weir."+r.Label, v.Label))
			}
			sets[i] = append(sets[i], metric.WithAttributeSet(attribute.NewSet(set...)))
		}
	}
	return func(o metric.Observer, s *S) {
		for i, r := range all {
			for j, v := range r.Of {
				o.ObserveInt64(read[i], v.Of(s), sets[i][j])
			}
		}
	}
}

func (in *instruments) register(read metric.Callback) {
	if in.err != nil {
		return
	}
	var err error
	in.registration, err = in.meter.RegisterCallback(read, in.observables...)
	in.keep(err)
}
