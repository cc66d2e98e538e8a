package weirotel_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/ext/internal/tallytest"
	"github.com/weirflow/weir/ext/otel/weirotel"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// recorder keeps the spans that have ended, and checks at the end that all have.
type recorder struct {
	*tracetest.SpanRecorder
	*sdktrace.TracerProvider
}

func newRecorder(t *testing.T, opts ...sdktrace.TracerProviderOption) *recorder {
	t.Helper()
	r := &recorder{SpanRecorder: tracetest.NewSpanRecorder()}
	r.TracerProvider = sdktrace.NewTracerProvider(append(opts, sdktrace.WithSpanProcessor(r.SpanRecorder))...)
	return r
}

// text describes spans as a tree, in the order in which they began, with their attributes
// and events.
func (r *recorder) text(t *testing.T) string {
	t.Helper()
	assert.Len(t, r.Ended(), len(r.Started()), "a span was not ended, or twice")
	var b strings.Builder
	ended := map[trace.SpanID]sdktrace.ReadOnlySpan{}
	for _, s := range r.Ended() {
		ended[s.SpanContext().SpanID()] = s
	}
	var write func(parent trace.SpanID, indent string)
	write = func(parent trace.SpanID, indent string) {
		for _, started := range r.Started() {
			s := ended[started.SpanContext().SpanID()]
			if s == nil || s.Parent().SpanID() != parent {
				continue
			}
			fmt.Fprintf(&b, "%s%s %v", indent, s.Name(), s.EndTime().Sub(s.StartTime()).Round(time.Millisecond))
			if s.SpanKind() != trace.SpanKindInternal {
				b.WriteString(" " + s.SpanKind().String())
			}
			writeAttributes(&b, s.Attributes())
			if s.Status().Code != codes.Unset {
				fmt.Fprintf(&b, " %v(%s)", s.Status().Code, s.Status().Description)
			}
			for _, l := range s.Links() {
				fmt.Fprintf(&b, " →%v", l.SpanContext.SpanID())
			}
			b.WriteString("\n")
			for _, e := range s.Events() {
				fmt.Fprintf(&b, "%s  * %s", indent, e.Name)
				if e.Name != "exception" {
					writeAttributes(&b, e.Attributes)
				}
				b.WriteString("\n")
			}
			write(s.SpanContext().SpanID(), indent+"  ")
		}
	}
	write(trace.SpanID{}, "")
	return b.String()
}

func writeAttributes(b *strings.Builder, attributes []attribute.KeyValue) {
	var texts []string
	for _, a := range attributes {
		if a.Key != "weir.operator.name" {
			texts = append(texts, fmt.Sprintf(" %s=%s", strings.TrimPrefix(string(a.Key), "weir."), a.Value.String()))
		}
	}
	slices.Sort(texts)
	b.WriteString(strings.Join(texts, ""))
}

