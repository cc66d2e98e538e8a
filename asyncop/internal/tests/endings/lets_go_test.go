package endings_test

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
)

// ---- Elements that have left are not retained.

type large struct{ _ [1 << 10]byte }

// Neither an idle operator nor one that has ended retains elements that have left.
func TestOperatorLetsGoOfElements(t *testing.T) {
	for name, fn := range map[string]asyncop.AsyncFunction[*large, *large]{
		"at once": asyncop.Func(func(_ context.Context, in *large, result asyncop.ResultFuture[*large]) error {
			result.Complete(in)
			return nil
		}),
		"later": asyncop.Func(func(_ context.Context, in *large, result asyncop.ResultFuture[*large]) error {
			go result.Complete(in)
			return nil
		}),
		"blocking": asyncop.Blocking(func(_ context.Context, in *large) (*large, error) { return in, nil }),
		"failing":  asyncop.Blocking(func(context.Context, *large) (*large, error) { return nil, optest.ErrBroken }),
	} {
		for _, ordered := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					op := optest.Construct(optest.Mode{Ordered: ordered, Capacity: 64}, fn, time.Hour, optest.RetryAllOf[*large](1, time.Second),
						asyncop.WithDropOnFailure())
					go func() {
						for range op.Out() {
						}
					}()
					var sent []weak.Pointer[large]
					for range 200 {
						v := new(large)
						sent = append(sent, weak.Make(v))
						op.In() <- v
					}
					time.Sleep(time.Minute)
					require.Zero(t, op.Stats().InFlight)
					require.Zero(t, alive(sent), "idle")
					close(op.In())
					require.NoError(t, op.Wait())
					require.Zero(t, alive(sent), "ended")
					runtime.KeepAlive(op)
				})
			})
		}
	}
}

// An element whose call panicked after it was completed is not retained either.
func TestOperatorLetsGoOfWhatPanicked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		op := asyncop.OrderedWait(asyncop.Func(func(_ context.Context, in *large, result asyncop.ResultFuture[*large]) error {
			result.Complete(in)
			panic("broken")
		}), time.Hour, 4)
		v := new(large)
		sent := []weak.Pointer[large]{weak.Make(v)}
		op.In() <- v
		v = nil
		<-op.Out()
		synctest.Wait()
		require.Zero(t, alive(sent))
		close(op.In())
		require.NoError(t, op.Wait())
	})
}

// Elements that were cut off by the end of the operator are retained neither by the
// operator nor by a future or context that user code may keep for ever.
func TestEndedOperatorLetsGoOfWhatItCutOff(t *testing.T) {
	for _, what := range []string{"operator", "future", "context"} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				var kept any
				calls := 0
				op := asyncop.OrderedWaitWithRetry(
					asyncop.Func(func(ctx context.Context, _ *large, result asyncop.ResultFuture[*large]) error {
						switch what {
						case "future":
							kept = result
						case "context":
							kept = ctx
						}
						if calls++; calls%2 == 1 {
							return optest.ErrBroken // waits for its retry
						}
						return nil
					}), time.Hour, 64, optest.RetryAllOf[*large](9, time.Minute), asyncop.WithContext(ctx))
				if what == "operator" {
					kept = op
				}
				var sent []weak.Pointer[large]
				for range 100 { // 64 get a slot
					v := new(large)
					sent = append(sent, weak.Make(v))
					op.In() <- v
				}
				synctest.Wait()
				cancel(optest.ErrBroken)
				close(op.In())
				require.ErrorIs(t, op.Wait(), optest.ErrBroken)
				synctest.Wait()
				require.Zero(t, alive(sent))
				runtime.KeepAlive(kept)
			})
		})
	}
}

// An operator does not retain the input and the body of a loop over its results after the
// loop has ended.
func TestEndedOperatorLetsGoOfItsLoop(t *testing.T) {
	type operator = asyncop.AsyncWaitOperator[*large, *large]
	blocking := asyncop.Blocking(func(_ context.Context, in *large) (*large, error) { return in, nil })
	for name, end := range map[string]func(op *operator, all []*large){
		"broken off": func(op *operator, all []*large) {
			for _, err := range op.ResultsOf(asyncop.FromSlice(all)) {
				require.NoError(t, err)
				break
			}
		},
		"at its end": func(op *operator, all []*large) {
			n := 0
			for _, err := range op.ResultsOf(asyncop.FromSlice(all)) {
				require.NoError(t, err)
				n++
			}
			require.Equal(t, len(all), n)
		},
	} {
		for order, op := range map[string]*operator{
			"ordered":   asyncop.OrderedWait(blocking, time.Hour, 8),
			"unordered": asyncop.UnorderedWait(blocking, time.Hour, 8),
			"by key":    asyncop.KeyOrderedWait(blocking, func(in *large) *large { return in }, time.Hour, 8, nil),
		} {
			t.Run(name+"/"+order, func(t *testing.T) {
				var sent []weak.Pointer[large]
				func() {
					all := make([]*large, 100)
					for i := range all {
						all[i] = new(large)
						sent = append(sent, weak.Make(all[i]))
					}
					end(op, all)
				}()
				require.Eventually(t, func() bool { return alive(sent) == 0 }, time.Minute, time.Millisecond) // workers return
				runtime.KeepAlive(op)
			})
		}
	}
}

func alive(all []weak.Pointer[large]) (n int) {
	runtime.GC()
	for _, p := range all {
		if p.Value() != nil {
			n++
		}
	}
	return n
}

// A failure may be kept for long. It retains neither the operator nor its function.
func TestTimeoutErrorLetsGoOfTheFunction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		of := new(large)
		gone := weak.Make(of)
		side := optest.NewSideSink(false)
		func() {
			fn := asyncop.Func(func(context.Context, string, asyncop.ResultFuture[string]) error {
				runtime.KeepAlive(of)
				return nil
			})
			op := asyncop.OrderedWait(fn, time.Second, 4, asyncop.WithFailureSink(side.Take))
			_, err := optest.EndOf(op)
			require.NoError(t, err)
		}()
		of = nil
		runtime.GC()
		require.Nil(t, gone.Value())
		require.ErrorIs(t, side.Got()[0].Err, context.DeadlineExceeded)
	})
}
