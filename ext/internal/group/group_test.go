package group

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var batches [][]int
		release := make(chan struct{})
		g := &Group[int]{Max: 3, Run: func(_ context.Context, take func() []int) {
			batch := take()
			<-release
			batches = append(batches, slices.Clone(batch))
			assert.Equal(t, batch, take())
		}}
		first := g.Add(0)
		synctest.Wait()
		var items []Item[int]
		for i := range 6 {
			items = append(items, g.Add(i+1))
		}
		assert.Equal(t, 6, g.Waiting())
		assert.False(t, g.Withdraw(first), "it runs")
		assert.True(t, g.Withdraw(items[1]))
		assert.False(t, g.Withdraw(items[1]))
		assert.Equal(t, 5, g.Waiting())
		release <- struct{}{}
		<-first.Done()
		release <- struct{}{}
		<-items[0].Done()
		select {
		case <-items[5].Done():
			t.Error("it is of the next batch")
		default:
		}
		release <- struct{}{}
		<-items[5].Done()
		g.Wait()
		assert.Equal(t, [][]int{{0}, {1, 3}, {4, 5, 6}}, batches)

		again := g.Add(7)
		release <- struct{}{}
		<-again.Done()
		assert.Equal(t, []int{7}, batches[3])
		synctest.Wait()
		assert.Zero(t, g.Waiting())
	})
}

// Values can join a batch, and leave it, until it is taken. A batch whose Run never calls
// take has its values nevertheless.
func TestJoinsUntilTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan bool)
		var batches [][]int
		g := &Group[int]{Max: 3, Run: func(_ context.Context, take func() []int) {
			if <-release {
				batches = append(batches, take())
			}
		}}
		items := []Item[int]{g.Add(0)}
		synctest.Wait() // it runs
		for i := range 3 {
			items = append(items, g.Add(i+1))
		}
		assert.True(t, g.Withdraw(items[0]))
		synctest.Wait()
		release <- true
		<-items[0].Done()
		<-items[2].Done()
		synctest.Wait()
		release <- false
		<-items[3].Done()
		g.Wait()
		assert.Equal(t, [][]int{{1, 2}}, batches)
		assert.Zero(t, g.Waiting())
		assert.False(t, g.Withdraw(items[3]))
	})
}

// The end of its context withdraws a waiting value, but does not interrupt a running one.
func TestDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		ran := 0
		g := &Group[int]{Max: 10, Run: func(_ context.Context, take func() []int) {
			batch := take()
			<-release
			ran += len(batch)
		}}
		errs := make(chan error, 2)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { errs <- g.Do(ctx, 1) }()
		synctest.Wait()
		go func() { errs <- g.Do(ctx, 2) }()
		synctest.Wait()
		cancel()
		synctest.Wait()
		require.ErrorIs(t, <-errs, context.Canceled)
		require.Empty(t, errs)
		close(release)
		require.NoError(t, <-errs)
		g.Wait()
		require.Equal(t, 1, ran)
	})
}

func TestParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		g := &Group[int]{Max: 1, Parallel: 2, Run: func(_ context.Context, take func() []int) {
			take()
			<-release
		}}
		items := []Item[int]{g.Add(1), g.Add(2), g.Add(3)}
		synctest.Wait()
		assert.Equal(t, 1, g.Waiting(), "two run")
		close(release)
		for _, it := range items {
			<-it.Done()
		}
		g.Wait()
	})
}

func TestGroup_EachRunsOnce(t *testing.T) {
	const n = 2000
	for _, parallel := range []int{0, 3} {
		counts := make([]int, n)
		g := &Group[int]{Max: 10, Parallel: parallel, Run: func(_ context.Context, take func() []int) {
			for _, i := range take() {
				counts[i]++
			}
		}}
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				it := g.Add(i)
				if i%3 != 0 || !g.Withdraw(it) {
					<-it.Done()
					return
				}
				counts[i]++ // the element belongs to this goroutine again
			})
		}
		wg.Wait()
		for i, count := range counts {
			assert.Equal(t, 1, count, i)
		}
	}
}

// The context of a batch ends when all of its values are withdrawn. A value that arrives
// then joins another batch.
func TestGroup_AllWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var batches [][]int
		lock := make(chan struct{})
		g := &Group[int]{Max: 3, Run: func(ctx context.Context, take func() []int) {
			select {
			case <-lock:
				batches = append(batches, slices.Clone(take()))
			case <-ctx.Done():
				assert.Empty(t, take())
			}
		}}
		first, second := g.Add(1), g.Add(2)
		synctest.Wait()
		assert.True(t, g.Withdraw(first))
		synctest.Wait()
		select {
		case <-second.Done():
			t.Error("a value is left")
		default:
		}
		assert.True(t, g.Withdraw(second))
		third := g.Add(3)
		<-second.Done()
		lock <- struct{}{}
		<-third.Done()
		g.Wait()
		assert.Equal(t, [][]int{{3}}, batches)
		assert.Zero(t, g.Waiting())
	})
}