// An element has a span, and each attempt a span below it, which clients find in their
// context. Retries are events, failures have a status and the error.
func TestSpans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(t)
		fn := asyncop.Func(func(ctx context.Context, in int, result asyncop.ResultFuture[int]) error {
			attempt := asyncop.AttemptFromContext(ctx)
			go func() {
				_, span := r.Tracer("client").Start(ctx, "GET", trace.WithSpanKind(trace.SpanKindClient))
				time.Sleep(100 * time.Millisecond)
				span.End()
				switch {
				case in == 1 && attempt == 1:
					result.CompleteExceptionally(predicates.WithReason(tallytest.ErrDown, tallytest.Busy))
				case in == 2:
					result.CompleteExceptionally(tallytest.ErrDown)
				default:
					result.Complete(in)
				}
			}()
			return nil
		})
		policy := strategies.ReasonAware(predicates.Named[int](),
			strategies.BestEffort[int]().WithBackoff(func(int) time.Duration { return time.Second })).Idempotent()
		op := asyncop.OrderedWaitWithRetry(fn, time.Minute, 1, policy, asyncop.WithDropOnFailure(),
			asyncop.WithObserver(weirotel.NewTraces("rows", r)), asyncop.WithLogger(quiet))
		for _, err := range op.Results(slices.Values([]int{0, 1, 2})) {
			require.NoError(t, err)
		}
		const failed = "error.type=*errors.errorString"
		assert.Equal(t, `rows 100ms element.attempts=1 element.ending=emitted element.results=1
  rows attempt 100ms attempt.number=1 attempt.results=1
    GET 100ms client
rows 1.2s element.attempts=2 element.ending=emitted element.results=1
  * weir.retry attempt.number=1 error.type=BUSY reason=BUSY retry.backoff=1
  rows attempt 100ms attempt.number=1 attempt.results=0 error.type=BUSY reason=BUSY Error(BUSY: down)
    * exception
    GET 100ms client
  rows attempt 100ms attempt.number=2 attempt.results=1
    GET 100ms client
rows 100ms element.attempts=1 element.ending=dropped element.in_doubt=true element.results=0 `+failed+` Error(down)
  * exception
  rows attempt 100ms attempt.number=1 attempt.results=0 `+failed+` Error(down)
    * exception
    GET 100ms client
`, r.text(t))
		for _, s := range r.Ended() {
			if strings.HasPrefix(s.Name(), "rows") {
				assert.Contains(t, s.Attributes(), attribute.String("weir.operator.name", "rows"))
			}
		}
	})
}

const (
	senderTrace = "0af7651916cd43dd8448eb211c80319c"
	senderSpan  = "b7ad6b7169203331"
)

// meta is the history of a message.
func meta(headers map[string]string) message.Meta {
	return message.Meta{
		ID: "orders/3/17", Origin: message.Origin{Source: "orders", Partition: "3", Position: "17"}, Visit: 2, Headers: headers,
	}
}

// withMeta returns the context of an element that is a message.
func withMeta(ctx context.Context, headers map[string]string) context.Context {
	return message.ContextWithMeta(ctx, meta(headers))
}

// messages returns messages of the sender.
func messages(values ...int) iter.Seq2[message.Message[int], error] {
	return func(yield func(message.Message[int], error) bool) {
		for _, v := range values {
			sent := meta(sender)
			if !yield(message.New(v, &sent, nil), nil) {
				return
			}
		}
	}
}

var sender = map[string]string{"Traceparent": "00-" + senderTrace + "-" + senderSpan + "-01", "tracestate": "a=b", "baggage": "tenant=7"}

// A message's span has a link to the span of its sender, from the W3C headers, and the
// attributes of the semantic conventions.
func TestMessageIsLinkedToItsSender(t *testing.T) {
	r := newRecorder(t)
	traces := weirotel.NewTraces("rows", r, weirotel.WithAttributes(attribute.String("messaging.system", "kafka")),
		weirotel.WithPropagator(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})))
	around, span := r.Tracer("program").Start(t.Context(), "run")
	op := asyncop.OrderedWait(asyncop.Func(func(ctx context.Context, in int, result asyncop.ResultFuture[int]) error {
		assert.Equal(t, "7", baggage.FromContext(ctx).Member("tenant").Value())
		assert.Equal(t, span.SpanContext().TraceID(), trace.SpanContextFromContext(ctx).TraceID())
		result.Complete(in)
		return nil
	}), 0, 4, asyncop.WithObserver(traces), asyncop.WithContext(around))
	for _, err := range op.Messages(messages(1)) {
		require.NoError(t, err)
	}
	span.End()
	lines := strings.Split(r.text(t), "\n")
	require.Len(t, lines, 4)
	assert.Regexp(t, `^  process orders \S+ consumer element.attempts=1 element.ending=emitted element.results=1 message.visit=2 `+
		`messaging.destination.name=orders messaging.destination.partition.id=3 messaging.message.id=orders/3/17 `+
		`messaging.operation.name=process messaging.operation.type=process messaging.system=kafka →`+senderSpan+`$`, lines[1])
	assert.Regexp(t, `^    rows attempt `, lines[2])
	for _, s := range r.Ended() {
		if len(s.Links()) > 0 {
			assert.Equal(t, senderTrace, s.Links()[0].SpanContext.TraceID().String())
			assert.Equal(t, "a=b", s.Links()[0].SpanContext.TraceState().String())
			assert.True(t, s.Links()[0].SpanContext.IsRemote())
		}
	}
}

