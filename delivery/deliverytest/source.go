package deliverytest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/internal/suite"
)

// Queue is a queue of messages, empty at first, and its sources.
type Queue[T any] struct {
	// Open opens a source of the queue. The suite closes it.
	Open func() (delivery.Source[T], error)
	// Put puts values into the queue. No source may be open.
	Put func(values ...T) error
	// End, or nil, says that nothing more is put: when all is done, Receive returns io.EOF.
	End func()

	// Keeps says that the queue outlives its sources: what is not settled when a source is closed is delivered by the next one.
	Keeps bool
	// Shared says that several sources of the queue may be open at once, as in several processes.
	Shared bool
	// Lease is how long a message stays with a source that gives no sign of life any more, at most; 0: leases are not checked.
	// Kill, which needs a Lease, ends a source as a crash of its process does.
	Lease time.Duration
	Kill  func(source delivery.Source[T])

	// Delay is the delay that messages are nacked with, and how long the suite waits for what must not come. Default 100 ms. It
	// must be larger than the queue's unit of time.
	Delay time.Duration
	// Equal reports whether two values are the same; nil stands for reflect.DeepEqual.
	Equal func(a, b T) bool
}

// RunSource checks sources against the rules of [delivery.Source], one subtest each. open makes a new, empty queue each time;
// value returns the i-th of different values.
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
		{"Close records what was settled before, and gives back the rest", (*queue[T]).givesBack, "k"},
		{"what is settled after Close changes nothing", (*queue[T]).settledAfterClose, "k"},
		{"a delay goes on over a Close", (*queue[T]).delayOverClose, "k"},
		{"two sources share the queue", (*queue[T]).shared, "s"},
		{"what one source gives back another one gets", (*queue[T]).nackedToOther, "s"},
		{"a lease is extended until its message is settled", (*queue[T]).leaseExtended, "sl"},
		{"a killed source loses nothing but its leases", (*queue[T]).killed, "sl"},
		{"the end, when all is done", (*queue[T]).end, "e"},
		{"a worker (delivery.Run) does each message, and gives back what it does not finish", (*queue[T]).worker, ""},
	}
}

// skip says why a rule does not apply.
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

// queue is a queue under test.
type queue[T any] struct {
	Queue[T]
	value    func(i int) T
	open     []delivery.Source[T]
	patience time.Duration
}

// defaultPatience is how long the suite waits for what must come.
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
		_ = suite.Quiet(func() error { return q.close(s) }) // a second Close must do no harm; the first one was checked
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

// filled puts n values and opens a source.
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

// receive returns what one Receive does.
func (q *queue[T]) receive(s delivery.Source[T], n int) ([]delivery.Message[T], error) {
	ms, err := within(q.patience, "Receive", func(ctx context.Context) ([]delivery.Message[T], error) { return s.Receive(ctx, n) })
	if err := q.sound(ms, err, n); err != nil {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("Receive: %w", err)
	}
	return ms, nil
}

func (q *queue[T]) sound(ms []delivery.Message[T], err error, n int) error {
	switch {
	case err != nil && len(ms) > 0:
		return fmt.Errorf("Receive returned %d messages and the error %w", len(ms), err)
	case err == nil && (len(ms) == 0 || len(ms) > n):
		return fmt.Errorf("Receive of at most %d messages returned %d", n, len(ms))
	}
	for _, m := range ms {
		if !m.Pending() {
			return fmt.Errorf("Receive returned a message that is settled, or has no acknowledgement: %+v", m.Value)
		}
	}
	return nil
}

// all receives n messages.
func (q *queue[T]) all(s delivery.Source[T], n int) (all []delivery.Message[T], err error) {
	for len(all) < n {
		ms, err := q.receive(s, n-len(all))
		if err != nil {
			return nil, fmt.Errorf("after %d of %d messages: %w", len(all), n, err)
		}
		all = append(all, ms...)
	}
	return all, nil
}

