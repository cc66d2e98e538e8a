package asyncop_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
)

func TestFromChannel(t *testing.T) {
	values := make(chan int, 9)
	for n := range 5 {
		values <- n
	}
	close(values)
	identity := func(_ context.Context, n int) (int, error) { return n, nil }
	var got []int
	for v, err := range asyncop.OrderedWait(asyncop.Blocking(identity), 0, 4).Results(asyncop.FromChannel(values)) {
		require.NoError(t, err)
		got = append(got, v)
	}
	require.Equal(t, []int{0, 1, 2, 3, 4}, got)
}

// A loop that ends early takes no more elements than it has asked for.
func TestFromChannel_LoopEndsEarly(t *testing.T) {
	values := make(chan int, 9)
	for n := range 5 {
		values <- n
	}
	for v := range asyncop.FromChannel(values) {
		if v == 1 {
			break
		}
	}
	require.Len(t, values, 3)
}

func TestFromSlice(t *testing.T) {
	next := asyncop.FromSlice([]string{"a", "b"})
	for _, want := range []string{"a", "b"} {
		v, ok := next()
		require.True(t, ok)
		require.Equal(t, want, v)
	}
	for range 2 {
		_, ok := next()
		require.False(t, ok)
	}
}