// A message keeps the headers of its sender on its way, so each operator's span has a
// link to the sender's. A message that is delivered again has another span, with the same
// link and its own number of visits.
func TestMessageOnItsWay(t *testing.T) {
	r := newRecorder(t)
	operator := func(name string) *asyncop.AsyncWaitOperator[string, string] {
		return asyncop.OrderedWait(asyncop.Blocking(func(_ context.Context, in string) (string, error) { return in + name, nil }), time.Minute, 4,
			asyncop.WithObserver(weirotel.NewTraces(name, r)))
	}
	again := false
	deliver := func(visit int) {
		m := message.New("x", &message.Meta{ID: "17", Visit: visit, Headers: sender}, func(v message.Settlement) { again = v.Kind == message.Failed })
		first := operator("a").Messages(func(yield func(message.Message[string], error) bool) { yield(m, nil) })
		for out, err := range operator("b").Messages(first) {
			require.NoError(t, err)
			assert.Equal(t, "xab", out.Value)
			assert.Equal(t, sender, out.Meta().Headers)
			if visit == 1 {
				out.Nack(0)
			} else {
				out.Ack()
			}
		}
	}
	deliver(1)
	require.True(t, again)
	deliver(2)
	require.False(t, again)
	var got []string
	own := map[trace.TraceID]bool{}
	for _, s := range r.Started() {
		if s.SpanKind() != trace.SpanKindConsumer {
			continue
		}
		visit := "?"
		for _, a := range s.Attributes() {
			if a.Key == "weir.message.visit" {
				visit = a.Value.String()
			}
		}
		require.Len(t, s.Links(), 1)
		got = append(got, s.Name()+" "+visit+" →"+s.Links()[0].SpanContext.SpanID().String())
		own[s.SpanContext().TraceID()] = true
	}
	assert.Equal(t, []string{
		"process a 1 →" + senderSpan, "process b 1 →" + senderSpan, "process a 2 →" + senderSpan, "process b 2 →" + senderSpan,
	}, got)
	assert.Len(t, own, 4)
}

// With the option the sender's trace continues.
func TestMessageAsChildOfItsSender(t *testing.T) {
	r := newRecorder(t)
	traces := weirotel.NewTraces("rows", r, weirotel.WithMessageParent())
	ctx := traces.Accepted(withMeta(t.Context(), sender), 1, false)
	traces.Ended(ctx, observe.Ending{})
	require.Len(t, r.Ended(), 1)
	s := r.Ended()[0]
	assert.Equal(t, senderTrace, s.SpanContext().TraceID().String())
	assert.Equal(t, senderSpan, s.Parent().SpanID().String())
	assert.Len(t, s.Links(), 1)
}

// Headers that name no trace make no link, least of all to the span around the operator;
// nor do elements that are no messages.
func TestTraces_NoLink(t *testing.T) {
	for name, ctx := range map[string]func(context.Context) context.Context{
		"no headers": func(ctx context.Context) context.Context { return withMeta(ctx, nil) },
		"others":     func(ctx context.Context) context.Context { return withMeta(ctx, map[string]string{"a": "b"}) },
		"damaged": func(ctx context.Context) context.Context {
			return withMeta(ctx, map[string]string{"traceparent": "00-0-0-0"})
		},
		"no message": func(ctx context.Context) context.Context { return ctx },
	} {
		for _, opts := range [][]weirotel.Option{nil, {weirotel.WithMessageParent()}} {
			t.Run(name, func(t *testing.T) {
				r := newRecorder(t)
				around, span := r.Tracer("program").Start(t.Context(), "run")
				traces := weirotel.NewTraces("rows", r, opts...)
				traces.Ended(traces.Accepted(ctx(around), 1, false), observe.Ending{})
				require.Len(t, r.Ended(), 1)
				assert.Empty(t, r.Ended()[0].Links())
				assert.Equal(t, span.SpanContext().SpanID(), r.Ended()[0].Parent().SpanID())
			})
		}
	}
}