// put checks that messages have these values, in any order, each once.
func (q *queue[T]) have(ms []delivery.Message[T], want ...int) error {
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

// nothing checks that no message comes for a while.
func (q *queue[T]) nothing(s delivery.Source[T]) error {
	ctx, cancel := context.WithTimeout(context.Background(), q.Delay)
	defer cancel()
	ms, err := within(q.patience, "Receive", func(context.Context) ([]delivery.Message[T], error) { return s.Receive(ctx, 10) })
	if len(ms) > 0 {
		return fmt.Errorf("%+v came, which was not to come, or not again", ms[0].Value)
	}
	if !errors.Is(err, context.DeadlineExceeded) && err != io.EOF {
		return fmt.Errorf("Receive under a context that ends returned %w", err)
	}
	return nil
}

// nothingLeft checks that nothing is in the queue, for a new source, too.
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

func ackAll[T any](ms []delivery.Message[T]) {
	for _, m := range ms {
		m.Ack()
	}
}

const few = 5

func (q *queue[T]) acknowledged() error {
	s, err := q.filled(few)
	if err != nil {
		return err
	}
	ms, err := q.all(s, few)
	if err != nil {
		return err
	}
	ackAll(ms)
	ackAll(ms)
	for _, m := range ms {
		m.Nack(0) // too late (law D2)
	}
	if err := q.have(ms, indices(few)...); err != nil {
		return err
	}
	return q.nothingLeft(s)
}

func (q *queue[T]) rejected() error {
	s, err := q.filled(few)
	if err != nil {
		return err
	}
	ms, err := q.all(s, few)
	if err != nil {
		return err
	}
	for _, m := range ms {
		m.Reject(errors.New("rejected by the suite"))
	}
	return q.nothingLeft(s)
}

func (q *queue[T]) nacked() error {
	s, err := q.filled(few)
	if err != nil {
		return err
	}
	first, err := q.all(s, few)
	if err != nil {
		return err
	}
	ackAll(first[1:])
	m := first[0]
	for range 3 {
		before := m.Meta()
		m.Nack(0)
		again, err := q.all(s, 1)
		if err != nil {
			return err
		}
		after := again[0].Meta()
		switch {
		case !q.Equal(again[0].Value, first[0].Value):
			return fmt.Errorf("after a Nack of %+v, %+v came", first[0].Value, again[0].Value)
		case before.ID != after.ID || before.Key != after.Key || before.Origin != after.Origin:
			return fmt.Errorf("after a Nack, %+v came with another id, key or origin: %+v, before %+v", m.Value, after, before)
		case !reflect.DeepEqual(before.Headers, after.Headers):
			return fmt.Errorf("after a Nack, %+v came with other headers: %v, before %v", m.Value, after.Headers, before.Headers)
		}
		m = again[0]
	}
	m.Ack()
	return q.nothingLeft(s)
}

// delayed checks laws D3 and D4.
func (q *queue[T]) delayed() error {
	s, err := q.filled(few)
	if err != nil {
		return err
	}
	first, err := q.all(s, 1)
	if err != nil {
		return err
	}
	start := time.Now()
	first[0].Nack(q.Delay)
	others, err := q.all(s, few-1)
	if err != nil {
		return fmt.Errorf("while a message waits: %w", err)
	}
	if err := q.have(append(others, first...), indices(few)...); err != nil {
		return err
	}
	ackAll(others)
	again, err := q.all(s, 1)
	if err != nil {
		return err
	}
	if waited := time.Since(start); waited < q.Delay {
		return fmt.Errorf("nacked for %v, and back after %v", q.Delay, waited)
	}
	if !q.Equal(again[0].Value, first[0].Value) {
		return fmt.Errorf("after a Nack of %+v, %+v came", first[0].Value, again[0].Value)
	}
	again[0].Ack()
	return q.nothingLeft(s)
}

func (q *queue[T]) unsettled() error {
	s, err := q.filled(few)
	if err != nil {
		return err
	}
	ms, err := q.all(s, few)
	if err != nil {
		return err
	}
	for range 3 {
		if err := q.nothing(s); err != nil {
			return err
		}
	}
	ackAll(ms)
	return q.nothingLeft(s)
}

func (q *queue[T]) batches() error {
	s, err := q.filled(2 * few)
	if err != nil {
		return err
	}
	var all []delivery.Message[T]
	for n := 1; len(all) < 2*few; n++ {
		ms, err := q.receive(s, n)
		if err != nil {
			return err
		}
		all = append(all, ms...)
	}
	if err := q.have(all, indices(2*few)...); err != nil {
		return err
	}
	ackAll(all[1:])
	got := make(chan error, 1)
	go func() { // it waits for one, and not for more
		ms, err := q.receive(s, 10)
		ackAll(ms)
		got <- err
	}()
	select {
	case err := <-got:
		return fmt.Errorf("Receive returned although there was nothing: %w", err)
	case <-time.After(q.Delay / 2):
	}
	all[0].Nack(0)
	if err := <-got; err != nil {
		return err
	}
	return q.nothingLeft(s)
}

func (q *queue[T]) cancelled() error {
	s, err := q.filled(few)
	if err != nil {
		return err
	}
	var all []delivery.Message[T]
	cause := errors.New("cancelled by the suite")
	for try := 0; len(all) < few; try++ {
		ctx, cancel := context.WithCancelCause(context.Background())
		limit := time.AfterFunc(time.Duration(try*try)*10*time.Microsecond, func() { cancel(cause) })
		if try == 0 {
			cancel(cause)
		}
		ms, err := within(q.patience, "Receive", func(context.Context) ([]delivery.Message[T], error) { return s.Receive(ctx, 2) })
		limit.Stop()
		cancel(nil)
		if err := q.sound(ms, err, 2); err != nil {
			return err
		}
		if err != nil && !errors.Is(err, cause) {
			return fmt.Errorf("Receive under a context that is cancelled returned %w, want its cause", err)
		}
		if all = append(all, ms...); try > 1000 {
			return fmt.Errorf("%d of %d messages came within %d calls", len(all), few, try)
		}
	}
	ackAll(all)
	if err := q.have(all, indices(few)...); err != nil {
		return err
	}
	return q.nothingLeft(s)
}

func (q *queue[T]) concurrently() error {
	const many = 100
	s, err := q.filled(many)
	if err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(1, 2))
	settle := make(chan delivery.Message[T], many)
	var settling sync.WaitGroup
	for range 8 {
		settling.Go(func() {
			for m := range settle {
				m.Ack()
				m.Reject(nil)
			}
		})
	}
	var done []delivery.Message[T]
	err = func() error {
		defer settling.Wait()
		defer close(settle)
		for left := many; left > 0; {
			ms, err := q.receive(s, 1+random.IntN(10))
			if err != nil {
				return fmt.Errorf("with %d messages left: %w", left, err)
			}
			random.Shuffle(len(ms), func(i, j int) { ms[i], ms[j] = ms[j], ms[i] })
			for _, m := range ms {
				if random.IntN(4) == 0 {
					m.Nack(0)
					continue
				}
				settle <- m
				done = append(done, m)
				left--
			}
		}
		return nil
	}()
	if err != nil {
		return err
	}
	if err := q.have(done, indices(many)...); err != nil {
		return err
	}
	return q.nothingLeft(s)
}

