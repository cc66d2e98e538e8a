// Package coalesce lets calls that come while others run share the next run.
package coalesce

import (
	"context"
	"sync"
)

// Group runs items in batches: those that come while as many batches run as may make the next one. Its fields are set
// before its first use.
type Group[T any] struct {
	Run      func(items []T) error // several at once; also for one item again after a batch of several has failed
	Parallel int                   // batches that run at once, at least 1
	Max      int                   // items of a batch, at least 1

	mu      sync.Mutex
	running int
	waiting []*call[T]
	all     sync.WaitGroup
}

// call is an item and its result. done is closed after err is set.
type call[T any] struct {
	item  T
	taken bool // into a batch; guarded by Group.mu
	alone bool
	done  chan struct{}
	err   error
}

// Do runs an item, alone or with others, and returns the error of the run. An error of a batch may be the fault of one item:
// then each is run again by itself. A ctx that ends takes the item back if it does not run yet; otherwise its run decides.
func (g *Group[T]) Do(ctx context.Context, item T) error {
	c := &call[T]{item: item, done: make(chan struct{})}
	g.mu.Lock()
	g.waiting = append(g.waiting, c)
	if g.running < g.Parallel {
		g.running++
		g.all.Go(g.work) // ends when nothing waits
	}
	g.mu.Unlock()
	select {
	case <-c.done:
	case <-ctx.Done():
		if g.withdraw(c) {
			return context.Cause(ctx)
		}
		<-c.done
	}
	if c.err != nil && !c.alone {
		return g.Run([]T{item})
	}
	return c.err
}

// Wait waits for the batches that run. No call of Do may begin meanwhile.
func (g *Group[T]) Wait() { g.all.Wait() }

func (g *Group[T]) work() {
	for {
		batch := g.next()
		if batch == nil {
			return
		}
		items := make([]T, len(batch))
		for i, c := range batch {
			items[i] = c.item
		}
		err := g.Run(items)
		for _, c := range batch {
			c.err, c.alone = err, len(batch) == 1
			close(c.done)
		}
	}
}

// next takes what waits. If that is nothing, the worker is not running any more.
func (g *Group[T]) next() []*call[T] {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := min(len(g.waiting), g.Max)
	if n == 0 {
		g.running--
		return nil
	}
	batch := append([]*call[T](nil), g.waiting[:n]...)
	g.waiting = append(g.waiting[:0], g.waiting[n:]...)
	clear(g.waiting[len(g.waiting):cap(g.waiting)])
	for _, c := range batch {
		c.taken = true
	}
	return batch
}

func (g *Group[T]) withdraw(c *call[T]) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.taken {
		return false
	}
	for i, w := range g.waiting {
		if w == c {
			g.waiting = append(g.waiting[:i], g.waiting[i+1:]...)
			break
		}
	}
	return true
}
