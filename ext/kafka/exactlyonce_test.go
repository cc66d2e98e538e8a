package kafka

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
)

// TestExactlyOnce runs a pipeline from a partition to a topic. It is broken off and
// started again many times; the last run goes to the end.
func TestExactlyOnce(t *testing.T) {
	t.Parallel()
	const messages, runs = 600, 15
	c := newCluster(t, 1, "orders", "invoices")
	c.produce("orders", 1, numbers(messages)...)
	store := checkpointtest.NewMemoryStore()
	random := rand.New(rand.NewPCG(5, 6))
	for i := range runs + 1 {
		store = store.Reopen()
		c.pipeline(t, store, i == runs, time.Duration(random.IntN(60))*time.Millisecond)
	}
	all, err := c.reader().published()
	require.NoError(t, err)
	assert.Equal(t, numbers(messages), all)
}

// pipeline runs until the end, or for a while.
func (c *cluster) pipeline(t *testing.T, store checkpoint.Store, toEnd bool, d time.Duration) {
	t.Helper()
	coordinator, err := checkpoint.NewCoordinator(store, checkpoint.WithInterval(10*time.Millisecond), checkpoint.WithLogger(silent))
	require.NoError(t, err)
	input, err := c.input("orders", toEnd)
	require.NoError(t, err)
	output, err := c.output()
	require.NoError(t, err)
	invoice := asyncop.Blocking(func(_ context.Context, v string) (string, error) {
		n, _ := strconv.Atoi(v)
		time.Sleep(time.Duration(n%5) * 100 * time.Microsecond)
		return v, nil
	})
	source := checkpoint.NewSource(coordinator, "orders", input)
	op := asyncop.OrderedWait(invoice, 10*time.Second, 20, asyncop.WithName("invoice"), asyncop.WithCheckpoints(coordinator),
		asyncop.WithLogger(silent))
	sink := checkpoint.NewSink(coordinator, "invoices", output)
	require.NoError(t, coordinator.Start())
	ended := make(chan error, 1)
	go func() {
		source.Via(op).To(sink)
		ended <- coordinator.Wait()
	}()
	if toEnd {
		require.NoError(t, <-ended)
		require.NoError(t, coordinator.Close())
		return
	}
	time.Sleep(d)
	closed := coordinator.Close()
	if err := <-ended; err != nil {
		require.ErrorIs(t, errors.Join(err, closed), checkpoint.ErrClosed)
	}
}
