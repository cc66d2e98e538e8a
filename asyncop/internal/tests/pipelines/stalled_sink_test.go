package pipelines_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reugn/go-streams"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/flow"
	"github.com/weirflow/weir/message"
)

// stalledSink takes some elements and then stops reading. It completes when it is
// released.
type stalledSink struct {
	in       chan any
	taken    atomic.Int64
	released chan struct{}
}

func newStalledSink(takes int) *stalledSink {
	s := &stalledSink{in: make(chan any), released: make(chan struct{})}
	go func() {
		for range takes {
			if _, ok := <-s.in; !ok {
				return
			}
			s.taken.Add(1)
		}
	}()
	return s
}

func (s *stalledSink) In() chan<- any { return s.in }

func (s *stalledSink) AwaitCompletion() { <-s.released }

// endless sends numbers until ctx ends.
func endless(ctx context.Context) *numbers {
	return &numbers{ctx: ctx, out: make(chan any), sent: new(atomic.Int64)}
}

type numbers struct {
	ctx  context.Context
	out  chan any
	sent *atomic.Int64
}

func (s *numbers) Out() <-chan any { return s.out }

func (s *numbers) Via(next streams.Flow) streams.Flow {
	go func() {
		defer close(next.In())
		for n := 0; ; n++ {
			select {
			case next.In() <- n:
				s.sent.Add(1)
			case <-s.ctx.Done():
				return
			}
		}
	}()
	return next
}

// quiet writes no log.
var quiet = slog.New(slog.DiscardHandler)

// idleObserver is an observer without effect. An operator that is observed waits for the
// reader of its results.
type idleObserver struct{}

func (idleObserver) Accepted(context.Context, any, bool) context.Context { return nil }

func (idleObserver) AttemptStarted(context.Context, int) context.Context { return nil }

func (idleObserver) AttemptEnded(context.Context, observe.Outcome) {}

func (idleObserver) Ended(context.Context, observe.Ending) {}

func identity(_ context.Context, n int) (int, error) { return n, nil }

var errTerm = errors.New("SIGTERM")

// stops are the ways in which a program ends an operator at once.
var stops = map[string]func(op *asyncop.AsyncWaitOperator[int, int], cancel context.CancelCauseFunc){
	"its context ends": func(_ *asyncop.AsyncWaitOperator[int, int], cancel context.CancelCauseFunc) { cancel(errTerm) },
	"the context of Stop ends": func(op *asyncop.AsyncWaitOperator[int, int], _ context.CancelCauseFunc) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = op.Stop(ctx)
	},
}

// Law F1: To and Wait return within a second of the end of the operator, although the
// sink never reads again. Results that were not delivered are counted.
func TestTo_SinkStopsReading(t *testing.T) {
	for name, stop := range stops {
		for _, observed := range []bool{false, true} {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				ctx, cancel := context.WithCancelCause(context.Background())
				defer cancel(nil)
				opts := optest.Options(asyncop.WithContext(ctx), asyncop.WithUpstreamCancel(cancel), asyncop.WithLogger(quiet))
				if observed {
					opts = append(opts, asyncop.WithObserver(idleObserver{}))
				}
				op := optest.Construct(m, asyncop.Blocking(identity), time.Minute, nil, opts...)
				sink := newStalledSink(5)
				returned := make(chan struct{})
				go func() {
					defer close(returned)
					endless(ctx).Via(op).(*asyncop.AsyncWaitOperator[int, int]).To(sink)
				}()
				synctest.Wait()
				stop(op, cancel)
				ended := time.Now()
				require.Error(t, op.Wait(), name)
				<-returned
				require.LessOrEqual(t, time.Since(ended), time.Second, name)
				s := op.Stats()
				require.EqualValues(t, 5, sink.taken.Load())
				require.Equal(t, s.Emitted, sink.taken.Load()+s.Undelivered)
				require.NotZero(t, s.Undelivered)
				close(sink.released)
			}, 1, 20)
		}
	}
}

