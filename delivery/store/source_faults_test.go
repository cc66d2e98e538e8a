package store_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery/store"
)

// erring is a store whose methods return these errors.
type erring struct {
	*store.Memory
	take, release error
}

func (f *erring) Take(ctx context.Context, queue string, limit int, lease time.Duration) ([]store.Leased, error) {
	if f.take != nil {
		return nil, f.take
	}
	return f.Memory.Take(ctx, queue, limit, lease)
}

func (f *erring) Release(ctx context.Context, delay time.Duration, leases ...store.Lease) error {
	if f.release != nil {
		return f.release
	}
	return f.Memory.Release(ctx, delay, leases...)
}

// The errors of a store are those of Receive and Close, and both may be called again.
func TestSourceOfAStoreThatFails(t *testing.T) {
	down := errors.New("the disk is gone")
	synctest.Test(t, func(t *testing.T) {
		f := &erring{Memory: store.NewMemory(clock.New(), 0), take: down}
		put(t, f, "a")
		s := store.NewSource(f, "q", "dead", codec.JSON[string](), quiet)
		_, err := s.Receive(t.Context(), 1)
		require.ErrorIs(t, err, down)
		f.take = nil
		require.Equal(t, 1, receive(t, s).Meta().Visit)
		f.release = down
		require.ErrorIs(t, s.Close(t.Context()), down, "a is still leased")
		f.release = nil
		require.NoError(t, s.Close(t.Context()))
		require.NoError(t, s.Close(t.Context()))
		_, err = s.Receive(t.Context(), 1)
		require.Error(t, err)

		s = store.NewSource(f, "q", "dead", codec.JSON[string](), quiet)
		require.Equal(t, 1, receive(t, s).Meta().Visit, "it was given back, and not tried")
		f.release = store.Lost([]store.Lease{{Queue: "q", Entry: "1", Fence: 2}})
		require.NoError(t, s.Close(t.Context()), "another consumer has it")
	})
}