// Spans have no secrets of URLs.
func TestSpansHaveNoSecrets(t *testing.T) {
	r := newRecorder(t)
	op := asyncop.OrderedWait(asyncop.Blocking(func(context.Context, int) (int, error) {
		return 0, errors.New(`Get "https://ann:s3cret@bank/pay?key=s3cret": refused`)
	}), time.Minute, 1, asyncop.WithDropOnFailure(), asyncop.WithObserver(weirotel.NewTraces("rows", r)), asyncop.WithLogger(quiet))
	for _, err := range op.Results(slices.Values([]int{1})) {
		require.NoError(t, err)
	}
	for _, s := range r.Ended() {
		require.Len(t, s.Events(), 1)
		text := fmt.Sprint(s.Status().Description, s.Attributes(), s.Events()[0].Attributes)
		assert.NotContains(t, text, "s3cret")
		assert.Equal(t, 2, strings.Count(text, "https://ann:xxxxx@bank/pay?xxxxx"), text)
		assert.Contains(t, s.Events()[0].Attributes, attribute.String("exception.type", "*errors.errorString"))
	}
	require.Len(t, r.Ended(), 2)
}

// Spans end whatever becomes of their element, and those around the operator stay as they
// are.
func TestSpansOfWhatIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(t)
		ctx, around := r.Tracer("program").Start(t.Context(), "run")
		ctx, cancel := context.WithCancelCause(ctx)
		op := asyncop.OrderedWait(asyncop.Func(func(_ context.Context, in int, result asyncop.ResultFuture[int]) error {
			if in > 1 {
				result.Complete(in)
			}
			return nil
		}), time.Hour, 2, asyncop.WithObserver(weirotel.NewTraces("rows", r)), asyncop.WithContext(ctx), asyncop.WithMaxConcurrentCalls(1),
			asyncop.WithLogger(quiet))
		op.In() <- 0 // runs
		op.In() <- 1 // waits for a permit
		op.In() <- 2 // waits in the channel: it is discarded
		synctest.Wait()
		time.Sleep(time.Second)
		cancel(tallytest.ErrDown)
		<-op.Done()
		op.In() <- 3
		close(op.In())
		synctest.Wait()
		assert.True(t, around.IsRecording(), "it is not ours")
		around.End()
		const failed = " error.type=*errors.errorString Error(down)\n"
		assert.Equal(t, `run 1s
  rows 1s element.attempts=1 element.ending=abandoned element.in_doubt=true element.results=0 error.type=*errors.errorString Error(down)
    * exception
    rows attempt 1s attempt.number=1 attempt.results=0 error.type=*errors.errorString Error(context canceled)
      * exception
  rows 1s element.attempts=0 element.ending=abandoned element.results=0`+failed+"    * exception\n", r.text(t))
	})

	t.Run("discarded", func(t *testing.T) { // its results lie in a ring when the loop is left
		synctest.Test(t, func(t *testing.T) {
			r := newRecorder(t)
			op := asyncop.OrderedWait(asyncop.Func(double), 0, 8, asyncop.WithObserver(weirotel.NewTraces("rows", r)))
			for range op.Results(slices.Values([]int{1, 2, 3, 4})) {
				synctest.Wait()
				break
			}
			text := r.text(t)
			assert.Equal(t, 1, strings.Count(text, "ending=emitted"), text)
			assert.Equal(t, 3, strings.Count(text, "ending=discarded element.in_doubt=true element.results=1 Error(discarded)"), text)
		})
	})

	t.Run("kept", func(t *testing.T) { // it continues after the restart
		synctest.Test(t, func(t *testing.T) {
			store := checkpointtest.NewMemoryStore()
			for _, want := range []string{
				"rows 0s element.attempts=1 element.ending=kept element.in_doubt=true element.results=0\n",
				"rows 0s element.attempts=1 element.ending=kept element.in_doubt=true element.restored=true element.results=0\n",
			} {
				r := newRecorder(t)
				store = store.Reopen()
				c, err := checkpoint.NewCoordinator(store)
				require.NoError(t, err)
				values := make(chan int, 1)
				values <- 1
				source := checkpoint.NewSource(c, "numbers", checkpointtest.NewChannelInput(values))
				op := asyncop.OrderedWait(asyncop.Func(func(context.Context, int, asyncop.ResultFuture[int]) error { return nil }), 0, 1,
					asyncop.WithName("rows"), asyncop.WithCheckpoints(c), asyncop.WithObserver(weirotel.NewTraces("rows", r)))
				sink := checkpoint.NewSink(c, "out", discard{})
				require.NoError(t, c.Start())
				go source.Via(op).To(sink)
				synctest.Wait()
				require.NoError(t, c.Finish(t.Context(), checkpoint.Suspend))
				require.NoError(t, c.Wait())
				<-op.Done()
				sink.AwaitCompletion()
				synctest.Wait()
				assert.Contains(t, r.text(t), want)
			}
		})
	})
}

