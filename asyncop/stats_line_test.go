package asyncop_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/observe"
)

// elementKey is the key under which a labeller puts an element into its context.
type elementKey struct{}

// contextLog is a slog.Handler that writes what it finds in the context of a line, as one does that looks for the id of a
// trace.
type contextLog struct {
	mu    sync.Mutex
	text  bytes.Buffer // guarded by mu
	level slog.Level
}

func (l *contextLog) Enabled(_ context.Context, level slog.Level) bool { return level >= l.level }
func (l *contextLog) WithAttrs([]slog.Attr) slog.Handler               { panic("not used") }
func (l *contextLog) WithGroup(string) slog.Handler                    { panic("not used") }

func (l *contextLog) Handle(ctx context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.AddAttrs(slog.Any("ctx", ctx.Value(elementKey{})), slog.Any("ended", ctx.Err()))
	return slog.NewTextHandler(&l.text, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == "ended" && a.Value.Any() == nil {
				return slog.Attr{}
			}
			return a
		},
	}).Handle(ctx, r)
}

// lines returns the lines since the last time.
func (l *contextLog) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := strings.TrimSuffix(l.text.String(), "\n")
	l.text.Reset()
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

// labeller is an observer that gives each element a context of its own, which ends soon: only the values count.
type labeller struct{}

func (labeller) Accepted(ctx context.Context, element any, _ bool) context.Context {
	ctx, cancel := context.WithCancel(context.WithValue(ctx, elementKey{}, element))
	cancel()
	return ctx
}
func (labeller) AttemptStarted(context.Context, int) context.Context { return nil }
func (labeller) AttemptEnded(context.Context, observe.Outcome)       {}
func (labeller) Ended(context.Context, observe.Ending)               {}

// takesSecond returns a sink that does not take every second failure that it is offered, beginning with the first.
func takesSecond() func(context.Context, failure) error {
	n := 0
	return func(context.Context, failure) error {
		if n++; n%2 == 1 {
			return errBroken
		}
		return nil
	}
}

// Lines about an element have its context, whatever they say; so a handler can add the id of its trace. The other lines have
// that of the operator.
func TestLinesHaveTheContextOfTheirElement(t *testing.T) {
	const none = " ctx=<nil>"
	for name, c := range map[string]struct {
		opts []asyncop.Option
		want []string // what the lines about the end of b say
	}{
		"dropped": {options(asyncop.WithDropOnFailure()), []string{"asyncop: element dropped"}},
		"handed over": {options(asyncop.WithFailureSink(takesSecond())), []string{
			"asyncop: the failure sink did not take an element", "asyncop: element handed over to the failure sink",
		}},
		"failed": {nil, []string{"asyncop: operator failed"}},
	} {
		t.Run(name, func(t *testing.T) {
			forEachMode(t, func(t *testing.T, m mode) {
				log := &contextLog{level: slog.LevelDebug}
				r := newRig(t, m, setup{timeout: time.Hour, strategy: retryAll(1, time.Second), opts: append(options(
					asyncop.WithObserver(labeller{}), asyncop.WithLogger(slog.New(log))), c.opts...)})
				r.send("a", "b")
				r.fail("b#1", errBroken)
				r.fail("a#1", errBroken)
				r.advance(time.Second)
				r.complete("a#2", "x")
				r.fail("b#2", errBroken)
				r.advance(time.Second)
				r.endInputOnce()
				_ = r.wait()
				lines := log.lines()
				want := append([]string{"asyncop: retry", "asyncop: retry", "asyncop: no retry"}, c.want...)
				require.Len(t, lines, len(want), lines)
				for i, msg := range want {
					in := "b"
					if i == 1 {
						in = "a"
					}
					assert.Contains(t, lines[i], `"`+msg+`"`)
					assert.Contains(t, lines[i], " ctx="+in)
					assert.NotContains(t, lines[i], "ended=")
				}
			})
		})
	}

	t.Run("of the operator", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			log := &contextLog{}
			ctx, cancel := context.WithCancelCause(t.Context())
			op := asyncop.OrderedWait(asyncop.Func(func(_ context.Context, in int, result asyncop.ResultFuture[int]) error {
				return nil
			}), time.Hour, 5, asyncop.WithObserver(labeller{}), asyncop.WithLogger(slog.New(log)), asyncop.WithContext(ctx))
			op.In() <- 1
			synctest.Wait()
			cancel(errBroken)
			close(op.In())
			require.ErrorIs(t, op.Wait(), errBroken)
			lines := log.lines()
			require.Len(t, lines, 1)
			assert.Contains(t, lines[0], "operator cancelled")
			assert.Contains(t, lines[0], none)
		})
	})

	t.Run("without observers", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			log := &contextLog{}
			op := asyncop.OrderedWait(asyncop.Func(func(context.Context, int, asyncop.ResultFuture[int]) error { return errBroken }), 0, 5,
				asyncop.WithLogger(slog.New(log)), asyncop.WithDropOnFailure(),
				asyncop.WithContext(context.WithValue(t.Context(), elementKey{}, "all")))
			for _, err := range op.Results(upTo(2)) {
				require.NoError(t, err)
			}
			lines := log.lines()
			require.Len(t, lines, 2)
			assert.Contains(t, lines[0], " ctx=all")
		})
	})
}