// If the context of Stop is cancelled, To gives up, although the operator's own context
// has not ended.
func TestTo_SinkStopsReadingAndStopIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		op := asyncop.OrderedWait(asyncop.Blocking(identity), 0, 4, asyncop.WithLogger(quiet))
		sink := newStalledSink(5)
		returned := make(chan struct{})
		go func() {
			defer close(returned)
			op.To(sink)
		}()
		for i := range 8 {
			op.In() <- i
		}
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		stopped := time.Now()
		require.Error(t, op.Stop(ctx))
		<-returned
		require.LessOrEqual(t, time.Since(stopped), time.Second)
		require.NotZero(t, op.Stats().Undelivered)
		close(sink.released)
		close(op.In())
	})
}

// A sink that takes everything and then hangs, as one behind a stalled TCP peer does,
// does not block To after a cancel either.
func TestTo_SinkNeverCompletes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		op := asyncop.OrderedWait(asyncop.Blocking(identity), 0, 4, asyncop.WithContext(ctx), asyncop.WithLogger(quiet))
		sink := newStalledSink(1000)
		returned := make(chan struct{})
		go func() {
			defer close(returned)
			op.To(sink)
		}()
		op.In() <- 1
		synctest.Wait()
		cancel(errTerm)
		<-returned
		require.ErrorIs(t, op.Wait(), errTerm)
		require.Zero(t, op.Stats().Undelivered)
		close(sink.released)
		close(op.In())
	})
}

// After a clean end a slow sink gets every result, even if the context ends meanwhile. To
// gives up only if the sink stops reading.
func TestTo_ContextEndsAfterTheOperator(t *testing.T) {
	for _, takes := range []int{8, 3} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			op := asyncop.OrderedWait(asyncop.Blocking(identity), 0, 8, asyncop.WithContext(ctx), asyncop.WithLogger(quiet))
			sink := &stalledSink{in: make(chan any), released: make(chan struct{})}
			go func() {
				for range takes {
					time.Sleep(400 * time.Millisecond)
					<-sink.in
					sink.taken.Add(1)
				}
				if takes == 8 {
					<-sink.in
					close(sink.released)
				}
			}()
			returned := make(chan struct{})
			go func() {
				defer close(returned)
				op.To(sink)
			}()
			for n := range 8 {
				op.In() <- n
			}
			close(op.In())
			require.NoError(t, op.Wait())
			cancel(errTerm)
			<-returned
			require.NoError(t, op.Err())
			require.EqualValues(t, takes, sink.taken.Load())
			require.EqualValues(t, 8-takes, op.Stats().Undelivered)
			if takes != 8 {
				close(sink.released)
			}
		})
	}
}

// The deadline of Stop also counts for the results that a clean end has left in the
// buffer.
func TestStop_SinkStopsReadingAfterACleanEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		op := asyncop.OrderedWait(asyncop.Blocking(identity), 0, 8, asyncop.WithLogger(quiet))
		sink := newStalledSink(2)
		returned := make(chan struct{})
		go func() {
			defer close(returned)
			op.To(sink)
		}()
		for n := range 8 {
			op.In() <- n
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		began := time.Now()
		require.NoError(t, op.Stop(ctx))
		cancel() // the deadline counts, not the end of a context that Stop no longer needs
		<-returned
		require.Equal(t, 3500*time.Millisecond, time.Since(began))
		require.EqualValues(t, 6, op.Stats().Undelivered)
		close(sink.released)
		close(op.In())
	})
}

