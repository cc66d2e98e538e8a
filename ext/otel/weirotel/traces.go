package weirotel

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/ext/internal/tally"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
)

// Traces is an [observe.Observer] that makes a span for each element and attempt of an
// operator, one operator at a time. Methods are safe for concurrent use.
type Traces struct {
	tracer     trace.Tracer
	name       string
	operator   attribute.KeyValue
	element    []attribute.KeyValue // of all elements' spans
	attempt    trace.SpanStartOption
	propagator propagation.TextMapPropagator
	isChild    bool // child of the message's trace, not linked to it
}

var _ observe.Observer = (*Traces)(nil)

// Option changes a setting of [Traces]. Options panic if their argument is invalid.
type Option func(*Traces)

// WithPropagator sets the propagator that reads the headers of a message; the default is
// [propagation.TraceContext], which is W3C traceparent and tracestate. Attempts get the
// baggage that it finds in their contexts. It panics if p is nil.
func WithPropagator(p propagation.TextMapPropagator) Option {
	if guard.IsNil(p) {
		panic("weirotel: WithPropagator: nil propagator")
	}
	return func(t *Traces) { t.propagator = p }
}

// WithMessageParent makes the span of a message a child of the span that its headers
// name, so that a single trace goes from the sender to the last attempt. The default is a
// link, because a message may be delivered several times, and long after it was sent.
func WithMessageParent() Option {
	return func(t *Traces) { t.isChild = true }
}

// WithAttributes adds attributes to the span of each element, such as messaging.system.
func WithAttributes(attributes ...attribute.KeyValue) Option {
	return func(t *Traces) { t.element = append(t.element, attributes...) }
}

// NewTraces returns the traces of the named operator, for [asyncop.WithObserver]; later
// observers find the span in the context. It panics if the name is empty or the provider
// nil.
func NewTraces(operator string, provider trace.TracerProvider, opts ...Option) *Traces {
	switch {
	case operator == "":
		panic("weirotel: NewTraces: empty name")
	case guard.IsNil(provider):
		panic("weirotel: NewTraces: nil provider")
	}
	t := &Traces{
		tracer: provider.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL)), name: operator,
		operator: operatorKey.String(operator), propagator: propagation.TraceContext{},
	}
	t.element = []attribute.KeyValue{t.operator}
	t.attempt = trace.WithAttributes(t.operator)
	for i, opt := range opts {
		if opt == nil {
			panic(fmt.Sprintf("weirotel: NewTraces: option %d is nil", i))
		}
		opt(t)
	}
	return t
}

// spanKey finds spans of t in a context. Outer operators have other keys.
type spanKey struct {
	t         *Traces
	isAttempt bool
}

type spanContext struct {
	context.Context //nolint:containedctx // it is one
	key             spanKey
	span            trace.Span
}

func (c *spanContext) Value(key any) any {
	if k, ok := key.(spanKey); ok && k == c.key {
		return c.span
	}
	return c.Context.Value(key)
}

func (t *Traces) spanOf(ctx context.Context, isAttempt bool) trace.Span {
	span, _ := ctx.Value(spanKey{t, isAttempt}).(trace.Span)
	return span
}

// Accepted implements [observe.Observer]: it begins the element's span.
func (t *Traces) Accepted(ctx context.Context, _ any, restored bool) context.Context {
	name := t.name
	opts := make([]trace.SpanStartOption, 0, 4)
	if restored {
		opts = append(opts, trace.WithAttributes(attribute.Bool("weir.element.restored", true)))
	}
	if m, ok := message.MetaFromContext(ctx); ok {
		if m.Origin.Source != "" {
			name = m.Origin.Source
		}
		name = "process " + name
		opts = append(opts, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(messageAttributes(m)...))
		var link trace.Link
		ctx, link = t.extract(ctx, m.Headers)
		if link.SpanContext.IsValid() {
			opts = append(opts, trace.WithLinks(link))
		}
	}
	opts = append(opts, trace.WithAttributes(t.element...)) // last, since the user's win
	ctx, span := t.tracer.Start(ctx, valid(name), opts...)
	return &spanContext{ctx, spanKey{t, false}, span}
}

// extract returns ctx with the trace in a message's headers, and the link to its sender,
// which is invalid without a trace.
func (t *Traces) extract(ctx context.Context, headers map[string]string) (context.Context, trace.Link) {
	if len(headers) == 0 {
		return ctx, trace.Link{}
	}
	around := trace.SpanFromContext(ctx)
	ctx = t.propagator.Extract(trace.ContextWithSpanContext(ctx, trace.SpanContext{}), carrier(headers))
	sender := trace.SpanContextFromContext(ctx)
	if !t.isChild || !sender.IsValid() {
		ctx = trace.ContextWithSpan(ctx, around)
	}
	return ctx, trace.Link{SpanContext: sender}
}

