package kafka

import (
	"context"
	"strconv"
	"testing"

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
