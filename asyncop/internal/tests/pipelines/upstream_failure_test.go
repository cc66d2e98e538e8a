package pipelines_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reugn/go-streams"
	"github.com/reugn/go-streams/extension"
	streamsflow "github.com/reugn/go-streams/flow"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/flow"
)

var errBroken = errors.New("broken")

// failsAt is a call that takes a millisecond and fails for one number.
func failsAt(bad int) func(context.Context, int) (int, error) {
	return func(ctx context.Context, n int) (int, error) {
		if n == bad {
			return 0, errBroken
		}
		time.Sleep(time.Millisecond)
		return n, nil
	}
}

// A failure ends the operators and flows upstream, with a reason that names the failed
// step, and with them an endless source.
func TestFailure_EndsTheStepsUpstream(t *testing.T) {
	for name, c := range map[string]struct {
		last func() streams.Flow
		step string
	}{
		"a named operator": {func() streams.Flow {
			return asyncop.OrderedWait(asyncop.Blocking(failsAt(50)), 0, 4, asyncop.WithName("enrich"), asyncop.WithLogger(quiet))
		}, `operator "enrich"`},
		"an operator": {func() streams.Flow {
			return asyncop.OrderedWait(asyncop.Blocking(failsAt(50)), 0, 4, asyncop.WithLogger(quiet))
		}, "operator from int to int"},
		"a flow": {func() streams.Flow {
			return flow.NewMap(func(n int) string {
				if n == 50 {
					panic(errBroken)
				}
				return ""
			})
		}, "flow Map from int to string"},
		"a named flow": {func() streams.Flow {
			return flow.NewFilter(func(n int) bool {
				if n == 50 {
					panic(errBroken)
				}
				return true
			}, flow.WithName("check"))
		}, `flow Filter "check"`},
	} {
		t.Run(name, func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				source, cancelSource := context.WithCancelCause(context.Background())
				var calls atomic.Int64
				first := optest.Construct(m, asyncop.Blocking(func(ctx context.Context, n int) (int, error) {
					calls.Add(1)
					time.Sleep(time.Millisecond)
					return n, nil
				}), 0, nil, asyncop.WithUpstreamCancel(cancelSource), asyncop.WithLogger(quiet))
				between := flow.NewMap(func(n int) int { return n })
				last := c.last()
				go endless(source).Via(first).Via(between).Via(last).To(extension.NewIgnoreSink())

				err := first.Wait()
				require.ErrorIs(t, err, errBroken)
				failed, ok := errors.AsType[*asyncop.DownstreamError](err)
				require.True(t, ok, "%T %v", err, err)
				require.Equal(t, c.step, failed.Step)
				require.ErrorContains(t, err, "a later step has failed: "+c.step+": ")
				require.ErrorIs(t, context.Cause(source), failed)
				time.Sleep(time.Second) // calls that ignore their context end, too
				require.ErrorIs(t, between.Err(), failed)
				require.LessOrEqual(t, calls.Load(), int64(50+2*64+200), "the calls end at once")
			}, 1, 16)
		})
	}
}

// A flow with WithUpstreamCancel cancels the source itself.
func TestWithUpstreamCancel_OfAFlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, cancelSource := context.WithCancelCause(t.Context())
		broken := flow.NewMap(func(n int) int { return 10 / (n - 3) }, flow.WithUpstreamCancel(cancelSource))
		endless(source).Via(broken).To(extension.NewIgnoreSink())
		<-source.Done()
		require.Equal(t, broken.Err(), context.Cause(source))
		require.ErrorContains(t, broken.Err(), "integer divide by zero")
		synctest.Wait()

		source, cancelSource = context.WithCancelCause(t.Context())
		before := flow.NewMap(func(n int) int { return n }, flow.WithUpstreamCancel(cancelSource))
		broken = flow.NewMap(func(n int) int { return 10 / (n - 3) })
		endless(source).Via(before).Via(broken).To(extension.NewIgnoreSink())
		<-source.Done()
		require.Equal(t, before.Err(), context.Cause(source), "it ends with the later step")
		_, ok := errors.AsType[*asyncop.DownstreamError](before.Err())
		require.True(t, ok)
	})
}

// WithUpstreamRunning keeps the steps upstream running. Their results are discarded and
// counted.
func TestWithUpstreamRunning(t *testing.T) {
	broken := func(n int) int { return 10 / (n - 3) }
	for name, last := range map[string]func() streams.Flow{
		"an operator": func() streams.Flow {
			return asyncop.OrderedWait(asyncop.Blocking(failsAt(3)), 0, 4, asyncop.WithUpstreamRunning(), asyncop.WithLogger(quiet))
		},
		"a flow": func() streams.Flow { return flow.NewMap(broken, flow.WithUpstreamRunning()) },
		"a flow before a flow that fails": func() streams.Flow {
			f := flow.NewMap(func(n int) int { return n }, flow.WithUpstreamRunning())
			f.Via(flow.NewMap(broken)).Via(asyncop.OrderedWait(asyncop.Blocking(identity), 0, 4, asyncop.WithLogger(quiet)))
			return f
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first := asyncop.OrderedWait(asyncop.Blocking(identity), 0, 4, asyncop.WithLogger(quiet))
				for n := range 1000 {
					if n == 0 {
						first.Via(last())
					}
					first.In() <- n
				}
				synctest.Wait()
				require.NoError(t, first.Err())
				close(first.In())
				require.NoError(t, first.Wait())
				require.EqualValues(t, 1000, first.Stats().Emitted)
				time.Sleep(time.Second) // calls that ignore their context end, too
			})
		})
	}
}

