package kafka

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/deliverytest"
)

// TestSource runs the suite. What it has for sources that share a queue does not fit: a partition has one owner, and what that
// one gives back it gets again. TestRebalances has that.
func TestSource(t *testing.T) {
	t.Parallel()
	const partitions = 3
	deliverytest.RunSource(t, func(t *testing.T) deliverytest.Queue[string] {
		c := newCluster(t, partitions, "orders")
		return deliverytest.Queue[string]{
			Open:  func() (delivery.Source[string], error) { return c.open("orders") },
			Put:   func(values ...string) error { return c.write("orders", partitions, values...) },
			Keeps: true,
		}
	}, strconv.Itoa)
}

func TestCloseTwice(t *testing.T) {
	c := newCluster(t, 1, "orders")
	s := c.source("orders")
	require.NoError(t, s.Close(context.Background()))
	require.NoError(t, s.Close(context.Background()))
	_, err := s.Receive(t.Context(), 1)
	require.ErrorIs(t, err, errClosed)
}

// Laws D1 and D4: a Close whose context has ended records what was settled and leaves the group all the same. The next member waited for the
// messages of one that lived on and gave nothing to anyone.
func TestCloseWhoseContextHasEnded(t *testing.T) {
	c := newCluster(t, 1, "orders")
	c.produce("orders", 1, "0", "1")
	a := c.source("orders", withCommitInterval(time.Hour))
	receive(t, a, 2)[0].Ack()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_ = a.Close(ended)
	require.Equal(t, []string{"1"}, values(receive(t, c.source("orders"), 1)))
}
