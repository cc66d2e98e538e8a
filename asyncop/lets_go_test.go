package asyncop_test

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
)

// ---- What is over is not kept.

type large struct{ _ [1 << 10]byte }

// Elements that have left are not kept by an idle operator, nor by one that has ended.
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
		"failing":  asyncop.Blocking(func(context.Context, *large) (*large, error) { return nil, errBroken }),
	} {
		for _, ordered := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					op := construct(mode{ordered: ordered, capacity: 64}, fn, time.Hour, retryAllOf[*large](1, time.Second),
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

func alive(all []weak.Pointer[large]) (n int) {
	runtime.GC()
	for _, p := range all {
		if p.Value() != nil {
			n++
		}
	}
	return n
}

// A failure may be kept for long. It does not keep the operator, nor its function.
func TestTimeoutErrorLetsGoOfTheFunction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		of := new(large)
		gone := weak.Make(of)
		side := newSideSink(false)
		func() {
			fn := asyncop.Func(func(context.Context, string, asyncop.ResultFuture[string]) error {
				runtime.KeepAlive(of)
				return nil
			})
			op := asyncop.OrderedWait(fn, time.Second, 4, asyncop.WithSideOutput(side))
			_, err := endOf(op)
			require.NoError(t, err)
		}()
		of = nil
		runtime.GC()
		require.Nil(t, gone.Value())
		require.ErrorIs(t, side.got()[0].Err, context.DeadlineExceeded)
	})
}