type discard struct{}

func (discard) Write(context.Context, int) error        { return nil }
func (discard) Prepare(context.Context) ([]byte, error) { return nil, nil }
func (discard) Commit(context.Context, []byte) error    { return nil }
func (discard) Restore(context.Context, []byte) error   { return nil }
func (discard) Close() error                            { return nil }

func double(_ context.Context, in int, result asyncop.ResultFuture[int]) error {
	result.Complete(2 * in)
	return nil
}

// A span that is not sampled is not recorded, and an attempt is sampled as its element
// is.
func TestSampling(t *testing.T) {
	for name, c := range map[string]struct {
		sampler sdktrace.Sampler
		want    int
	}{
		"never":  {sdktrace.NeverSample(), 0},
		"always": {sdktrace.AlwaysSample(), 4},
		"parent": {sdktrace.ParentBased(&everySecond{}), 2},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRecorder(t, sdktrace.WithSampler(c.sampler))
			op := asyncop.OrderedWait(asyncop.Func(func(ctx context.Context, in int, result asyncop.ResultFuture[int]) error {
				assert.True(t, trace.SpanContextFromContext(ctx).IsValid(), "clients are told that it is not sampled")
				result.Complete(in)
				return nil
			}), 0, 4, asyncop.WithObserver(weirotel.NewTraces("rows", r)))
			for _, err := range op.Results(slices.Values([]int{1, 2})) {
				require.NoError(t, err)
			}
			assert.Len(t, r.Ended(), c.want)
			byTrace := map[trace.TraceID]int{}
			for _, s := range r.Ended() {
				byTrace[s.SpanContext().TraceID()]++
			}
			for _, n := range byTrace {
				assert.Equal(t, 2, n, "an element and its attempt")
			}
		})
	}
}

// everySecond samples every second root span.
type everySecond struct{ n int }

func (s *everySecond) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	if s.n++; s.n%2 == 0 {
		return sdktrace.AlwaysSample().ShouldSample(p)
	}
	return sdktrace.NeverSample().ShouldSample(p)
}
func (*everySecond) Description() string { return "every second" }

