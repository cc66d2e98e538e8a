// Package group forms batches of calls of many goroutines, for group commits: what comes while a batch runs is the next batch.
package group

import (
	"runtime"
	"slices"
	"sync"
)

// Group forms batches. Make one with New. It is safe for concurrent use.
type Group[T any] struct {
	limit int
	run   func(batch []T)

	mu      sync.Mutex
	running bool // a goroutine takes what waits; it ends when nothing does
	waiting []*Item[T]
}

// Item is a member of a batch.
type Item[T any] struct {
	value T
	done  chan struct{}
}

// Done returns a channel that is closed when the batch has run.
func (it *Item[T]) Done() <-chan struct{} { return it.done }

// New returns a group. It calls run with one batch after the other, of 1 to limit values; run must neither panic nor call
// runtime.Goexit.
func New[T any](limit int, run func(batch []T)) *Group[T] {
	return &Group[T]{limit: limit, run: run}
}

// Add hands in a value for one of the next batches.
func (g *Group[T]) Add(value T) *Item[T] {
	it := &Item[T]{value: value, done: make(chan struct{})}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = append(g.waiting, it)
	if !g.running {
		g.running = true
		go g.loop()
	}
	return it
}

// Withdraw takes back a value that is in no batch yet.
func (g *Group[T]) Withdraw(it *Item[T]) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.waiting, it)
	if i < 0 {
		return false
	}
	g.waiting = slices.Delete(g.waiting, i, i+1)
	return true
}

// Waiting returns how many values are in no batch yet. It is for tests.
func (g *Group[T]) Waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.waiting)
}

func (g *Group[T]) loop() {
	var values []T
	for {
		runtime.Gosched() // those that the last batch has let go may have the next call ready
		g.mu.Lock()
		n := min(len(g.waiting), g.limit)
		if n == 0 {
			g.running = false
			g.mu.Unlock()
			return
		}
		batch := slices.Clone(g.waiting[:n])
		g.waiting = slices.Delete(g.waiting, 0, n)
		g.mu.Unlock()

		clear(values)
		values = values[:0]
		for _, it := range batch {
			values = append(values, it.value)
		}
		g.run(values)
		for _, it := range batch {
			close(it.done)
		}
	}
}