// settlingWaitsForNothing settles while no Receive runs.
func (q *queue[T]) settlingWaitsForNothing() error {
	const many = 100
	s, err := q.filled(many)
	if err != nil {
		return err
	}
	ms, err := q.all(s, many)
	if err != nil {
		return err
	}
	_, err = within(q.patience, "Ack", func(context.Context) (struct{}, error) {
		for i, m := range ms {
			if i%2 == 0 {
				m.Nack(0)
			} else {
				m.Ack()
			}
		}
		return struct{}{}, nil
	})
	if err != nil {
		return err
	}
	again, err := q.all(s, many/2)
	if err != nil {
		return err
	}
	ackAll(again)
	return q.nothingLeft(s)
}

func (q *queue[T]) ids() error {
	s, err := q.filled(few)
	if err != nil {
		return err
	}
	ms, err := q.all(s, few)
	if err != nil {
		return err
	}
	seen := make(map[string]T)
	for _, m := range ms {
		id := m.Meta().ID
		if other, twice := seen[id]; twice && id != "" {
			return fmt.Errorf("%+v and %+v have the same id %q", other, m.Value, id)
		}
		seen[id] = m.Value
		if _, err := m.Meta().ToHeaders(); err != nil {
			return err
		}
	}
	ackAll(ms)
	return q.nothingLeft(s)
}

