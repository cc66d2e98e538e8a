package deliverytest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/message"
)

// Queue is a queue of messages, empty at first, and its sources.
type Queue[T any] struct {
	// Open opens a source of the queue. The suite closes it.
	Open func() (delivery.Source[T], error)
	// Put puts values into the queue. No source may be open.
	Put func(values ...T) error
	// End, which may be nil, ends the queue: when all is done, Receive returns io.EOF.
	End func()

	// Keeps is true if the queue outlives its sources: unsettled messages of a closed
	// source are delivered by the next one.
	Keeps bool
	// Shared is true if several sources may be open at once, as in several processes.
	Shared bool
	// Lease is the longest time that a message stays with a dead source; 0 skips the
	// checks of leases. Kill, which needs a Lease, ends a source as a crash of its
	// process would.
	Lease time.Duration
	Kill  func(source delivery.Source[T])

	// Delay is the delay of nacks, and the time that the suite waits for messages that
	// must not come. Default 100 ms. It must be larger than the queue's unit of time.
	Delay time.Duration
	// Equal reports whether two values are the same; nil means reflect.DeepEqual.
	Equal func(a, b T) bool
}

// RunSource checks sources against each rule of [delivery.Source] in a subtest. open
// makes a new, empty queue each time; value returns the i-th of different values.
func RunSource[T any](t *testing.T, open func(t *testing.T) Queue[T], value func(i int) T) {
	t.Helper()
	for _, r := range sourceRules[T]() {
		t.Run(r.name, func(t *testing.T) {
			q := queue[T]{Queue: open(t), value: value}
			if skip := r.skip(q.Queue); skip != "" {
				t.Skip(skip)
			}
			if err := q.run(r); err != nil {
				t.Error(err)
			}
		})
	}
}

type sourceRule[T any] struct {
	name  string
	check func(q *queue[T]) error
	needs string // letters: k, s, l, e: Keeps, Shared, Lease, End
}

func sourceRules[T any]() []sourceRule[T] {
	return []sourceRule[T]{
		{"what was acknowledged does not come again", (*queue[T]).acknowledged, ""},
		{"what was rejected does not come again", (*queue[T]).rejected, ""},
		{"what was nacked comes again, with the same id", (*queue[T]).nacked, ""},
		{"what was nacked does not come before its delay is over, and holds up nothing", (*queue[T]).delayed, ""},
		{"a message that is not settled is not delivered twice", (*queue[T]).unsettled, ""},
		{"between one and n messages, and a wait for the first", (*queue[T]).batches, ""},
		{"a wait that is cancelled loses nothing", (*queue[T]).cancelled, ""},
		{"settled from many goroutines, in any order", (*queue[T]).concurrently, ""},
		{"settling waits for nothing", (*queue[T]).settlingWaitsForNothing, ""},
		{"ids are different for different messages", (*queue[T]).ids, ""},
		{"Close ends Receive", (*queue[T]).closed, ""},
		{"Close records what was settled before, and releases the rest", (*queue[T]).releases, "k"},
		{"what is settled after Close changes nothing", (*queue[T]).settledAfterClose, "k"},
		{"a delay goes on over a Close", (*queue[T]).delayOverClose, "k"},
		{"two sources share the queue", (*queue[T]).shared, "s"},
		{"what one source releases another one gets", (*queue[T]).nackedToOther, "s"},
		{"a lease is extended until its message is settled", (*queue[T]).leaseExtended, "sl"},
		{"a killed source loses nothing but its leases", (*queue[T]).killed, "sl"},
		{"the end, when all is done", (*queue[T]).end, "e"},
		{"a worker (delivery.Run) redelivers a snoozed message after its delay, without a visit", (*queue[T]).snoozed, ""},
		{"a worker (delivery.Run) does each message, and releases what it does not finish", (*queue[T]).worker, ""},
	}
}

// skip returns why a rule does not apply, or "".
func (r sourceRule[T]) skip(q Queue[T]) string {
	for _, n := range []struct {
		letter, what string
		has          bool
	}{
		{"k", "the queue does not outlive its sources", q.Keeps},
		{"s", "the queue has one source at a time", q.Shared},
		{"l", "the queue has no Lease, or no Kill", q.Lease > 0 && q.Kill != nil},
		{"e", "the queue has no End", q.End != nil},
	} {
		if strings.Contains(r.needs, n.letter) && !n.has {
			return n.what
		}
	}
	return ""
}

type queue[T any] struct {
	Queue[T]
	value    func(i int) T
	open     []delivery.Source[T]
	patience time.Duration
}

const defaultPatience = 30 * time.Second

func (q *queue[T]) run(r sourceRule[T]) (err error) {
	if q.Delay == 0 {
		q.Delay = 100 * time.Millisecond
	}
	if q.patience == 0 {
		q.patience = defaultPatience
	}
	q.Equal = suite.EqualOr(q.Equal)
	err = suite.Quiet(func() error { return r.check(q) })
	for _, s := range q.open {
		_ = suite.Quiet(func() error { return q.close(s) }) // a second Close must do no harm
	}
	return err
}

