package group

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestTogether_FaultOfOneValue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		bad := errors.New("bad")
		var mu sync.Mutex
		var batches [][]int
		g := NewTogether(10, 1, func(_ context.Context, take func() []int) error {
			<-gate
			mu.Lock()
			defer mu.Unlock()
			batches = append(batches, slices.Clone(take()))
			if slices.Contains(take(), 2) {
				return bad
			}
			return nil
		})
		errs := make([]error, 4)
		for i := range errs {
			go func() { errs[i] = g.Do(t.Context(), i) }()
			synctest.Wait()
		}
		gate <- struct{}{}
		synctest.Wait()
		require.Equal(t, [][]int{{0, 1, 2, 3}}, batches)
		close(gate)
		synctest.Wait()
		g.Wait()
		require.Equal(t, []error{nil, nil, bad, nil}, errs)
		require.Len(t, batches, 5)
	})
}

func TestTogether_ValueThatFailsAlone(t *testing.T) {
	ran := 0
	g := NewTogether(10, 1, func(_ context.Context, take func() []int) error {
		ran += len(take())
		return context.DeadlineExceeded
	})
	require.ErrorIs(t, g.Do(t.Context(), 1), context.DeadlineExceeded)
	g.Wait()
	require.Equal(t, 1, ran)
}

func TestTogether_WaitingCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		g := NewTogether(1, 1, func(_ context.Context, take func() []int) error {
			take()
			<-gate
			return nil
		})
		errs := make(chan error, 2)
		ctx, cancel := context.WithCancel(t.Context())
		for range 2 {
			go func() { errs <- g.Do(ctx, 1) }()
			synctest.Wait()
		}
		cancel()
		require.ErrorIs(t, <-errs, context.Canceled)
		close(gate)
		require.NoError(t, <-errs)
		g.Wait()
	})
}

// A batch that no caller waits for ends: a server may hang.
func TestTogether_AllCallersHaveLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{}, 1)
		g := NewTogether(2, 1, func(ctx context.Context, take func() []int) error {
			<-gate
			take()
			<-ctx.Done()
			return ctx.Err()
		})
		gone := errors.New("gone")
		var cancels []context.CancelCauseFunc
		errs := make(chan error, 2)
		for i := range 2 {
			ctx, cancel := context.WithCancelCause(t.Context())
			cancels = append(cancels, cancel)
			go func() { errs <- g.Do(ctx, i) }()
		}
		synctest.Wait()
		gate <- struct{}{}
		synctest.Wait()
		cancels[0](gone)
		synctest.Wait()
		require.Empty(t, errs, "the other one waits for it")
		cancels[1](gone)
		require.Equal(t, gone, <-errs)
		require.Equal(t, gone, <-errs)
		g.Wait()
	})
}
