package group

import "context"

// Together runs values in batches that succeed or fail as a whole, such as transactions. It is safe for concurrent use.
type Together[T any] struct {
	run   func(take func() []T) error
	group Group[*call[T]]
}

// call is a value and the result of its batch, which is written before Do goes on.
type call[T any] struct {
	value  T
	err    error
	shared bool
}

// NewTogether returns a Together whose batches have at most limit values, and of which at most parallel run at once. run is as
// Group.Run; it may also be called for one value on the goroutine of a caller.
func NewTogether[T any](limit, parallel int, run func(take func() []T) error) *Together[T] {
	t := &Together[T]{run: run}
	t.group = Group[*call[T]]{Run: t.runAll, Max: limit, Parallel: parallel}
	return t
}

// Do runs a value with others and returns the error of the batch. An error may be the fault of one value: then each of several
// runs again by itself. If ctx ends before the value runs, Do returns its cause.
func (t *Together[T]) Do(ctx context.Context, value T) error {
	c := &call[T]{value: value}
	if err := t.group.Do(ctx, c); err != nil {
		return err
	}
	if c.err != nil && c.shared {
		return t.run(func() []T { return []T{value} })
	}
	return c.err
}

// Wait returns when no batch runs or waits. No call of Do may begin meanwhile.
func (t *Together[T]) Wait() { t.group.Wait() }

func (t *Together[T]) runAll(take func() []*call[T]) {
	var values []T
	err := t.run(func() []T {
		if values == nil {
			for _, c := range take() {
				values = append(values, c.value)
			}
		}
		return values
	})
	calls := take()
	for _, c := range calls {
		c.err, c.shared = err, len(calls) > 1
	}
}
