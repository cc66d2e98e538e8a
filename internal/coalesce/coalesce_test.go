package coalesce

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestItemsThatComeMeanwhileShareARun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		var runs [][]int
		g := &Group[int]{Parallel: 1, Max: 3, Run: func(items []int) error {
			<-gate
			runs = append(runs, slices.Clone(items))
			return nil
		}}
		errs := make(chan error, 10)
		start := func(ctx context.Context, i int) {
			go func() { errs <- g.Do(ctx, i) }()
			synctest.Wait()
		}
		ctx, cancel := context.WithCancel(t.Context())
		start(ctx, 1)
		for i := 2; i <= 5; i++ {
			start(t.Context(), i)
		}
		start(ctx, 6)
		cancel() // 6 waits: withdrawn. 1 runs: its run decides
		synctest.Wait()
		require.ErrorIs(t, <-errs, context.Canceled)
		require.Empty(t, errs)
		close(gate)
		for range 5 {
			require.NoError(t, <-errs)
		}
		g.Wait()
		require.Equal(t, [][]int{{1}, {2, 3, 4}, {5}}, runs)
	})
}

func TestTheFaultOfOneItemIsItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		bad := errors.New("bad")
		g := &Group[int]{Parallel: 1, Max: 10, Run: func(items []int) error {
			<-gate
			if slices.Contains(items, 2) {
				return bad
			}
			return nil
		}}
		errs := make([]error, 4)
		for i := range errs {
			go func() { errs[i] = g.Do(t.Context(), i) }()
			synctest.Wait()
		}
		close(gate)
		synctest.Wait()
		g.Wait()
		require.Equal(t, []error{nil, nil, bad, nil}, errs)
	})
}
