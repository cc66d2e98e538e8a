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

// Regression: what has no id got another one at each try, so a Put that took effect and failed doubled it.
func TestAPutInDoubtOfWhatHasNoID(t *testing.T) {
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
