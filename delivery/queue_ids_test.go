package delivery_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/channel"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/predicates"
)

// doubtful is an engine whose first puts take effect, and fail.
type doubtful struct {
	*memory.Engine

	mu   sync.Mutex
	left int
}

func (d *doubtful) Put(ctx context.Context, queue string, ms ...store.Message) error {
	if err := d.Engine.Put(ctx, queue, ms...); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.left > 0 {
		d.left--
		return errors.New("the connection was cut")
	}
	return nil
}

func (d *doubtful) HandOver(ctx context.Context, moves ...store.Move) error {
	if err := d.Engine.HandOver(ctx, moves...); err != nil {
		return err
	}
	return d.Put(ctx, moves[0].Queue) // its error
}

// Regression: a message without an id got a new one at each try, so a Put that took
// effect and failed doubled it.
func TestQueuePut_InDoubtWithoutAnID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := &doubtful{Engine: memory.Open(), left: 3}
		jobs, results := delivery.NewQueue[job](engine, "jobs", noLog), delivery.NewQueue[string](engine, "results", noLog)
		for _, failure := range []error{errBusy, nil} {
			engine.left = 3
			values := make(chan job, 2)
			values <- "a"
			values <- "b"
			close(values)
			_, err := delivery.Run(t.Context(), channel.NewSource(values, nil), operate(jobs, func(context.Context, job) (string, error) {
				time.Sleep(time.Millisecond)
				return "done", failure
			}), results, silently, delivery.WithFloodGuard(1, 100))
			require.NoError(t, err)
		}
		require.Len(t, entriesOf(t, engine.Engine, jobs.DeadLetters()), 2)
		require.Len(t, entriesOf(t, engine.Engine, "results"), 2)
	})
}

// Law W5: the results of two accepted puts under one id both reach the next queue, and
// their failures both reach the dead letters.
func TestRun_TwoPutsUnderOneID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		in, out := delivery.NewQueue[job](engine, "in", noLog), delivery.NewQueue[string](engine, "out", noLog)
		run := func(f func(context.Context, job) (string, error)) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := delivery.Run(ctx, in, operate(in, f), out, silently)
			require.NoError(t, err)
		}
		for _, address := range []job{"address A", "address B"} {
			require.NoError(t, in.Put(t.Context(), address, delivery.ID("17")))
			run(func(_ context.Context, v job) (string, error) { return string(v) + "!", nil })
			require.NoError(t, in.Put(t.Context(), address, delivery.ID("18")))
			run(func(_ context.Context, v job) (string, error) {
				return "", predicates.WithReason(errors.New("no such "+string(v)), predicates.NewRejection("NO_SUCH_ADDRESS"))
			})
		}
		results, dead := entriesOf(t, engine, "out"), entriesOf(t, engine, in.DeadLetters())
		require.Len(t, results, 2)
		require.Equal(t, `"address A!"`, string(results[0].Payload))
		require.Equal(t, `"address B!"`, string(results[1].Payload))
		require.Len(t, dead, 2)
		require.Equal(t, "NO_SUCH_ADDRESS: no such address B", dead[1].Meta.LastError)
		require.Equal(t, "18", dead[1].Meta.ID)
	})
}