func (q *queue[T]) closed() error {
	s, err := q.filled(0)
	if err != nil {
		return err
	}
	got := make(chan error, 1)
	go func() {
		_, err := q.receive(s, 1)
		got <- err
	}()
	time.Sleep(q.Delay / 10) // it may wait by then
	if err := q.close(s); err != nil {
		return fmt.Errorf("Close of a source without messages: %w", err)
	}
	select {
	case err := <-got:
		if err == nil || errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("Receive did not end with Close, and returned the error %w", err)
		}
	case <-time.After(q.patience):
		return errors.New("Receive did not end with Close")
	}
	if _, err := q.receive(s, 1); err == nil || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("Receive after Close returned the error %w", err)
	}
	if err := q.close(s); err != nil {
		return fmt.Errorf("the second Close: %w", err)
	}
	return nil
}

// given opens the next source and checks which messages come.
func (q *queue[T]) given(want ...int) (delivery.Source[T], error) {
	s, err := q.source()
	if err != nil {
		return nil, err
	}
	ms, err := q.all(s, len(want))
	if err == nil {
		err = q.have(ms, want...)
	}
	if err != nil {
		return nil, fmt.Errorf("from the next source: %w", err)
	}
	ackAll(ms)
	return s, nil
}

// byValue sorts messages by their values' indices.
func (q *queue[T]) byValue(ms []delivery.Message[T]) []delivery.Message[T] {
	sorted := make([]delivery.Message[T], len(ms))
	for i := range ms {
		for _, m := range ms {
			if q.Equal(m.Value, q.value(i)) {
				sorted[i] = m
			}
		}
	}
	return sorted
}

func (q *queue[T]) givesBack() error {
	s, err := q.filled(6)
	if err != nil {
		return err
	}
	ms, err := q.all(s, 6)
	if err != nil {
		return err
	}
	if err := q.have(ms, indices(6)...); err != nil {
		return err
	}
	ms = q.byValue(ms)
	ms[0].Ack()
	ms[1].Reject(errors.New("rejected by the suite"))
	ms[2].Nack(0)
	id := ms[3].Meta().ID
	if err := q.close(s); err != nil {
		return fmt.Errorf("Close: %w", err)
	}
	next, err := q.source()
	if err != nil {
		return err
	}
	again, err := q.all(next, 4)
	if err != nil {
		return fmt.Errorf("from the next source: %w", err)
	}
	if err := q.have(again, 2, 3, 4, 5); err != nil {
		return fmt.Errorf("from the next source: %w", err)
	}
	for _, m := range again {
		if q.Equal(m.Value, q.value(3)) && m.Meta().ID != id {
			return fmt.Errorf("%+v came with the id %q, before %q", m.Value, m.Meta().ID, id)
		}
	}
	ackAll(again)
	return q.nothingLeft(next)
}

func (q *queue[T]) settledAfterClose() error {
	s, err := q.filled(3)
	if err != nil {
		return err
	}
	ms, err := q.all(s, 3)
	if err != nil {
		return err
	}
	if err := q.close(s); err != nil {
		return fmt.Errorf("Close: %w", err)
	}
	ms[0].Ack()
	ms[1].Nack(time.Hour)
	ms[2].Reject(errors.New("rejected by the suite"))
	next, err := q.given(indices(3)...)
	if err != nil {
		return err
	}
	return q.nothingLeft(next)
}

func (q *queue[T]) delayOverClose() error {
	s, err := q.filled(1)
	if err != nil {
		return err
	}
	ms, err := q.all(s, 1)
	if err != nil {
		return err
	}
	start := time.Now()
	ms[0].Nack(2 * q.Delay)
	if err := q.close(s); err != nil {
		return fmt.Errorf("Close: %w", err)
	}
	next, err := q.given(0)
	if err != nil {
		return err
	}
	if waited := time.Since(start); waited < 2*q.Delay {
		return fmt.Errorf("nacked for %v, and back after %v", 2*q.Delay, waited)
	}
	return q.nothingLeft(next)
}

// two fills the queue and opens two sources.
func (q *queue[T]) two(n int) (a, b delivery.Source[T], err error) {
	if a, err = q.filled(n); err == nil {
		b, err = q.source()
	}
	return a, b, err
}

