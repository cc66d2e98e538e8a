package backend_test

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/lookup"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/backend"
)

// pausesAtStart is an observer that pauses a process between the start of an attempt,
// which has its permit, and the call.
type pausesAtStart struct {
	observe.Observer
	process *fleetProcess
}

func (o pausesAtStart) Accepted(ctx context.Context, _ any, _ bool) context.Context { return ctx }

func (o pausesAtStart) AttemptStarted(ctx context.Context, _ int) context.Context {
	o.process.pause()
	return ctx
}

func (o pausesAtStart) AttemptEnded(context.Context, observe.Outcome) {}
func (o pausesAtStart) Ended(context.Context, observe.Ending)         {}

// Law B5: a call checks the lease directly before it begins, for each kind of function.
// The process is paused while it holds permits, and meanwhile another process gets them.
func TestShared_PausedBeforeTheCall(t *testing.T) {
	const limit = 4
	for _, route := range []string{"blocking", "calling by itself", "batch", "lookup", "lookup of a batch", "hedge", "nested"} {
		t.Run(route, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine, service := &lossyKeeper{}, &limited{}
				paused := &fleetProcess{link: &link{lossyKeeper: engine}}
				paused.Backend = backend.New("payments", backend.Limit(limit), backend.Shared(paused.link), backend.LongestCall(2*time.Second))
				plain := asyncop.Blocking(func(ctx context.Context, i int) (int, error) { return i, service.call(ctx, time.Second) })
				batch := asyncop.Batched(func(ctx context.Context, in []int) ([]asyncop.Result[int], error) {
					return make([]asyncop.Result[int], len(in)), service.call(ctx, time.Second)
				}, 2, 0)
				routes := map[string]asyncop.AsyncFunction[int, int]{
					"blocking": plain, "calling by itself": calling{service}, "batch": batch, "lookup": lookup.New(plain, nil),
					"lookup of a batch": lookup.New(batch, nil), "hedge": twice{plain},
					"nested": asyncop.Blocking(func(ctx context.Context, i int) (int, error) {
						paused.pause()
						inner := asyncop.UnorderedWait(plain, time.Minute, 2, asyncop.WithBackend(paused.Backend), asyncop.WithContext(ctx))
						for _, err := range inner.Results(elementsUntil(ctx, 4)) {
							if err != nil {
								return 0, err
							}
						}
						return i, nil
					}),
				}
				ctx, stop := context.WithCancel(t.Context())
				opts := []asyncop.Option{asyncop.WithBackend(paused.Backend), asyncop.WithContext(ctx), asyncop.WithDropOnFailure()}
				if route != "nested" {
					opts = append(opts, asyncop.WithObserver(pausesAtStart{process: paused}))
				}
				op := asyncop.UnorderedWait(routes[route], time.Hour, 20, opts...)
				paused.gone.Go(func() {
					for range op.Results(elementsUntil(ctx, 1000)) {
					}
				})
				time.Sleep(5 * time.Second)
				require.Positive(t, service.peak())

				until := time.Now().Add(30 * time.Second)
				paused.link.set(&paused.link.cut, until.Add(10*time.Second))
				paused.link.set(&paused.link.paused, until)
				other := startWorker(t, &counted{}, 0, &link{lossyKeeper: engine}, backend.Limit(limit), backend.LongestCall(2*time.Second))
				second := asyncop.UnorderedWait(plain, time.Hour, 20, asyncop.WithBackend(other.Backend), asyncop.WithContext(ctx))
				paused.gone.Go(func() {
					for range second.Results(elementsUntil(ctx, 10000)) {
					}
				})
				time.Sleep(29 * time.Second)
				require.Equal(t, limit, other.Stats().Limit, "the other process has all permits")
				before := paused.Stats().Started
				time.Sleep(60 * time.Second)
				require.LessOrEqual(t, service.peak(), limit)
				require.Greater(t, paused.Stats().Started, before, "it makes calls again: %+v", paused.Stats())
				stop()
				time.Sleep(time.Minute)
				paused.gone.Wait()
				other.end()
			})
		})
	}
}

// A function that panics or ends its goroutine releases its permit, also if it makes
// its call by itself.
func TestShared_FunctionPanicsOrExits(t *testing.T) {
	for name, fail := range map[string]func(){"panic": func() { panic("a bug") }, "Goexit": runtime.Goexit} {
		call := func(i int) int {
			if i%2 == 0 {
				fail()
			}
			return i
		}
		for route, f := range map[string]asyncop.AsyncFunction[int, int]{
			"blocking": asyncop.Blocking(func(_ context.Context, i int) (int, error) { return call(i), nil }),
			"batch": asyncop.Batched(func(_ context.Context, in []int) ([]asyncop.Result[int], error) {
				return []asyncop.Result[int]{{Value: call(in[0])}}, nil
			}, 1, 0),
			"calling by itself": failing{call},
		} {
			t.Run(name+"/"+route, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					engine := newEngine(t)
					b := backend.New("payments", backend.Limit(1), backend.Shared(engine))
					op := asyncop.UnorderedWait(f, time.Minute, 5, asyncop.WithBackend(b), asyncop.WithDropOnFailure())
					var got []int
					var failure error
					for i, err := range op.Results(elementsUntil(t.Context(), 6)) {
						if err != nil {
							failure = err
							break
						}
						got = append(got, i)
					}
					if name == "Goexit" && route == "calling by itself" {
						require.Error(t, failure, "it has ended the loop of the operator")
					} else {
						require.NoError(t, failure)
						require.ElementsMatch(t, []int{1, 1}, got)
					}
					synctest.Wait() // a blocking call may return after its element has left
					require.Zero(t, b.Stats().InUse)
					require.Equal(t, `{"members":{}}`, shares(t, engine))
				})
			})
		}
	}
}

// failing makes its call by itself, on the goroutine of the operator.
type failing struct{ call func(int) int }

func (f failing) AsyncInvoke(_ context.Context, i int, out asyncop.ResultFuture[int]) error {
	out.Complete(f.call(i))
	return nil
}