// The line with the statistics comes at intervals while something goes on, and once at the end.
func TestStatsEvery(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		log := &contextLog{}
		r := newRig(t, m, setup{timeout: time.Hour, strategy: retryAll(1, time.Minute), opts: options(
			asyncop.WithName("rows"), asyncop.WithDropOnFailure(), asyncop.WithLogger(slog.New(log)), asyncop.WithStatsEvery(10*time.Second),
		)})
		stats := func() (lines []string) {
			for _, line := range log.lines() {
				if strings.Contains(line, "statistics") {
					line = strings.TrimPrefix(line, `level=INFO msg="asyncop: statistics" `)
					lines = append(lines, strings.TrimSuffix(line, " operator=rows ctx=<nil>"))
				}
			}
			return lines
		}
		r.advance(time.Hour)
		assert.Empty(t, stats(), "idle from the beginning")

		r.send("a", "b")
		r.advance(10*time.Second - 1)
		assert.Empty(t, stats(), "before it is due")
		r.advance(1)
		assert.Equal(t, []string{
			"accepted=2 in_flight=2 running=2 waiting=0 completed=0 per_second=0 attempts=2 retries=0 failures=0 oldest_age=10s",
		}, stats())

		r.complete("a#1", "x")
		r.fail("b#1", errBroken)
		r.advance(10 * time.Second)
		assert.Equal(t, []string{
			"accepted=2 in_flight=1 running=0 waiting=1 completed=1 per_second=0.1 attempts=2 retries=0 failures=0 oldest_age=20s",
		}, stats())
		r.advance(30*time.Second + 123*time.Microsecond)
		assert.Len(t, stats(), 3, "as long as an element is in flight")
		r.advance(20 * time.Second)
		stats()

		r.fail("b#2", errBroken)
		r.advance(10 * time.Second)
		assert.Equal(t, []string{
			"accepted=2 in_flight=0 running=0 waiting=0 completed=1 per_second=0 attempts=3 retries=1 failures=1 exhausted=1",
		}, stats(), "what has changed since the last line")
		r.advance(24 * time.Hour)
		assert.Empty(t, stats(), "idle")

		r.send("c")
		r.complete("c#1", "y")
		assert.Empty(t, stats())
		require.NoError(t, r.end())
		last := stats()
		require.Len(t, last, 1, "at the end")
		assert.Contains(t, last[0], "accepted=3 in_flight=0 running=0 waiting=0 completed=2 ")
	})
}

// All that has come is in the last line, however the operator ends.
func TestLastStatsAreFinal(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		log := &contextLog{}
		r := newRig(t, m, setup{opts: options(asyncop.WithLogger(slog.New(log)), asyncop.WithStatsEvery(time.Hour))})
		r.send("a", "b")
		cause := errors.New("cut")
		require.ErrorIs(t, r.cut(cause), cause)
		r.endInputOnce()
		lines := log.lines()
		require.NotEmpty(t, lines)
		assert.Contains(t, lines[len(lines)-1], "asyncop: statistics")
		assert.Contains(t, lines[len(lines)-1], " in_flight=0 ")
		assert.Contains(t, lines[len(lines)-1], " abandoned=2 ")
	})
	synctest.Test(t, func(t *testing.T) {
		log := &contextLog{}
		op := asyncop.OrderedWait(asyncop.Func(double), 0, 8, asyncop.WithLogger(slog.New(log)), asyncop.WithStatsEvery(time.Second))
		for _, err := range op.ResultsOf(asyncop.FromSlice([]int{1, 2, 3})) {
			require.NoError(t, err)
		}
		lines := log.lines()
		require.Len(t, lines, 1)
		assert.Contains(t, lines[0], "accepted=3 ")
		assert.Contains(t, lines[0], " completed=3 ")
	})
}

// Law T1: an idle operator does not tick for its statistics, and without elements there are none.
func TestStatsEveryOfAnIdleOperator(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		log := &contextLog{}
		c := &countingClock{Clock: clock.New()}
		r := newRig(t, m, setup{opts: options(
			asyncop.WithClock(c), asyncop.WithLogger(slog.New(log)), asyncop.WithStatsEvery(time.Second),
		)})
		r.send("a")
		r.complete("a#1", "x")
		r.advance(time.Minute)
		assert.Len(t, log.lines(), 1)
		uses, fired := c.uses.Load(), c.fired.Load()
		r.advance(24 * time.Hour)
		assert.Equal(t, uses, c.uses.Load())
		assert.Equal(t, fired, c.fired.Load())
		require.NoError(t, r.end())
		assert.Empty(t, log.lines(), "the last line has said all")
	})
	assert.PanicsWithValue(t, "asyncop: WithStatsEvery: negative interval: -1s", func() { asyncop.WithStatsEvery(-time.Second) })
}

// reader is an observer that reads the statistics.
type reader struct {
	labeller
	stats func() asyncop.Stats
	done  <-chan struct{}
}

func (r *reader) Attach(stats func() asyncop.Stats, done <-chan struct{}) {
	r.stats, r.done = stats, done
}

// An observer that wants them has the statistics from the beginning to the end.
func TestAttachedObserver(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		o := &reader{}
		r := newRig(t, m, setup{opts: options(asyncop.WithObserver(o))})
		assert.Zero(t, o.stats())
		r.send("a")
		assert.EqualValues(t, 1, o.stats().InFlight)
		r.complete("a#1", "x")
		require.NoError(t, r.end())
		<-o.done
		assert.EqualValues(t, 1, o.stats().Completed)
	})
}