// Operators that run inside a call, and two observers of one operator, do not take each
// other's spans.
func TestOperatorInsideOfACall(t *testing.T) {
	r := newRecorder(t)
	outer := asyncop.OrderedWait(asyncop.Blocking(func(ctx context.Context, in int) (int, error) {
		inner := asyncop.OrderedWait(asyncop.Func(double), 0, 4, asyncop.WithContext(ctx), asyncop.WithObserver(weirotel.NewTraces("inner", r)))
		for v, err := range inner.Results(slices.Values([]int{in})) {
			return v, err
		}
		return 0, tallytest.ErrDown
	}), 0, 4, asyncop.WithObserver(weirotel.NewTraces("outer", r)))
	for _, err := range outer.Results(slices.Values([]int{1})) {
		require.NoError(t, err)
	}
	var names []string
	for line := range strings.Lines(r.text(t)) {
		name, _, _ := strings.Cut(strings.TrimRight(line, "\n"), "s ")
		names = append(names, strings.TrimRight(name, "0123456789.mµn "))
	}
	assert.Equal(t, []string{"outer", "  outer attempt", "    inner", "      inner attempt"}, names)
}

// A call for many elements finds the span of each member in its contexts, and all spans
// end.
func TestBatchedCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(t)
		client := r.Tracer("client")
		op := asyncop.OrderedWait(asyncop.Batched(func(ctx context.Context, ins []int) ([]asyncop.Result[int], error) {
			assert.False(t, trace.SpanContextFromContext(ctx).IsValid(), "it belongs to many traces")
			var links []trace.Link
			for _, member := range asyncop.MemberContexts(ctx) {
				links = append(links, trace.LinkFromContext(member))
			}
			_, span := client.Start(ctx, "POST", trace.WithLinks(links...))
			defer span.End()
			results := make([]asyncop.Result[int], len(ins))
			for i, in := range ins {
				results[i].Value = in
			}
			return results, nil
		}, 3, time.Second), time.Minute, 3, asyncop.WithObserver(weirotel.NewTraces("rows", r)))
		for _, err := range op.Results(slices.Values([]int{1, 2, 3})) {
			require.NoError(t, err)
		}
		attempts := map[trace.SpanID]bool{}
		var linked []trace.SpanID
		for _, s := range r.Ended() {
			switch s.Name() {
			case "rows attempt":
				attempts[s.SpanContext().SpanID()] = true
			case "POST":
				for _, l := range s.Links() {
					linked = append(linked, l.SpanContext.SpanID())
				}
			}
		}
		assert.Len(t, r.Started(), 7)
		assert.Len(t, r.Ended(), 7)
		require.Len(t, linked, 3)
		for _, id := range linked {
			assert.True(t, attempts[id])
		}
	})
}

// An element that an inner operator has not accepted has the context of the call around
// it: the span in there is not that operator's.
func TestSpanOfAnotherOperatorStays(t *testing.T) {
	r := newRecorder(t)
	outer, inner := weirotel.NewTraces("outer", r), weirotel.NewTraces("inner", r)
	element := outer.Accepted(t.Context(), 1, false)
	attempt := outer.AttemptStarted(element, 1)
	inner.AttemptEnded(attempt, observe.Outcome{})
	inner.Ended(attempt, observe.Ending{How: observe.Discarded})
	assert.Empty(t, r.Ended())
	outer.AttemptEnded(attempt, observe.Outcome{})
	outer.Ended(element, observe.Ending{})
	assert.Len(t, r.Ended(), 2)
}

// A6: an error whose methods panic costs its text, not the end of the span.
func TestErrorThatPanics(t *testing.T) {
	r := newRecorder(t)
	op := asyncop.OrderedWait(asyncop.Func(func(context.Context, int, asyncop.ResultFuture[int]) error { return badError{} }), 0, 4,
		asyncop.WithObserver(weirotel.NewTraces("rows", r)), asyncop.WithDropOnFailure(), asyncop.WithLogger(quiet))
	for _, err := range op.Results(slices.Values([]int{1})) {
		require.NoError(t, err)
	}
	assert.Len(t, r.Started(), 2)
	assert.Len(t, r.Ended(), 2)
}