func (q *queue[T]) shared() error {
	const many = 20
	a, b, err := q.two(many)
	if err != nil {
		return err
	}
	var all []delivery.Message[T]
	for i, s := range []delivery.Source[T]{a, b} {
		ms, err := q.receive(s, 1+i)
		if err != nil {
			return err
		}
		all = append(all, ms...)
	}
	got := make(chan []delivery.Message[T])
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), q.patience)
		defer cancel()
		for {
			ms, err := b.Receive(ctx, 2)
			if err != nil {
				close(got)
				return
			}
			got <- ms
		}
	}()
	defer func() {
		for range got {
		}
	}()
	defer func() { _ = q.close(b) }()
	for len(all) < many {
		select {
		case ms, ok := <-got:
			if !ok {
				return fmt.Errorf("the second source has failed, after %d of %d messages", len(all), many)
			}
			all = append(all, ms...)
		default:
			ctx, cancel := context.WithTimeout(context.Background(), q.Delay)
			ms, err := a.Receive(ctx, 2)
			cancel()
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("Receive: %w", err)
			}
			all = append(all, ms...)
		}
	}
	ackAll(all)
	if err := q.have(all, indices(many)...); err != nil {
		return err
	}
	return q.nothing(a)
}

func (q *queue[T]) nackedToOther() error {
	a, b, err := q.two(1)
	if err != nil {
		return err
	}
	ms, err := q.all(a, 1)
	if err != nil {
		return err
	}
	if err := q.nothing(b); err != nil {
		return err
	}
	ms[0].Nack(0)
	again, err := q.all(b, 1)
	if err != nil {
		return err
	}
	ackAll(again)
	if err := q.nothing(a); err != nil {
		return err
	}
	return q.nothing(b)
}

func (q *queue[T]) leaseExtended() error {
	a, b, err := q.two(1)
	if err != nil {
		return err
	}
	ms, err := q.all(a, 1)
	if err != nil {
		return err
	}
	for start := time.Now(); time.Since(start) < 3*q.Lease; {
		if err := q.nothing(b); err != nil {
			return fmt.Errorf("%v after it was received: %w", time.Since(start), err)
		}
	}
	ackAll(ms)
	return q.nothing(b)
}

func (q *queue[T]) killed() error {
	a, b, err := q.two(few)
	if err != nil {
		return err
	}
	ms, err := q.all(a, few)
	if err != nil {
		return err
	}
	q.Kill(a)
	again, err := q.all(b, few)
	if err != nil {
		return fmt.Errorf("after a source was killed: %w", err)
	}
	if err := q.have(again, indices(few)...); err != nil {
		return fmt.Errorf("after a source was killed: %w", err)
	}
	for _, m := range ms { // of the dead, whose lease another one has
		m.Nack(0)
	}
	if err := q.nothing(b); err != nil {
		return fmt.Errorf("after a verdict of a source that had lost its lease: %w", err)
	}
	ackAll(again)
	return q.nothing(b)
}

func (q *queue[T]) end() error {
	s, err := q.filled(few)
	if err != nil {
		return err
	}
	q.End()
	ms, err := q.all(s, few)
	if err != nil {
		return err
	}
	if err := q.notYet(s); err != nil {
		return err
	}
	ms[0].Nack(q.Delay / 2)
	ackAll(ms[1:])
	again, err := q.all(s, 1)
	if err != nil {
		return fmt.Errorf("of a message that was nacked at the end: %w", err)
	}
	if err := q.notYet(s); err != nil {
		return err
	}
	ackAll(again)
	_, err = within(q.patience, "Receive", func(ctx context.Context) ([]delivery.Message[T], error) { return s.Receive(ctx, 1) })
	if err != io.EOF {
		return fmt.Errorf("at the end Receive returned the error %w, want io.EOF itself", err)
	}
	return q.close(s)
}

// notYet checks that the end does not come while a message is not settled.
func (q *queue[T]) notYet(s delivery.Source[T]) error {
	ctx, cancel := context.WithTimeout(context.Background(), q.Delay/4)
	defer cancel()
	if ms, err := s.Receive(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("while a message is not settled, Receive returned %d messages and the error %w", len(ms), err)
	}
	return nil
}
