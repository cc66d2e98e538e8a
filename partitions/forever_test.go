package partitions_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/partitions"
)

// endless is a context that cannot end, like context.Background(), until the test sets
// its end.
type endless struct {
	context.Context
	over atomic.Bool
}

func (c *endless) Done() <-chan struct{} {
	if !c.over.Load() {
		return nil
	}
	return c.Context.Done()
}

// Run accepts a context whose Done returns nil.
func TestLeasesOfAContextWithoutAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		forever := &endless{Context: ctx}
		j := newJob(3, 100)
		ended := make(chan error, 1)
		go func() {
			ended <- partitions.Run(forever, j.config(&partitions.Leases{
				Locks: memory.Open().Locks(), Group: "g", Partitions: j.names(), Logger: quiet,
			}))
		}()
		select {
		case err := <-ended:
			require.Fail(t, "Run has returned", "%v", err)
		case <-time.After(time.Minute):
		}
		stop()
		forever.over.Store(true)
		require.NoError(t, <-ended)
		j.check(t)
	})
}