type badError struct{}

func (badError) Error() string { panic("no text") }

// Invalid arguments panic at once.
func TestPanics(t *testing.T) {
	r := newRecorder(t)
	assert.PanicsWithValue(t, "weirotel: NewTraces: empty name", func() { weirotel.NewTraces("", r) })
	assert.PanicsWithValue(t, "weirotel: NewTraces: nil provider", func() { weirotel.NewTraces("rows", nil) })
	assert.PanicsWithValue(t, "weirotel: NewTraces: option 0 is nil", func() { weirotel.NewTraces("rows", r, nil) })
	assert.PanicsWithValue(t, "weirotel: WithPropagator: nil propagator", func() { weirotel.WithPropagator(nil) })
	assert.PanicsWithValue(t, "weirotel: NewMetrics: empty name", func() { _, _ = weirotel.NewMetrics("", nil) })
	assert.PanicsWithValue(t, "weirotel: NewMetrics: nil provider", func() { _, _ = weirotel.NewMetrics("rows", nil) })
	assert.PanicsWithValue(t, "weirotel: ObserveCheckpoints: empty name", func() { _, _ = weirotel.ObserveCheckpoints("", nil, nil) })
	assert.PanicsWithValue(t, "weirotel: ObserveCheckpoints: nil coordinator",
		func() { _, _ = weirotel.ObserveCheckpoints("rows", nil, nil) })
}

// An open set of reasons has a bounded number of histograms, and whatever is not UTF-8
// reaches no exporter: protobuf refuses a batch with it.
func TestHostileReasonsAndTexts(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	metrics, err := weirotel.NewMetrics("rows", sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
	require.NoError(t, err)
	spans := newRecorder(t)
	op := asyncop.UnorderedWaitWithRetry(
		asyncop.Blocking(func(_ context.Context, i int) (int, error) { return 0, fmt.Errorf("account \xff%d", i) }), time.Minute, 16,
		strategies.ReasonAware[int](func(a *predicates.Attempt[int]) (predicates.Reason, bool) {
			return predicates.NewRejection(fmt.Sprintf("R\xff_%v", a.Err)), true
		}, nil), asyncop.WithObserver(metrics), asyncop.WithObserver(weirotel.NewTraces("rows", spans)), asyncop.WithDropOnFailure(), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
	for _, err := range op.Messages(func(yield func(message.Message[int], error) bool) {
		for i := range 300 {
			if !yield(message.New(i, &message.Meta{ID: fmt.Sprint("id\xff", i), Origin: message.Origin{Source: "q\xfe"}}, func(message.Settlement) {}), nil) {
				return
			}
		}
	}) {
		require.NoError(t, err)
	}
	valid := func(attributes []attribute.KeyValue) {
		for _, a := range attributes {
			require.True(t, utf8.ValidString(a.Value.String()), "%s: %q", a.Key, a.Value.String())
		}
	}
	require.NotEmpty(t, spans.Ended())
	for _, s := range spans.Ended() {
		require.True(t, utf8.ValidString(s.Name()+s.Status().Description), "%q %q", s.Name(), s.Status().Description)
		valid(s.Attributes())
		for _, e := range s.Events() {
			valid(e.Attributes)
		}
	}
	var all metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &all))
	series := 0
	for _, m := range all.ScopeMetrics[0].Metrics {
		switch d := m.Data.(type) {
		case metricdata.Histogram[float64]:
			for _, p := range d.DataPoints {
				valid(p.Attributes.ToSlice())
			}
			if m.Name == "messaging.process.duration" {
				series = len(d.DataPoints)
			}
		case metricdata.Sum[int64]:
			for _, p := range d.DataPoints {
				valid(p.Attributes.ToSlice())
			}
		}
	}
	require.Equal(t, 101, series)
}