// A cancel reaches To of a flow and of a second operator, too, although full buffers are
// in between.
func TestTo_SinkStopsReadingBehindOtherSteps(t *testing.T) {
	for name, behind := range map[string]func(op streams.Flow) streams.Flow{
		"a flow": func(op streams.Flow) streams.Flow { return op.Via(flow.NewMap(func(n int) int { return n })) },
		"an operator": func(op streams.Flow) streams.Flow {
			return op.Via(asyncop.OrderedWait(asyncop.Blocking(identity), 0, 4, asyncop.WithLogger(quiet)))
		},
		"both": func(op streams.Flow) streams.Flow {
			return op.Via(flow.NewMap(func(n int) int { return n })).
				Via(asyncop.UnorderedWait(asyncop.Blocking(identity), 0, 4, asyncop.WithLogger(quiet)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				op := asyncop.OrderedWait(asyncop.Blocking(identity), 0, 4, asyncop.WithContext(ctx), asyncop.WithLogger(quiet))
				last := behind(endless(ctx).Via(op))
				sink := newStalledSink(5)
				returned := make(chan struct{})
				go func() {
					defer close(returned)
					last.To(sink)
				}()
				synctest.Wait()
				cancel(errTerm)
				ended := time.Now()
				<-returned
				require.LessOrEqual(t, time.Since(ended), time.Second)
				require.ErrorIs(t, op.Wait(), errTerm)
				undelivered := int64(0)
				switch last := last.(type) {
				case *flow.Flow:
					require.ErrorIs(t, last.Err(), errTerm)
					undelivered = last.Undelivered()
				case *asyncop.AsyncWaitOperator[int, int]:
					require.ErrorIs(t, last.Wait(), errTerm)
					undelivered = last.Stats().Undelivered
				}
				require.NotZero(t, undelivered)
				close(sink.released)
			})
		})
	}
}

// A cancel reaches To of a second operator even if the first operator has delivered all
// its results, so it does not wait for the second.
func TestTo_SinkStopsReadingBehindAnOperatorWithoutResults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		first := asyncop.OrderedWait(asyncop.Blocking(identity), 0, 4, asyncop.WithContext(ctx), asyncop.WithLogger(quiet))
		second := asyncop.OrderedWait(asyncop.Blocking(identity), 0, 4, asyncop.WithLogger(quiet))
		sink := newStalledSink(5)
		returned := make(chan struct{})
		go func() {
			defer close(returned)
			first.Via(second).(*asyncop.AsyncWaitOperator[int, int]).To(sink)
		}()
		for i := range 8 {
			first.In() <- i
		}
		synctest.Wait()
		cancel(errTerm)
		ended := time.Now()
		<-returned
		require.LessOrEqual(t, time.Since(ended), time.Second)
		require.ErrorIs(t, second.Wait(), errTerm)
		require.Zero(t, first.Stats().Undelivered)
		require.NotZero(t, second.Stats().Undelivered)
		close(sink.released)
		close(first.In())
	})
}

// Watermarks that were not delivered are not counted, because they are not results.
func TestTo_UndeliveredWatermarks(t *testing.T) {
	const taken, sent = 3, 10
	synctest.Test(t, func(t *testing.T) {
		for _, hasFlow := range []bool{false, true} {
			ctx, cancel := context.WithCancelCause(t.Context())
			op := asyncop.OrderedWait(asyncop.Blocking(identity), 0, 100, asyncop.WithContext(ctx), asyncop.WithLogger(quiet))
			sink := newStalledSink(taken)
			last, undelivered := streams.Flow(op), func() int64 { return op.Stats().Undelivered }
			if hasFlow {
				behind := flow.NewMap(func(n int) int { return n })
				op.Via(behind)
				last, undelivered = behind, behind.Undelivered
			}
			returned := make(chan struct{})
			go func() {
				defer close(returned)
				last.To(sink)
			}()
			for n := range sent {
				op.In() <- n
			}
			op.In() <- optest.Mark(1)
			synctest.Wait()
			cancel(errTerm)
			<-returned
			require.EqualValues(t, sent-taken, undelivered(), "flow %v", hasFlow)
			close(sink.released)
			close(op.In())
			<-op.InputClosed()
		}
	})
}

// Law D1: messages that were not delivered are nacked.
func TestTo_UndeliveredMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		op := asyncop.OrderedWait(asyncop.Blocking(identity), 0, 100, asyncop.WithContext(ctx), asyncop.WithLogger(quiet))
		sink := newStalledSink(3)
		returned := make(chan struct{})
		go func() {
			defer close(returned)
			op.To(sink)
		}()
		var nacked atomic.Int64
		for n := range 10 {
			op.In() <- message.New(n, &message.Meta{ID: "m"}, func(message.Settlement) { nacked.Add(1) })
		}
		synctest.Wait()
		cancel(errTerm)
		<-returned
		require.EqualValues(t, 7, nacked.Load())
		close(sink.released)
		close(op.In())
	})
}
