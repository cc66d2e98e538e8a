package leases_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery/internal/leases"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
	"github.com/weirflow/weir/message"
)

// erring is a store whose methods return these errors.
type erring struct {
	*memory.Engine
	take, release error
}

func (f *erring) Take(ctx context.Context, queue string, limit int, lease time.Duration) ([]store.Leased, error) {
	if f.take != nil {
		return nil, f.take
	}
	return f.Engine.Take(ctx, queue, limit, lease)
}

func (f *erring) Release(ctx context.Context, delay time.Duration, leases ...store.Lease) error {
	if f.release != nil {
		return f.release
	}
	return f.Engine.Release(ctx, delay, leases...)
}

// The errors of a store are those of Receive and Close, and both may be called again.
func TestSourceOfAStoreThatFails(t *testing.T) {
	down := errors.New("the disk is gone")
	synctest.Test(t, func(t *testing.T) {
		f := &erring{Engine: memory.Open(), take: down}
		put(t, f, "a")
		s := leases.NewSource(f, "q", "dead", codec.JSON[string](), quiet)
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

		s = leases.NewSource(f, "q", "dead", codec.JSON[string](), quiet)
		require.Equal(t, 1, receive(t, s).Meta().Visit, "it was given back, and not tried")
		f.release = storearg.Lost([]store.Lease{{Queue: "q", Entry: "1", Fence: 2}})
		require.NoError(t, s.Close(t.Context()), "another consumer has it")
	})
}

// small is a store that refuses messages above a number of bytes.
type small struct {
	*memory.Engine
	limit int
}

func (s small) check(m store.Message) error {
	b, err := json.Marshal(m)
	if err == nil && len(b) > s.limit {
		err = fmt.Errorf("%d bytes: %w", len(b), message.ErrRefused)
	}
	return err
}

func (s small) Put(ctx context.Context, queue string, ms ...store.Message) error {
	for _, m := range ms {
		if err := s.check(m); err != nil {
			return err
		}
	}
	return s.Engine.Put(ctx, queue, ms...)
}

func (s small) Move(ctx context.Context, moves ...store.Move) error {
	for _, m := range moves {
		if err := s.check(m.Message); err != nil {
			return err
		}
	}
	return s.Engine.Move(ctx, moves...)
}

// Law W2: a dead letter that does not fit has its bytes and less of its history; if that does not fit either, it says where the message
// stays. The verdict was tried again for ever, and with it those of others.
func TestDeadLettersThatDoNotFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := small{memory.Open(), 2000}
		for _, m := range []struct {
			id   string
			size int
		}{{"fits", 10}, {"shortened", 1300}, {"stays", 1850}} {
			encoded, err := leases.Encode(codec.JSON[string](), strings.Repeat("x", m.size), message.Meta{ID: m.id})
			require.NoError(t, err)
			require.NoError(t, s.Put(t.Context(), "q", encoded))
		}
		source := leases.NewSource(s, "q", "dead", codec.JSON[string](), quiet)
		for range 3 {
			receive(t, source).Reject(fmt.Errorf("%w: %s", message.ErrRefused, strings.Repeat("e", 700)))
		}
		require.NoError(t, source.Close(t.Context()))
		letters := dead(t, s.Engine)
		require.Len(t, letters, 3)
		for i, want := range []struct{ payload, errorLike int }{{12, 700}, {1302, 200}, {0, 400}} {
			require.Len(t, letters[i].Payload, want.payload, letters[i].Meta.ID)
			require.InDelta(t, want.errorLike, len(letters[i].Meta.LastError), 200, letters[i].Meta.LastError)
			require.Equal(t, store.Refused, letters[i].Cause)
		}
		require.Contains(t, letters[2].Meta.LastError, `stays in queue "q", entry 3`)
		stays, err := s.List(t.Context(), "q", store.Filter{}, store.Page{Max: 10})
		require.NoError(t, err)
		require.Len(t, stays, 1)
		require.Len(t, stays[0].Payload, 1852)
		time.Sleep(365 * 24 * time.Hour)
		taken, err := s.Take(t.Context(), "q", 1, time.Second)
		require.NoError(t, err)
		require.Empty(t, taken)
	})
}
