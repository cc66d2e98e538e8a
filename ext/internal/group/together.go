package group

import (
	"context"
	"sync"
)

// Together runs values in batches that succeed or fail as a whole, such as transactions.
// It is safe for concurrent use.
type Together[T any] struct {
	run   func(ctx context.Context, take func() []T) error
	group Group[*call[T]]

	mu sync.Mutex // see call and running
}

// call is a value and the result of its batch, written before Do continues.
type call[T any] struct {
	value  T
	err    error
	shared bool

	// Guarded by Together.mu.
	ended bool     // its caller's context has ended
	batch *running // nil if it does not run
}

type running struct {
	waiting int // callers whose contexts have not ended; guarded by Together.mu
	cancel  context.CancelFunc
}

// NewTogether returns a Together. A batch has at most limit values, and at most parallel
// batches run at once. run is as Group.Run; it may also be called for one value on its
// caller's goroutine. Its context ends when the contexts of all callers have ended.
func NewTogether[T any](limit, parallel int, run func(ctx context.Context, take func() []T) error) *Together[T] {
	t := &Together[T]{run: run}
	t.group = Group[*call[T]]{Run: t.runAll, Max: limit, Parallel: parallel}
	return t
}

// Do runs a value with others and returns the error of the batch. An error may be the
// fault of one value, so after it each of several values runs again by itself. If ctx
// ends before the value runs, Do returns its cause. If ctx ends meanwhile, Do waits for
// the batch, which is cancelled when the contexts of all callers have ended, and returns
// the cause of ctx if the batch has failed.
func (t *Together[T]) Do(ctx context.Context, value T) error {
	c := &call[T]{value: value}
	it := t.group.Add(c)
	select {
	case <-it.Done():
	case <-ctx.Done():
		if t.group.Withdraw(it) {
			return context.Cause(ctx)
		}
		t.leave(c)
		<-it.Done()
	}
	switch {
	case c.err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case c.shared:
		return t.run(ctx, func() []T { return []T{value} })
	}
	return c.err
}

// leave cancels a batch without waiting callers, for example because a server hangs.
func (t *Together[T]) leave(c *call[T]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.ended = true
	if b := c.batch; b != nil {
		if b.waiting--; b.waiting == 0 {
			b.cancel()
		}
	}
}

// Wait returns when all batches have run. No call of Do may begin meanwhile.
func (t *Together[T]) Wait() { t.group.Wait() }

func (t *Together[T]) runAll(ctx context.Context, take func() []*call[T]) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var values []T
	err := t.run(ctx, func() []T {
		if values == nil {
			values = t.begin(take(), cancel)
		}
		return values
	})
	calls := take()
	for _, c := range calls {
		c.err, c.shared = err, len(calls) > 1
	}
}

func (t *Together[T]) begin(calls []*call[T], cancel context.CancelFunc) []T {
	b := &running{cancel: cancel}
	values := make([]T, len(calls))
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, c := range calls {
		values[i], c.batch = c.value, b
		if !c.ended {
			b.waiting++
		}
	}
	if b.waiting == 0 {
		cancel()
	}
	return values
}