// Stop of a later operator is not a failure: the steps upstream continue.
func TestStop_KeepsTheStepsUpstream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := asyncop.OrderedWait(asyncop.Blocking(identity), 0, 4, asyncop.WithLogger(quiet))
		second := asyncop.OrderedWait(asyncop.Blocking(identity), 0, 4, asyncop.WithLogger(quiet))
		done := make(chan struct{})
		go func() { defer close(done); first.Via(second).To(extension.NewIgnoreSink()) }()
		first.In() <- 1
		synctest.Wait()
		require.NoError(t, second.Stop(t.Context()))
		first.In() <- 2
		synctest.Wait()
		require.NoError(t, first.Err())
		close(first.In())
		require.NoError(t, first.Wait())
		<-done
	})
}

// A step of go-streams stops the failure: the operator behind it cancels the source
// itself.
func TestWithUpstreamCancel_BehindAStepOfGoStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, cancelSource := context.WithCancelCause(t.Context())
		first := asyncop.OrderedWait(asyncop.Blocking(failsAt(-1)), 0, 4, asyncop.WithLogger(quiet))
		second := asyncop.OrderedWait(asyncop.Blocking(failsAt(20)), 0, 4, asyncop.WithUpstreamCancel(cancelSource), asyncop.WithLogger(quiet))
		endless(source).Via(first).Via(streamsflow.NewMap(func(n int) int { return n }, 1)).Via(second).To(extension.NewIgnoreSink())
		require.ErrorIs(t, second.Wait(), errBroken)
		require.NoError(t, first.Wait(), "its input has ended")
		require.ErrorIs(t, context.Cause(source), errBroken)
		time.Sleep(time.Second)
	})
}

// A step that is connected after the failure gets it, too.
func TestFailure_BeforeTheWiring(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		second := asyncop.OrderedWait(asyncop.Blocking(failsAt(1)), 0, 4, asyncop.WithLogger(quiet))
		second.In() <- 1
		require.ErrorIs(t, second.Wait(), errBroken)
		first := asyncop.OrderedWait(asyncop.Blocking(identity), 0, 4, asyncop.WithLogger(quiet))
		first.Via(second)
		require.ErrorIs(t, first.Wait(), errBroken)
		close(first.In())
	})
}

// lines are the lines of a log.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, string(b))
	return len(b), nil
}

func (l *lines) with(text string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.all {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// The elements that an ended operator has discarded are logged once, with their count,
// when its input is closed.
func TestDiscardedElementsAreLogged(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		var log lines
		op := optest.Construct(m, asyncop.Blocking(failsAt(0)), 0, nil, asyncop.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		for n := range 1000 {
			op.In() <- n
		}
		require.ErrorIs(t, op.Wait(), errBroken)
		select {
		case <-op.InputClosed():
			require.Fail(t, "InputClosed before the input was closed")
		default:
		}
		close(op.In())
		<-op.InputClosed()
		time.Sleep(time.Second) // calls that ignore their context end, too
		found := log.with("discarded")
		require.Len(t, found, 1, "%q", log.all)
		s := op.Stats()
		require.EqualValues(t, 1000, s.Accepted+s.Discarded)
		require.Contains(t, found[0], `level=WARN msg="asyncop: elements came after the operator had ended early, and were discarded"`)
	}, 1, 16)
}

// After a clean end, InputClosed is closed before Done. Without an upstream it is closed
// with the operator.
func TestInputClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		op := asyncop.OrderedWait(asyncop.Blocking(identity), 0, 4)
		op.In() <- 1
		close(op.In())
		go func() {
			for range op.Out() { // read to its end
			}
		}()
		require.NoError(t, op.Wait())
		<-op.InputClosed()

		ctx, cancel := context.WithCancel(t.Context())
		cancelled := asyncop.OrderedWait(asyncop.Blocking(identity), 0, 4, asyncop.WithContext(ctx), asyncop.WithLogger(quiet))
		cancel()
		require.ErrorIs(t, cancelled.Wait(), context.Canceled)
		<-cancelled.InputClosed()
	})
}

// The discarded elements of a flow are logged as well.
func TestFlow_DiscardedElementsAreLogged(t *testing.T) {
	var log lines
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	f := flow.NewMap(func(n int) int { return 1 / n })
	go f.To(extension.NewIgnoreSink())
	for n := range 1000 {
		f.In() <- n
	}
	close(f.In())
	require.Eventually(t, func() bool { return len(log.with("discarded")) > 0 }, time.Minute, time.Millisecond)
	require.EqualValues(t, 999, f.Discarded())
	require.Contains(t, log.with("discarded")[0], "elements=999")
}