// within calls f, which must return in time.
func within[R any](patience time.Duration, what string, f func(ctx context.Context) (R, error)) (R, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	type result struct {
		r   R
		err error
	}
	done := make(chan result, 1)
	go func() {
		res := result{err: fmt.Errorf("%s has ended its goroutine", what)}
		defer func() { done <- res }()
		var r R
		err := suite.Quiet(func() (err error) { r, err = f(ctx); return err })
		res = result{r, err}
	}()
	select {
	case res := <-done:
		return res.r, res.err
	case <-time.After(patience + time.Second):
		var none R
		return none, fmt.Errorf("%s did not return within %v", what, patience)
	}
}

func (q *queue[T]) source() (delivery.Source[T], error) {
	s, err := q.Open()
	if err != nil {
		return nil, fmt.Errorf("Open: %w", err)
	}
	q.open = append(q.open, s)
	return s, nil
}

func (q *queue[T]) close(s delivery.Source[T]) error {
	_, err := within(q.patience, "Close", func(ctx context.Context) (struct{}, error) { return struct{}{}, s.Close(ctx) })
	return err
}

func (q *queue[T]) filled(n int) (delivery.Source[T], error) {
	values := make([]T, n)
	for i := range values {
		values[i] = q.value(i)
	}
	if err := q.Put(values...); err != nil {
		return nil, fmt.Errorf("Put: %w", err)
	}
	return q.source()
}

// receive calls Receive once.
func (q *queue[T]) receive(s delivery.Source[T], n int) ([]message.Message[T], error) {
	ms, err := within(q.patience, "Receive", func(ctx context.Context) ([]message.Message[T], error) { return s.Receive(ctx, n) })
	if err := q.sound(ms, err, n); err != nil {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("Receive: %w", err)
	}
	return ms, nil
}

func (q *queue[T]) sound(ms []message.Message[T], err error, n int) error {
	switch {
	case err != nil && len(ms) > 0:
		return fmt.Errorf("Receive returned %d messages and the error %w", len(ms), err)
	case err == nil && (len(ms) == 0 || len(ms) > n):
		return fmt.Errorf("Receive of at most %d messages returned %d", n, len(ms))
	}
	for _, m := range ms {
		if !m.Pending() {
			return fmt.Errorf("Receive returned a message that is settled, or lacks an acknowledgement: %+v", m.Value)
		}
	}
	return nil
}

func (q *queue[T]) all(s delivery.Source[T], n int) (all []message.Message[T], err error) {
	for len(all) < n {
		ms, err := q.receive(s, n-len(all))
		if err != nil {
			return nil, fmt.Errorf("after %d of %d messages: %w", len(all), n, err)
		}
		all = append(all, ms...)
	}
	return all, nil
}

type delivered[T any] struct {
	source   delivery.Source[T]
	messages []message.Message[T]
}

func (q *queue[T]) delivered(n int) (delivered[T], error) {
	s, err := q.filled(n)
	if err != nil {
		return delivered[T]{}, err
	}
	ms, err := q.all(s, n)
	return delivered[T]{s, ms}, err
}

// have checks that messages have these values, in any order, each once.
func (q *queue[T]) have(ms []message.Message[T], want ...int) error {
	missing := slices.Clone(want)
	for _, m := range ms {
		i := slices.IndexFunc(missing, func(i int) bool { return q.Equal(m.Value, q.value(i)) })
		if i < 0 {
			return fmt.Errorf("got %+v, which was not to come, or not again", m.Value)
		}
		missing = slices.Delete(missing, i, i+1)
	}
	if len(missing) > 0 {
		return fmt.Errorf("%+v did not come", q.value(missing[0]))
	}
	return nil
}

func (q *queue[T]) nothing(s delivery.Source[T]) error {
	ctx, cancel := context.WithTimeout(context.Background(), q.Delay)
	defer cancel()
	ms, err := within(q.patience, "Receive", func(context.Context) ([]message.Message[T], error) { return s.Receive(ctx, 10) })
	if len(ms) > 0 {
		return fmt.Errorf("%+v came, which was not to come, or not again", ms[0].Value)
	}
	if !errors.Is(err, context.DeadlineExceeded) && err != io.EOF {
		return fmt.Errorf("Receive under a context that ends returned %w", err)
	}
	return nil
}

// nothingLeft checks that the queue is empty, also for a new source.
func (q *queue[T]) nothingLeft(s delivery.Source[T]) error {
	if err := q.nothing(s); err != nil {
		return err
	}
	if err := q.close(s); err != nil {
		return fmt.Errorf("Close: %w", err)
	}
	if !q.Keeps {
		return nil
	}
	next, err := q.source()
	if err == nil {
		err = q.nothing(next)
	}
	if err != nil {
		return fmt.Errorf("from the next source: %w", err)
	}
	return nil
}

func indices(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

func ackAll[T any](ms []message.Message[T]) {
	for _, m := range ms {
		m.Ack()
	}
}
