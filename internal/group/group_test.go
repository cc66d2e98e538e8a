package group

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
)

func TestBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var batches [][]int
		release := make(chan struct{})
		g := New(3, func(batch []int) {
			<-release
			batches = append(batches, slices.Clone(batch))
		})
		first := g.Add(0)
		synctest.Wait()
		var items []*Item[int]
		for i := range 6 {
			items = append(items, g.Add(i+1))
		}
		assert.Equal(t, 6, g.Waiting())
		assert.False(t, g.Withdraw(first), "it runs")
		assert.True(t, g.Withdraw(items[1]))
		assert.False(t, g.Withdraw(items[1]))
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
		synctest.Wait() // the goroutine has ended
		assert.Equal(t, [][]int{{0}, {1, 3, 4}, {5, 6}}, batches)

		again := g.Add(7)
		release <- struct{}{}
		<-again.Done()
		assert.Equal(t, []int{7}, batches[3])
	})
}

func TestEachRunsOnce(t *testing.T) {
	const n = 2000
	counts := make([]int, n)
	g := New(10, func(batch []int) {
		for _, i := range batch {
			counts[i]++
		}
	})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			it := g.Add(i)
			if i%3 != 0 || !g.Withdraw(it) {
				<-it.Done()
				return
			}
			counts[i]++ // it is ours again
		})
	}
	wg.Wait()
	for i, count := range counts {
		assert.Equal(t, 1, count, i)
	}
}