func messageAttributes(m message.Meta) []attribute.KeyValue {
	attributes := []attribute.KeyValue{system, semconv.MessagingOperationName("process"), semconv.MessagingOperationTypeProcess}
	for key, value := range map[attribute.Key]string{
		semconv.MessagingMessageIDKey:              m.ID,
		semconv.MessagingDestinationNameKey:        m.Origin.Source,
		semconv.MessagingDestinationPartitionIDKey: m.Origin.Partition,
	} {
		if value != "" {
			attributes = append(attributes, key.String(valid(value)))
		}
	}
	if m.Visit > 0 {
		attributes = append(attributes, attribute.Int("weir.message.visit", m.Visit))
	}
	return attributes
}

// AttemptStarted implements [observe.Observer]: it begins the attempt's span.
func (t *Traces) AttemptStarted(ctx context.Context, attempt int) context.Context {
	ctx, span := t.tracer.Start(ctx, t.name+" attempt", t.attempt, trace.WithAttributes(attribute.Int("weir.attempt.number", attempt)))
	return &spanContext{ctx, spanKey{t, true}, span}
}

// AttemptEnded implements [observe.Observer]: it ends the attempt's span. A retry is an
// event of the element's span.
func (t *Traces) AttemptEnded(ctx context.Context, o observe.Outcome) {
	span := t.spanOf(ctx, true)
	if span == nil {
		return // another observer's AttemptStarted has panicked before ours was called
	}
	defer span.End() // also if a method of the error panics
	if o.Retry {
		t.retries(ctx, o)
	}
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(attribute.Int("weir.attempt.results", o.Results))
	setReason(span, o.Reason)
	if o.Err != nil {
		setError(span, o.Err, o.Reason)
	}
}

func (t *Traces) retries(ctx context.Context, o observe.Outcome) {
	span := t.spanOf(ctx, false)
	if span == nil || !span.IsRecording() {
		return
	}
	attributes := []attribute.KeyValue{
		attribute.Int("weir.attempt.number", o.Attempt), attribute.Float64("weir.retry.backoff", o.Delay.Seconds()),
	}
	if !o.Reason.IsZero() {
		attributes = append(attributes, reasonKey.String(valid(o.Reason.Name())))
	}
	if o.Err != nil {
		attributes = append(attributes, errorType(o.Err, o.Reason))
	}
	span.AddEvent("weir.retry", trace.WithAttributes(attributes...))
}

// Ended implements [observe.Observer]: it ends the element's span, if the element was
// accepted.
func (t *Traces) Ended(ctx context.Context, e observe.Ending) {
	span := t.spanOf(ctx, false)
	if span == nil {
		return
	}
	defer span.End() // also if a method of the error panics
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(endingKey.String(tally.EndingOf(e.How)), attribute.Int("weir.element.attempts", e.Attempts),
		attribute.Int("weir.element.results", e.Results))
	if e.InDoubt {
		span.SetAttributes(attribute.Bool("weir.element.in_doubt", true))
	}
	setReason(span, e.Reason)
	switch {
	case e.Err != nil && e.How == observe.Abandoned: // not because of its last outcome
		setError(span, e.Err, predicates.Reason{})
	case e.Err != nil:
		setError(span, e.Err, e.Reason)
	case e.How == observe.Abandoned, e.How == observe.Discarded:
		span.SetStatus(codes.Error, e.How.String())
	}
}

func setReason(span trace.Span, r predicates.Reason) {
	if !r.IsZero() {
		span.SetAttributes(reasonKey.String(valid(r.Name())))
	}
}

// valid returns valid UTF-8: an exporter refuses a batch with any other text.
func valid(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

// errorType returns the class of an error by the semantic conventions: its reason, if
// that is the cause, or its Go type.
func errorType(err error, reason predicates.Reason) attribute.KeyValue {
	var timeout *asyncop.TimeoutError
	if reason.IsZero() || errors.As(err, &timeout) {
		return semconv.ErrorType(err)
	}
	return semconv.ErrorTypeKey.String(valid(reason.Name()))
}

func setError(span trace.Span, err error, reason predicates.Reason) {
	span.SetAttributes(errorType(err, reason))
	text := valid(guard.Text(err)) // RecordError would write the secrets of URLs
	span.SetStatus(codes.Error, text)
	span.AddEvent(semconv.ExceptionEventName, trace.WithAttributes(semconv.ExceptionType(fmt.Sprintf("%T", err)), semconv.ExceptionMessage(text)))
}

// carrier is a message's headers as a carrier. Header names are case-insensitive.
type carrier map[string]string

func (c carrier) Get(name string) string {
	if v, ok := c[name]; ok {
		return v
	}
	for n, v := range c {
		if strings.EqualFold(n, name) {
			return v
		}
	}
	return ""
}

func (c carrier) Set(name, value string) { c[name] = value }

func (c carrier) Keys() []string {
	names := make([]string, 0, len(c))
	for n := range c {
		names = append(names, n)
	}
	return names
}
