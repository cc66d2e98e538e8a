package checkpoints_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/files"
	"github.com/weirflow/weir/flow"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// Law C3: a failing element may end the run at any point of a checkpoint. The next run
// resumes, and the output is complete.
func TestFailedRunsCanBeRestarted(t *testing.T) {
	for run := range 25 {
		dir := t.TempDir()
		in, fails := make([]string, 200), fmt.Sprint(7*run%200)
		for i := range in {
			in[i] = fmt.Sprint(i)
		}
		for _, broken := range []bool{true, false} {
			lookup := asyncop.Blocking(func(_ context.Context, s string) (string, error) {
				if broken && s == fails {
					return "", errors.New("no such row")
				}
				return s, nil
			})
			store := optest.Must(files.OpenDir(filepath.Join(dir, "checkpoints")))
			c := optest.Must(checkpoint.NewCoordinator(store, checkpoint.WithInterval(50*time.Microsecond),
				checkpoint.WithLogger(slog.New(slog.DiscardHandler))))
			source := checkpoint.NewSource(c, "in", checkpointtest.NewSliceInput(in))
			op := asyncop.OrderedWait(lookup, time.Minute, 16, asyncop.WithName("lookup"), asyncop.WithCheckpoints(c),
				asyncop.WithLogger(slog.New(slog.DiscardHandler)))
			sink := checkpoint.NewSink(c, "out", files.NewLineOutput(filepath.Join(dir, "out")))
			require.NoError(t, c.Start(), "run %d", run)
			source.Via(op).To(sink)
			require.Equal(t, broken, c.Wait() != nil, "run %d", run)
			require.NoError(t, c.Close())
		}
		require.Equal(t, strings.Join(in, "\n")+"\n", string(optest.Must(os.ReadFile(filepath.Join(dir, "out")))), "run %d", run)
	}
}

// fedInput returns values until it is sent an error.
type fedInput struct {
	checkpoint.Input[string]
	broken chan error
}

func (in fedInput) Wait(ctx context.Context) error {
	w := in.Input.(checkpoint.Waiter)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case err := <-in.broken:
			cancel(err)
		case <-ctx.Done():
		}
	}()
	if err := w.Wait(ctx); err != nil {
		if cause := context.Cause(ctx); errors.Is(cause, optest.ErrBroken) {
			return cause
		}
		return err
	}
	return nil
}

// fragileOutput fails if it is given an error.
type fragileOutput struct{ err error }

func (o fragileOutput) Restore(context.Context, []byte) error   { return nil }
func (o fragileOutput) Write(context.Context, string) error     { return o.err }
func (o fragileOutput) Prepare(context.Context) ([]byte, error) { return []byte{}, nil }
func (o fragileOutput) Commit(context.Context, []byte) error    { return nil }
func (o fragileOutput) Close() error                            { return nil }

// Laws C2, D1: a run that fails, is closed or is cancelled does not end the input. An
// element that waits for a retry is redelivered in the next run, so it gets no last
// attempt and does not fail.
func TestFailedRunIsNotTheEndOfTheInput(t *testing.T) {
	type pipeline struct {
		coordinator *checkpoint.Coordinator
		values      chan string
		broken      chan error // to the input
		cancel      context.CancelCauseFunc
	}
	ends := map[string]func(p pipeline){
		"the sink fails":              func(p pipeline) { p.values <- "good" },
		"the input fails":             func(p pipeline) { p.broken <- optest.ErrBroken },
		"a participant fails":         func(p pipeline) { p.coordinator.Host().Fail("other", optest.ErrBroken) },
		"the coordinator is closed":   func(p pipeline) { _ = p.coordinator.Close() },
		"the operator is cancelled":   func(p pipeline) { p.cancel(optest.ErrBroken) },
		"a flow in front of it fails": func(p pipeline) { p.values <- "panic" },
	}
	for name, end := range ends {
		for _, takesPart := range []bool{true, false} {
			for _, capacity := range []int{3, 16} { // whether or not elements that wait fill it
				switch {
				case capacity == 3 && (!takesPart || name == "the sink fails" || name == "a flow in front of it fails"):
					continue // the value that would trigger the end has no slot
				case !takesPart && name == "the sink fails":
					continue // the result waits behind the barrier
				}
				t.Run(fmt.Sprintf("%s/takes part %v/capacity %d", name, takesPart, capacity), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						quiet := slog.New(slog.DiscardHandler)
						p := pipeline{values: make(chan string), broken: make(chan error, 1)}
						p.coordinator = optest.Must(checkpoint.NewCoordinator(checkpointtest.NewMemoryStore(), checkpoint.WithLogger(quiet)))
						ctx, cancel := context.WithCancelCause(t.Context())
						defer cancel(nil)
						p.cancel = cancel
						input := fedInput{checkpointtest.NewChannelInput(p.values), p.broken}
						source := checkpoint.NewSource(p.coordinator, "in", checkpoint.Input[string](input))
						var calls, dead atomic.Int64
						call := asyncop.Blocking(func(_ context.Context, s string) (string, error) {
							if s == "good" {
								return s, nil
							}
							calls.Add(1)
							return "", optest.ErrAgain
						})
						opts := optest.Options(asyncop.WithContext(ctx), asyncop.WithLogger(quiet), asyncop.WithBuffer(0),
							asyncop.WithFailureSink(func(_ context.Context, f asyncop.Failure[string]) error {
								dead.Add(1)
								return nil
							}))
						if takesPart {
							opts = append(opts, asyncop.WithName("op"), asyncop.WithCheckpoints(p.coordinator))
						}
						op := asyncop.UnorderedWaitWithRetry(call, 24*time.Hour, capacity,
							strategies.FixedDelay[string](3, time.Hour).RetryIfException(predicates.HasException), opts...)
						sink := checkpoint.NewSink(p.coordinator, "out", checkpoint.Output[string](fragileOutput{optest.ErrBroken}))
						require.NoError(t, p.coordinator.Start())
						done := make(chan struct{})
						go func() {
							defer close(done)
							source.Via(flow.NewMap(func(s string) string {
								if s == "panic" {
									panic(optest.ErrBroken)
								}
								return s
							})).Via(op).To(sink)
						}()
						for _, s := range []string{"x", "y", "z"} {
							p.values <- s
						}
						synctest.Wait()
						go func() { // if it does not take part, the barrier waits behind them
							_, _ = p.coordinator.Trigger(context.Background())
						}()
						synctest.Wait()
						began := time.Now()
						end(p)
						require.Error(t, p.coordinator.Wait())
						<-done
						<-op.Done()
						require.Error(t, op.Err())
						require.Zero(t, dead.Load(), "failures: they come again")
						require.EqualValues(t, 3, calls.Load(), "calls")
						require.Less(t, time.Since(began), time.Minute, "until the operator has noticed")
						_ = p.coordinator.Close()
					})
				})
			}
		}
	}
}
