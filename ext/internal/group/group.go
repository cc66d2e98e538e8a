// Package group forms batches for group commits: calls that arrive while a batch runs
// form the next batch.
package group

import (
	"context"
	"runtime"
	"sync"
)

// Group runs values in batches. Its exported fields are set before use. It is safe for
// concurrent use.
type Group[T any] struct {
	// Run runs a batch: the values that take returns, possibly none. Until it calls take,
	// others join the batch and may be withdrawn. If all are withdrawn before that, ctx
	// ends and no value joins. Later calls of take return the same values. Run must
	// neither panic nor call runtime.Goexit.
	Run      func(ctx context.Context, take func() []T)
	Max      int // values of a batch, at least 1
	Parallel int // concurrent batches; 0 means 1

	mu      sync.Mutex
	running int         // goroutines that run batches; each ends when queue is empty
	queue   []*batch[T] // batches without a goroutine yet
	open    *batch[T]   // the last one, or nil if it is taken
	waiting int         // values not taken yet
	all     sync.WaitGroup
}

type batch[T any] struct {
	members []member[T]        // guarded by Group.mu until taken
	present int                // members not withdrawn; guarded by Group.mu
	taken   bool               // guarded by Group.mu
	cancel  context.CancelFunc // nil until the batch runs; guarded by Group.mu
	done    chan struct{}      // closed when it has run
}

type member[T any] struct {
	value     T
	withdrawn bool
}

// Item is a value in a batch.
type Item[T any] struct {
	batch *batch[T]
	index int
}

// Done returns a channel that is closed when the batch has run.
func (it Item[T]) Done() <-chan struct{} { return it.batch.done }

// Add adds a value to a later batch.
func (g *Group[T]) Add(value T) Item[T] {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open == nil || len(g.open.members) == g.Max {
		g.open = &batch[T]{done: make(chan struct{})}
		g.queue = append(g.queue, g.open)
		if g.running < max(1, g.Parallel) {
			g.running++
			g.all.Go(g.loop)
		}
	}
	b := g.open
	b.members = append(b.members, member[T]{value: value})
	b.present++
	g.waiting++
	return Item[T]{b, len(b.members) - 1}
}

// Withdraw removes a value that does not run yet.
func (g *Group[T]) Withdraw(it Item[T]) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	b := it.batch
	m := &b.members[it.index]
	if b.taken || m.withdrawn {
		return false
	}
	*m = member[T]{withdrawn: true}
	g.waiting--
	b.present--
	if b.present > 0 {
		return true
	}
	if g.open == b {
		g.open = nil
	}
	if b.cancel != nil {
		b.cancel()
	}
	return true
}

// Do returns when the value has run. If ctx ends first, Do withdraws it and returns the
// cause.
func (g *Group[T]) Do(ctx context.Context, value T) error {
	it := g.Add(value)
	select {
	case <-it.Done():
	case <-ctx.Done():
		if g.Withdraw(it) {
			return context.Cause(ctx)
		}
		<-it.Done()
	}
	return nil
}

// Waiting returns how many values do not run yet, for tests.
func (g *Group[T]) Waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.waiting
}

// Wait returns when all batches have run. No call of Add may begin meanwhile.
func (g *Group[T]) Wait() { g.all.Wait() }

func (g *Group[T]) loop() {
	for b := g.next(); b != nil; b = g.next() {
		var values []T
		take := func() []T {
			if values == nil {
				values = g.take(b)
			}
			return values
		}
		ctx, cancel := context.WithCancel(context.Background())
		g.mu.Lock()
		b.cancel = cancel
		abandoned := b.present == 0
		g.mu.Unlock()
		if !abandoned {
			g.Run(ctx, take)
		}
		take() // no value joins the batch after this
		cancel()
		close(b.done)
	}
}

// next returns the batch that has waited longest, or nil to end the goroutine.
func (g *Group[T]) next() *batch[T] {
	for seen := 0; ; {
		// Callers of the last batch may soon add again: a larger batch costs each of them
		// less.
		runtime.Gosched()
		g.mu.Lock()
		if len(g.queue) == 0 {
			g.running--
			g.mu.Unlock()
			return nil
		}
		if n := g.waiting; n < g.Max && n >= 2*seen+2 { // so this ends soon, however many come
			seen = n
			g.mu.Unlock()
			continue
		}
		b := g.queue[0]
		g.queue[0] = nil
		g.queue = g.queue[1:]
		g.mu.Unlock()
		return b
	}
}

func (g *Group[T]) take(b *batch[T]) []T {
	g.mu.Lock()
	defer g.mu.Unlock()
	b.taken = true
	if g.open == b {
		g.open = nil
	}
	values := make([]T, 0, len(b.members))
	for _, m := range b.members {
		if !m.withdrawn {
			values = append(values, m.value)
		}
	}
	g.waiting -= len(values)
	return values
}
