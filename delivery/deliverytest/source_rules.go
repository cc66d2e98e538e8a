package deliverytest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"sync"
	"time"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/message"
)

const few = 5

func (q *queue[T]) acknowledged() error {
	got, err := q.delivered(few)
	if err != nil {
		return err
	}
	s, ms := got.source, got.messages
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
	got, err := q.delivered(few)
	if err != nil {
		return err
	}
	s, ms := got.source, got.messages
	for _, m := range ms {
		m.Reject(errors.New("rejected by the suite"))
	}
	return q.nothingLeft(s)
}

func (q *queue[T]) nacked() error {
	got, err := q.delivered(few)
	if err != nil {
		return err
	}
	s, first := got.source, got.messages
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
	got, err := q.delivered(few)
	if err != nil {
		return err
	}
	s, ms := got.source, got.messages
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
	var all []message.Message[T]
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
	go func() { // it waits for one only
		ms, err := q.receive(s, 10)
		ackAll(ms)
		got <- err
	}()
	select {
	case err := <-got:
		return fmt.Errorf("Receive returned without a message: %w", err)
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
	var all []message.Message[T]
	cause := errors.New("cancelled by the suite")
	for try := 0; len(all) < few; try++ {
		ctx, cancel := context.WithCancelCause(context.Background())
		limit := time.AfterFunc(time.Duration(try*try)*10*time.Microsecond, func() { cancel(cause) })
		if try == 0 {
			cancel(cause)
		}
		ms, err := within(q.patience, "Receive", func(context.Context) ([]message.Message[T], error) { return s.Receive(ctx, 2) })
		limit.Stop()
		cancel(nil)
		if err := q.sound(ms, err, 2); err != nil {
			return err
		}
		if err != nil && !errors.Is(err, cause) {
			return fmt.Errorf("Receive under a context that is cancelled returned %w, want its cause", err)
		}
		all = append(all, ms...)
		if try > 1000 {
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
	settle := make(chan message.Message[T], many)
	var settling sync.WaitGroup
	for range 8 {
		settling.Go(func() {
			for m := range settle {
				m.Ack()
				m.Reject(nil)
			}
		})
	}
	var done []message.Message[T]
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
	got, err := q.delivered(many)
	if err != nil {
		return err
	}
	s, ms := got.source, got.messages
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
	got, err := q.delivered(few)
	if err != nil {
		return err
	}
	s, ms := got.source, got.messages
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
	_, err = within(q.patience, "Receive", func(ctx context.Context) ([]message.Message[T], error) { return s.Receive(ctx, 1) })
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
