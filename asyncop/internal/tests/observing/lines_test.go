package observing_test

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

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/asyncop/observe"
)

// elementKey is the key of the element in a labeller's contexts.
type elementKey struct{}

// contextLog is a slog.Handler that writes the element in the context of a line, like a
// handler that looks for a trace id.
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

// lines returns the lines since its last call.
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

// labeller is an observer that gives each element its own context. The context ends soon,
// because only the values count.
type labeller struct{}

func (labeller) Accepted(ctx context.Context, element any, _ bool) context.Context {
	ctx, cancel := context.WithCancel(context.WithValue(ctx, elementKey{}, element))
	cancel()
	return ctx
}
func (labeller) AttemptStarted(context.Context, int) context.Context { return nil }
func (labeller) AttemptEnded(context.Context, observe.Outcome)       {}
func (labeller) Ended(context.Context, observe.Ending)               {}

// takesSecond returns a sink that refuses every other failure that it is offered,
// beginning with the first.
func takesSecond() func(context.Context, optest.Failure) error {
	n := 0
	return func(context.Context, optest.Failure) error {
		if n++; n%2 == 1 {
			return optest.ErrBroken
		}
		return nil
	}
}

// Lines about an element have its context, whatever their message, so that a handler can
// add the id of its trace. The other lines have the context of the operator.
func TestLinesHaveTheContextOfTheirElement(t *testing.T) {
	const none = " ctx=<nil>"
	for name, c := range map[string]struct {
		opts []asyncop.Option
		want []string // the messages of the lines about the end of b
	}{
		"dropped": {optest.Options(asyncop.WithDropOnFailure()), []string{"asyncop: element dropped"}},
		"handed over": {optest.Options(asyncop.WithFailureSink(takesSecond())), []string{
			"asyncop: the failure sink did not take an element", "asyncop: element handed over to the failure sink",
		}},
		"failed": {nil, []string{"asyncop: operator failed"}},
	} {
		t.Run(name, func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				log := &contextLog{level: slog.LevelDebug}
				r := optest.NewRig(t, m, optest.Setup{Timeout: time.Hour, Strategy: optest.RetryAll(1, time.Second), Opts: append(optest.Options(
					asyncop.WithObserver(labeller{}), asyncop.WithLogger(slog.New(log))), c.opts...)})
				r.Send("a", "b")
				r.Fail("b#1", optest.ErrBroken)
				r.Fail("a#1", errors.New("another failure"))
				r.Advance(time.Second)
				r.Complete("a#2", "x")
				r.Fail("b#2", optest.ErrBroken)
				r.Advance(time.Second)
				r.EndInputOnce()
				_ = r.Wait()
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
			cancel(optest.ErrBroken)
			close(op.In())
			require.ErrorIs(t, op.Wait(), optest.ErrBroken)
			lines := log.lines()
			require.Len(t, lines, 1)
			assert.Contains(t, lines[0], "operator cancelled")
			assert.Contains(t, lines[0], none)
		})
	})

	t.Run("without observers", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			log := &contextLog{}
			op := asyncop.OrderedWait(asyncop.Func(func(context.Context, int, asyncop.ResultFuture[int]) error { return optest.ErrBroken }), 0, 5,
				asyncop.WithLogger(slog.New(log)), asyncop.WithDropOnFailure(),
				asyncop.WithContext(context.WithValue(t.Context(), elementKey{}, "all")))
			for _, err := range op.Results(optest.UpTo(2)) {
				require.NoError(t, err)
			}
			lines := log.lines()
			require.Len(t, lines, 2)
			assert.Contains(t, lines[0], " ctx=all")
		})
	})
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

// An observer can get the statistics, from the beginning to the end.
func TestAttachedObserver(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		o := &reader{}
		r := optest.NewRig(t, m, optest.Setup{Opts: optest.Options(asyncop.WithObserver(o))})
		assert.Zero(t, o.stats().Accepted)
		r.Send("a")
		assert.EqualValues(t, 1, o.stats().InFlight)
		r.Complete("a#1", "x")
		require.NoError(t, r.End())
		<-o.done
		assert.EqualValues(t, 1, o.stats().Completed)
	})
}
