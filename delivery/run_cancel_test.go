package delivery_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// withoutWatch is an engine that cannot announce changes, such as SQLite and JetStream.
type withoutWatch struct{ *memory.Engine }

func (withoutWatch) Watch(context.Context, func()) error { return errors.ErrUnsupported }

// The calls that run for a key that is cancelled end within two seconds, in all workers
// and layers. Calls for other keys continue.
func TestRun_CancelledKey(t *testing.T) {
	for name, wrap := range map[string]func(*memory.Engine) store.Keeper{
		"an engine that announces changes": func(e *memory.Engine) store.Keeper { return e },
		"an engine that does not":          func(e *memory.Engine) store.Keeper { return withoutWatch{e} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := wrap(memory.Open())
				type end struct {
					key   string
					cause error
				}
				var called sync.Map // numbers
				ends := make(chan end, 20)
				started := make(chan string, 20)
				var stops []context.CancelFunc
				var workers []chan struct{}
				for range 2 {
					orders := delivery.NewQueue[numbered](engine, "orders", delivery.RetryAfter(time.Minute), noLog)
					call := func(ctx context.Context, c numbered) (int, error) {
						key := fmt.Sprint(c.N % 10)
						_, isSecond := called.LoadOrStore(c.N, true)
						if c.N >= 10 && !isSecond { // it waits in the layer, and is called from there
							return 0, errors.New("503")
						}
						started <- key
						<-ctx.Done()
						ends <- end{key, context.Cause(ctx)}
						return 0, ctx.Err()
					}
					op := asyncop.UnorderedWait(asyncop.Blocking(call), 0, 8, asyncop.WithFailureSink(orders.TakeFailure), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
					ctx, stop := context.WithCancel(t.Context())
					ended := make(chan struct{})
					go func() {
						defer close(ended)
						_, err := delivery.Run(ctx, orders, op, delivery.NewQueue[int](engine, "results", noLog), delivery.WithFloodGuard(1, 1), delivery.WithDrain(time.Second), noLog)
						if err != nil {
							t.Error(err)
						}
					}()
					stops, workers = append(stops, stop), append(workers, ended)
				}
				orders := delivery.NewQueue[numbered](engine, "orders", delivery.RetryAfter(time.Minute), noLog)
				for i := range 8 {
					require.NoError(t, orders.Put(t.Context(), numbered{N: i % 2}, delivery.ID(fmt.Sprint(i)), delivery.Key(fmt.Sprint("customer ", i%2))))
				}
				require.NoError(t, orders.Put(t.Context(), numbered{N: 11}, delivery.ID("layer"), delivery.Key("customer 1")))
				for range 9 {
					<-started
				}
				time.Sleep(5 * time.Minute) // leases were extended, and workers have reported themselves
				synctest.Wait()
				require.Empty(t, ends)

				j, err := jobs.New(engine, jobs.Config{})
				require.NoError(t, err)
				job, err := j.CancelKey(t.Context(), "orders", "customer 1", "ann", "the customer has left")
				require.NoError(t, err)
				begun := time.Now()
				job, err = j.Run(t.Context(), job.ID, nil)
				require.NoError(t, err)
				require.Equal(t, 5, job.Done)
				for range 5 {
					e := <-ends
					require.Equal(t, "1", e.key)
					require.ErrorIs(t, e.cause, message.ErrPurged)
				}
				require.LessOrEqual(t, time.Since(begun), 2*time.Second)
				time.Sleep(time.Minute)
				synctest.Wait()
				require.Empty(t, ends, "calls of another key have ended")
				n, err := engine.Count(t.Context(), "orders", store.Filter{Key: "customer 1"})
				require.NoError(t, err)
				require.Zero(t, n.Messages)
				for i := range stops {
					stops[i]()
					<-workers[i]
				}
				for _, queue := range []string{"orders-retry-1", "orders-dead", "results"} {
					n, err := engine.Count(t.Context(), queue, store.Filter{Key: "customer 1"})
					require.NoError(t, err)
					require.Zero(t, n.Messages, queue)
				}
			})
		})
	}
}
